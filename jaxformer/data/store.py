"""Token ids of text pairs in flat arrays, in memory or mapped from files.

There is one form on disk: for each side a file of token ids, end to end, and for both
an array of lengths. The temporary files of a run and a prepared folder have it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from jaxformer.data.vocabulary import Vocabularies

TOKENS = ("source.bin", "target.bin")
LENGTHS = "lengths.npy"

# Tokens that are hashed at a time.
_BLOCK = 1 << 20


def token_files(one_sided: bool) -> tuple[str, ...]:
    """Return the names of the files of tokens, of both sides or of the one."""
    return TOKENS[one_sided:]


@dataclass(frozen=True, eq=False)
class Sentences:
    """Token ids of many sentences, end to end in one array."""

    tokens: NDArray[np.integer]
    """integers [sum of lengths], in memory or mapped from a file"""
    offsets: NDArray[np.int64]
    """int64 [N + 1]: sentence i is ``tokens[offsets[i]:offsets[i + 1]]``"""
    pad_id: int
    """The padding id of the vocabulary; :meth:`padded` fills with it."""

    @classmethod
    def from_lists(
        cls,
        sentences: Sequence[Sequence[int]],
        pad_id: int,
        *,
        first: int | Sequence[int] = (),
        last: int | Sequence[int] = (),
    ) -> Sentences:
        """Concatenate sentences; add the token or the tokens ``first`` before each and
        ``last`` after each.
        """
        before, after = (
            [each] if isinstance(each, int) else [*each] for each in (first, last)
        )
        added = len(before) + len(after)
        offsets = _offsets([len(sentence) + added for sentence in sentences])
        own = np.fromiter(itertools.chain.from_iterable(sentences), np.int32)
        tokens = np.empty(offsets[-1], np.int32)
        is_own = np.ones(offsets[-1], bool)
        places = [offsets[:-1] + place for place in range(len(before))]
        places += [offsets[1:] - place for place in range(len(after), 0, -1)]
        for token, positions in zip([*before, *after], places, strict=True):
            tokens[positions], is_own[positions] = token, False
        tokens[is_own] = own
        return cls(tokens, offsets, pad_id)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> NDArray[np.integer]:
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    @functools.cached_property
    def lengths(self) -> NDArray[np.int32]:
        """Tokens in each sentence, int32 [N]."""
        return np.diff(self.offsets).astype(np.int32)

    def take(self, indices: NDArray[np.integer]) -> Sentences:
        """Return the sentences at these indices, in this order, in memory."""
        lengths = self.lengths[indices]
        offsets = _offsets(lengths)
        # A token keeps its distance from the start of its sentence.
        shifts = np.repeat(self.offsets[indices] - offsets[:-1], lengths)
        return Sentences(
            self.tokens[np.arange(offsets[-1]) + shifts], offsets, self.pad_id
        )

    def padded(self, rows: int, length: int) -> NDArray[np.int32]:
        """Return a batch, int32 [rows, length], padded on the right; rows without a
        sentence are all padding.
        """
        batch = np.full((rows, length), self.pad_id, np.int32)
        batch[: len(self)][np.arange(length) < self.lengths[:, None]] = self.tokens
        return batch


@dataclass(frozen=True, eq=False)
class CutSentences(Sentences):
    """Sentences that :meth:`take` cuts from tokens that stay where they are."""

    def __getitem__(self, index: int) -> NDArray[np.integer]:
        return self.take(np.array([index])).tokens

    def padded(self, rows: int, length: int) -> NDArray[np.int32]:
        """Return a batch, int32 [rows, length], padded on the right."""
        return self.take(np.arange(len(self))).padded(rows, length)


@dataclass(frozen=True, eq=False)
class Encoded:
    """Pairs as token ids; pair i is ``source[i]`` and ``target[i]``. Texts of one side
    are both: one object, which is kept once.
    """

    source: Sentences
    target: Sentences
    known_hash: str | None = None
    """The hash, where it was computed before."""

    @property
    def sides(self) -> dict[str, Sentences]:
        """The sides by name; texts of one side are ``target`` alone."""
        sides = {"source": self.source, "target": self.target}
        return {"target": self.target} if self.source is self.target else sides

    def __len__(self) -> int:
        return len(self.source)

    @property
    def source_lengths(self) -> NDArray[np.int32]:
        """Tokens of each source sentence, int32 [N]."""
        return self.source.lengths

    @property
    def target_lengths(self) -> NDArray[np.int32]:
        """Tokens of each target sentence, int32 [N]."""
        return self.target.lengths

    def take(self, indices: NDArray[np.integer]) -> Encoded:
        """Return the pairs at these indices, in this order, in memory."""
        return _of_sides([side.take(indices) for side in self.sides.values()])

    @property
    def hash(self) -> str:
        """SHA-256 of the pairs, in hex; see :class:`Fingerprint`."""
        if self.known_hash is not None:
            return self.known_hash
        fingerprint = Fingerprint()
        fingerprint.add(self)
        return fingerprint.hex()


def _of_sides(sides: Sequence[Sentences], known_hash: str | None = None) -> Encoded:
    """Return pairs of two sides, or texts of one."""
    return Encoded(sides[0], sides[-1], known_hash)


class Fingerprint:
    """SHA-256 over encoded pairs in order. Any split into pieces gives the same."""

    def __init__(self) -> None:
        """Begin without a pair."""
        self._parts = [hashlib.sha256() for _ in range(4)]

    def add(self, pairs: Encoded) -> None:
        """Append pairs."""
        parts = self._parts[::2], self._parts[1::2]
        for side, tokens, lengths in zip(pairs.sides.values(), *parts, strict=False):
            for start in range(0, len(side.tokens), _BLOCK):
                block = side.tokens[start : start + _BLOCK]
                tokens.update(block.astype("<i4").tobytes())
            lengths.update(side.lengths.astype("<i4").tobytes())

    def hex(self) -> str:
        """Return the hash of all pairs so far."""
        digests = b"".join(part.digest() for part in self._parts)
        return hashlib.sha256(digests).hexdigest()


class TokenWriter:
    """Write encoded pairs to flat files, piece by piece. Use it in a ``with`` block.

    Memory holds only their lengths. Without a folder the files are temporary and have
    no name: the system removes them with the last user of the pairs.
    """

    def __init__(
        self,
        vocabularies: Vocabularies,
        folder: Path | None = None,
        *,
        one_sided: bool = False,
    ) -> None:
        """Open the files.

        Args:
            vocabularies: of the pairs.
            folder: where the files get names; None: temporary files.
            one_sided: whether they are texts of one side, which is ``target``.
        """
        self._vocabularies, self._folder = vocabularies, folder
        self._stack = contextlib.ExitStack()
        names = token_files(one_sided)
        self._files = [self._stack.enter_context(self._open(name)) for name in names]
        self._lengths = [np.zeros((0, len(names)), np.int32)]
        self._fingerprint = Fingerprint()

    def _open(self, name: str) -> BinaryIO:
        if self._folder is None:
            return tempfile.TemporaryFile()
        return (self._folder / name).open("w+b")

    def __enter__(self) -> TokenWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def add(self, pairs: Encoded) -> None:
        """Append pairs."""
        dtype = self._vocabularies.token_dtype
        for file, side in zip(self._files, pairs.sides.values(), strict=True):
            file.write(np.ascontiguousarray(side.tokens, dtype).data)
        lengths = [side.lengths for side in pairs.sides.values()]
        self._lengths.append(np.stack(lengths, 1))
        self._fingerprint.add(pairs)

    def finish(self) -> Encoded:
        """Return all pairs, mapped from the files; write the lengths if the files have
        names.
        """
        lengths = np.concatenate(self._lengths)
        for file in self._files:
            file.flush()
        if self._folder is not None:
            np.save(self._folder / LENGTHS, lengths)
        return map_pairs(
            self._files, lengths, self._vocabularies, self._fingerprint.hex()
        )


def map_pairs(
    files: Sequence[BinaryIO | Path],
    lengths: NDArray[np.int32],
    vocabularies: Vocabularies,
    known_hash: str,
) -> Encoded:
    """Map the files of both sides, or of the one, into memory; ``lengths`` is [N, 2]
    or [N, 1].
    """
    sides, dtype = [], vocabularies.token_dtype
    pad_ids = vocabularies.pad_ids[-len(files) :]
    for file, own, pad_id in zip(files, lengths.T, pad_ids, strict=True):
        offsets = _offsets(own)
        # An empty file cannot be mapped.
        tokens = np.memmap(file, dtype, "r") if offsets[-1] else np.zeros(0, dtype)
        sides.append(Sentences(tokens, offsets, pad_id))
    return _of_sides(sides, known_hash)


def concatenate(parts: Sequence[Encoded]) -> Encoded:
    """Concatenate pairs in memory; there is at least one part."""
    sides = []
    for sentences in zip(*(part.sides.values() for part in parts), strict=True):
        tokens = np.concatenate([one.tokens for one in sentences])
        lengths = np.concatenate([one.lengths for one in sentences])
        sides.append(Sentences(tokens, _offsets(lengths), sentences[0].pad_id))
    return _of_sides(sides)


def _offsets(lengths: Sequence[int] | NDArray[np.integer]) -> NDArray[np.int64]:
    """Return where items of these lengths begin, and where the last ends: [N + 1]."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
