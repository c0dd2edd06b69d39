"""Text pairs to token ids, end to end in compact arrays."""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxformer.data.records import Pair
from jaxformer.data.vocabulary import Vocabularies, Vocabulary
from jaxformer.errors import InputError

# Tokens that are read from a mapped file at a time.
_PIECE = 1 << 20


@dataclass(frozen=True, eq=False)
class Sentences:
    """Token ids of many sentences, end to end in one array: compact, and quick to
    take batches from.
    """

    tokens: NDArray[np.integer]
    """integers [sum of lengths], in memory or mapped from a file"""
    offsets: NDArray[np.int64]
    """int64 [N + 1]: sentence i is ``tokens[offsets[i]:offsets[i + 1]]``"""
    pad_id: int
    """What :meth:`padded` fills with: the padding id of the vocabulary."""

    @classmethod
    def of(
        cls,
        sentences: Sequence[Sequence[int]],
        pad_id: int,
        *,
        first: int | None = None,
        last: int | None = None,
    ) -> Sentences:
        """Lay the sentences end to end, each with token ``first`` before it and
        ``last`` behind it where given.
        """
        added = (first is not None) + (last is not None)
        offsets = np.zeros(len(sentences) + 1, np.int64)
        np.cumsum([len(sentence) + added for sentence in sentences], out=offsets[1:])
        own = np.fromiter(itertools.chain.from_iterable(sentences), np.int32)
        if not added:
            return cls(own, offsets, pad_id)
        tokens, inside = (
            np.empty(int(offsets[-1]), np.int32),
            np.ones(int(offsets[-1]), bool),
        )
        for token, places in ((first, offsets[:-1]), (last, offsets[1:] - 1)):
            if token is not None:
                tokens[places], inside[places] = token, False
        tokens[inside] = own
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
        """Return the sentences at these indices, in this order."""
        lengths = self.lengths[indices]
        offsets = np.concatenate(
            [np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)]
        )
        # Position j of the result belongs to sentence i and lies as far from its start
        # as it did before.
        positions = np.arange(offsets[-1]) + np.repeat(
            self.offsets[indices] - offsets[:-1], lengths
        )
        return Sentences(self.tokens[positions], offsets, self.pad_id)

    def followed_by(self, others: Sentences) -> Sentences:
        """Give these sentences and then the others."""
        offsets = np.concatenate([self.offsets, self.offsets[-1] + others.offsets[1:]])
        return Sentences(
            np.concatenate([self.tokens, others.tokens]), offsets, self.pad_id
        )

    def padded(self, rows: int, length: int) -> NDArray[np.int32]:
        """Return a batch, int32 [rows, length]: the sentences padded on the right,
        then rows of padding alone.
        """
        batch = np.full((rows, length), self.pad_id, np.int32)
        batch[: len(self)][np.arange(length) < self.lengths[:, None]] = self.tokens
        return batch


@dataclass(frozen=True, eq=False)
class Encoded:
    """Pairs as token ids; pair i is ``source[i]``, ``target[i]``. Lengths count the
    end-of-sentence token.
    """

    source: Sentences
    target: Sentences

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
        """Return the pairs at these indices, in this order."""
        return Encoded(self.source.take(indices), self.target.take(indices))

    def with_replaced(self, others: Encoded, chosen: NDArray[np.bool_]) -> Encoded:
        """Give these pairs, but those of ``others`` where ``chosen`` [N] says so."""
        numbers = np.arange(len(self)) + np.where(chosen, len(self), 0)
        return Encoded(
            self.source.followed_by(others.source).take(numbers),
            self.target.followed_by(others.target).take(numbers),
        )

    @property
    def hash(self) -> str:
        """SHA-256 of the pairs, in hex; see :class:`Fingerprint`."""
        fingerprint = Fingerprint()
        fingerprint.add(self)
        return fingerprint.hex()


class Fingerprint:
    """SHA-256 over pairs as token ids, in order, however they are cut into pieces:
    what tells one text from another.
    """

    def __init__(self) -> None:
        """No pair was added yet."""
        self._parts = [hashlib.sha256() for _ in range(4)]

    def add(self, pairs: Encoded) -> None:
        """Add pairs after those that were added before."""
        for side, (tokens, lengths) in zip(
            (pairs.source, pairs.target),
            (self._parts[:2], self._parts[2:]),
            strict=True,
        ):
            for start in range(0, len(side.tokens), _PIECE):
                tokens.update(
                    side.tokens[start : start + _PIECE].astype("<i4").tobytes()
                )
            lengths.update(side.lengths.astype("<i4").tobytes())

    def hex(self) -> str:
        """Return the fingerprint of all pairs that were added."""
        return hashlib.sha256(
            b"".join(part.digest() for part in self._parts)
        ).hexdigest()


def encode(
    pairs: Sequence[Pair],
    vocabularies: Vocabularies,
    *,
    source_eos: bool,
    tag: str | None = None,
    alpha: float | None = None,
    seed: int = 0,
    threads: int = -1,
) -> Encoded:
    """Turn every pair into token ids; nothing is dropped and nothing is cut.

    Every target ends with exactly one end-of-sentence token, the source with one if
    ``source_eos``, else with none.

    Args:
        pairs: raw text.
        vocabularies: of source and target.
        source_eos: whether sources end with the end-of-sentence token.
        tag: the target language, whose tag each source begins with; None for no tag.
        alpha: draw segmentations at random, see :meth:`Vocabulary.sample_batch`; None
            for the best ones.
        seed: of the drawing.
        threads: of SentencePiece; -1 for all cores.

    Raises:
        InputError: the source vocabulary has no such tag.
    """
    source, target = vocabularies.source, vocabularies.target

    def tokens(vocabulary: Vocabulary, texts: list[str], seed: int) -> list[list[int]]:
        if alpha is None:
            return vocabulary.encode_batch(texts, threads=threads)
        return vocabulary.sample_batch(texts, alpha=alpha, seed=seed)

    return Encoded(
        Sentences.of(
            tokens(source, [pair.source for pair in pairs], 2 * seed),
            source.pad_id,
            first=None if tag is None else source.tag_id(tag),
            last=source.eos_id if source_eos else None,
        ),
        Sentences.of(
            tokens(target, [pair.target for pair in pairs], 2 * seed + 1),
            target.pad_id,
            last=target.eos_id,
        ),
    )


def encode_evaluation(
    pairs: Sequence[Pair],
    vocabularies: Vocabularies,
    *,
    source_eos: bool,
    tag: str | None = None,
    max_length: int | None = None,
) -> Encoded:
    """Turn every pair into token ids, for a loss that counts each pair once: nothing is
    dropped and nothing is cut.

    ``max_length`` is the most tokens that the model's positions allow on a side (None:
    any number), not the limit of training pairs.

    Raises:
        InputError: a sentence has more tokens than ``max_length``.
    """
    encoded = encode(pairs, vocabularies, source_eos=source_eos, tag=tag)
    if max_length is None:
        return encoded
    for side, sentences in (("source", encoded.source), ("target", encoded.target)):
        too_long = np.flatnonzero(sentences.lengths > max_length)
        if too_long.size:
            raise InputError(
                f"the {side} of pair {too_long[0] + 1} has"
                f" {sentences.lengths[too_long[0]]} tokens and the model takes"
                f" {max_length} ({too_long.size} such): shorten it, leave it out, or"
                " train a model with a larger model.max_length"
            )
    return encoded
