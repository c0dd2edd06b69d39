"""Where tokenised pairs lie: in memory, in a file that is mapped into it, or end to
end in several such places.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from jaxformer.data.transforms import Encoded, Fingerprint, Sentences
from jaxformer.errors import InputError


class Store(Protocol):
    """Tokenised pairs by number: all lengths at hand, the tokens of any pairs when
    asked for.
    """

    @property
    def source_lengths(self) -> NDArray[np.int32]:
        """Tokens of each source sentence, int32 [N]."""
        ...

    @property
    def target_lengths(self) -> NDArray[np.int32]:
        """Tokens of each target sentence, int32 [N]."""
        ...

    @property
    def hash(self) -> str:
        """SHA-256 of the pairs, in hex."""
        ...

    def __len__(self) -> int: ...

    def take(self, indices: NDArray[np.integer]) -> Encoded:
        """Return the pairs at these indices, in this order."""
        ...


class Spool:
    """Takes tokenised pairs piece by piece into temporary files, so that memory holds
    their lengths alone.

    To be used in a ``with`` statement. The files have no name and go with who uses the
    pairs; ``TMPDIR`` says where they lie.

    Raises:
        InputError: that folder is not there; Python would take another one without a
            word.
    """

    def __init__(self, pad_id: tuple[int, int], size: int) -> None:
        """Begin with no pairs; ``pad_id`` is that of source and target, ``size``
        that of the larger vocabulary.
        """
        folder = os.environ.get("TMPDIR")
        if folder and not os.path.isdir(folder):
            raise InputError(
                f"TMPDIR={folder} is no folder: make it, or name another one"
            )
        self._pad_id = pad_id
        self._dtype = np.dtype(token_dtype(size))
        self._open = contextlib.ExitStack()
        files = (tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115 - the stack closes them
        self._files: list[BinaryIO] = [self._open.enter_context(file) for file in files]
        self._lengths: tuple[list[NDArray[np.int32]], list[NDArray[np.int32]]] = (
            [],
            [],
        )

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def add(self, pairs: Encoded) -> None:
        """Add pairs after those that were added before.

        Raises:
            InputError: the disk is full.
        """
        for file, side, lengths in zip(
            self._files, (pairs.source, pairs.target), self._lengths, strict=True
        ):
            try:
                file.write(np.ascontiguousarray(side.tokens, self._dtype).data)
            except OSError as error:
                raise InputError(
                    f"cannot write the tokens of the text to {tempfile.gettempdir()}:"
                    f" {error.strerror}; make room there, or name another folder by"
                    " TMPDIR"
                ) from error
            lengths.append(side.lengths)

    def finish(self) -> Encoded:
        """Return all pairs."""
        return Encoded(*(self._finish(side) for side in range(2)))

    def _finish(self, side: int) -> Sentences:
        file = self._files[side]
        file.flush()
        offsets = offsets_of(
            np.concatenate([np.zeros(0, np.int32), *self._lengths[side]])
        )
        # An empty file cannot be mapped. The mapping keeps the file after it is closed.
        tokens = (
            np.memmap(file, self._dtype, "r")
            if offsets[-1]
            else np.zeros(0, self._dtype)
        )
        return Sentences(tokens, offsets, self._pad_id[side])


@dataclass(frozen=True, eq=False)
class Joined:
    """Several stores end to end; make one by :meth:`of`."""

    stores: tuple[Store, ...]
    source_lengths: NDArray[np.int32]
    target_lengths: NDArray[np.int32]

    @classmethod
    def of(cls, stores: Sequence[Store]) -> Store:
        """Put stores end to end; one alone stays as it is."""
        if len(stores) == 1:
            return stores[0]
        return cls(
            tuple(stores),
            np.concatenate([store.source_lengths for store in stores]),
            np.concatenate([store.target_lengths for store in stores]),
        )

    def __len__(self) -> int:
        return len(self.source_lengths)

    @property
    def hash(self) -> str:
        """SHA-256 of the pairs, in hex; see :class:`Fingerprint`. That of prepared
        folders is made of theirs.
        """
        fingerprint = Fingerprint()
        for store in self.stores:
            if not isinstance(store, Encoded):
                break
            fingerprint.add(store)
        else:
            return fingerprint.hex()
        return hashlib.sha256(
            " ".join(store.hash for store in self.stores).encode()
        ).hexdigest()

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        return offsets_of(np.array([len(store) for store in self.stores]))

    def take(self, indices: NDArray[np.integer]) -> Encoded:
        """Return the pairs at these indices, in this order."""
        owners = np.searchsorted(self._starts, indices, side="right") - 1
        order = np.argsort(owners, kind="stable")
        asked = np.unique(owners) if len(owners) else [0]
        parts = [
            self.stores[owner].take(indices[owners == owner] - self._starts[owner])
            for owner in asked
        ]
        # The parts lie in the order of their stores: put each pair back to where it was
        # asked for.
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        return join(parts).take(places)


def join(parts: Sequence[Encoded]) -> Encoded:
    """Put pairs end to end; there is at least one part."""
    sides = []
    for side in ("source", "target"):
        sentences = [getattr(part, side) for part in parts]
        lengths = np.concatenate([one.lengths for one in sentences])
        tokens = np.concatenate([one.tokens for one in sentences])
        sides.append(Sentences(tokens, offsets_of(lengths), sentences[0].pad_id))
    return Encoded(*sides)


def offsets_of(lengths: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return where things of these lengths begin when they lie end to end, and where
    the last ends: int64 [N + 1].
    """
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def token_dtype(size: int) -> str:
    """Name the smallest integers that hold the ids of a vocabulary of this size,
    little-endian.
    """
    return "<u2" if size <= 1 << 16 else "<i4"
