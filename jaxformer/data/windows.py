"""Rows of equal length, cut from texts that follow one another."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxformer.data.store import Encoded, Sentences

# Separates this generator from those of the order of pairs and of their choice.
_STREAM = 2


@dataclass(frozen=True, eq=False)
class Windows(Sentences):
    """Windows over texts, which stay where they are.

    Texts of one data set are a circle: what follows the last is the first. So windows
    may begin anywhere and hold every token once.
    """

    starts: NDArray[np.int64]
    """Where each window begins in ``tokens``, int64 [N]."""
    sizes: NDArray[np.int32]
    """Tokens of each, int32 [N]."""
    circles: NDArray[np.int64]
    """Where the circle of each begins, and how many tokens it has, int64 [N, 2]."""

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> NDArray[np.integer]:
        return self.take(np.array([index])).tokens

    @functools.cached_property
    def lengths(self) -> NDArray[np.int32]:
        """Tokens in each window, int32 [N]."""
        return self.sizes

    def take(self, indices: NDArray[np.integer]) -> Sentences:
        """Return the windows at these indices, in this order, in memory."""
        sizes = self.sizes[indices]
        offsets = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(sizes, out=offsets[1:])
        begins, counts = (np.repeat(x, sizes) for x in self.circles[indices].T)
        places = np.arange(offsets[-1])
        places += np.repeat(self.starts[indices] - offsets[:-1], sizes) - begins
        return Sentences(self.tokens[begins + places % counts], offsets, self.pad_id)

    def padded(self, rows: int, length: int) -> NDArray[np.int32]:
        """Return a batch, int32 [rows, length], padded on the right."""
        return self.take(np.arange(len(self))).padded(rows, length)


def cut_windows(
    texts: Encoded,
    sizes: Sequence[int],
    window: int,
    shifts: Sequence[int] | NDArray[np.integer] | None = None,
) -> tuple[Encoded, list[int]]:
    """Divide texts of one side, one after another, into windows; each token is in one.

    Args:
        texts: of one side.
        sizes: how many of them each data set has; no window has text of two.
        window: tokens of each; the last of a data set has what is left.
        shifts: where in its circle the first window of each data set begins; None: at
            its first token.

    Returns:
        The windows, and how many each data set has: as many for all shifts.
    """
    side = texts.target
    edges = side.offsets[np.concatenate([[0], np.cumsum(sizes)]).astype(int)]
    starts, lengths, circles = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], []
    for number, (begin, end) in enumerate(itertools.pairwise(edges)):
        within = np.arange(0, end - begin, window)
        starts.append(begin + within + (0 if shifts is None else int(shifts[number])))
        lengths.append(np.minimum(window, end - begin - within))
        circles.append(np.full((len(within), 2), (begin, end - begin), np.int64))
    found = Windows(
        side.tokens,
        side.offsets,
        side.pad_id,
        np.concatenate(starts),
        np.concatenate(lengths).astype(np.int32),
        np.concatenate([np.zeros((0, 2), np.int64), *circles]),
    )
    return Encoded(found, found, texts.hash), [len(part) for part in circles]


def cut_epoch(
    texts: Encoded, sizes: Sequence[int], window: int, seed: int, epoch: int
) -> Encoded:
    """Divide texts as :func:`cut_windows` does, at places drawn for an epoch."""
    generator = np.random.default_rng([seed, epoch, _STREAM])
    shifts = generator.integers(window, size=len(sizes))
    return cut_windows(texts, sizes, window, shifts)[0]


def cut_with_stride(
    texts: Encoded, window: int, stride: int
) -> tuple[Encoded, NDArray[np.int32]]:
    """Return windows over texts that overlap, to score each token once, with more
    before it.

    Args:
        texts: of one side.
        window: tokens of each, fewer of the last.
        stride: from the beginning of a window to that of the next; ``window`` or less.

    Returns:
        The windows, and how many tokens at the beginning of each are only read, since
        the window before has scored them: int32 [N].
    """
    side = texts.target
    total = len(side.tokens)
    starts = np.arange(0, max(total - window, 0) + stride, stride, dtype=np.int64)
    read = np.full(len(starts), window - stride, np.int32)
    read[:1] = 0
    sizes = np.minimum(window, total - starts).astype(np.int32)
    kept = sizes > read
    circles = np.tile(np.array([0, total], np.int64), (int(kept.sum()), 1))
    found = Windows(
        *(side.tokens, side.offsets, side.pad_id),
        *(starts[kept], sizes[kept], circles),
    )
    return Encoded(found, found, texts.hash), read[kept]
