"""Pack several pairs into a row: one static shape of batches with little padding.

A packed batch is ``{"source": int32 [B, S], "target": int32 [B, T], "source_segments":
int32 [B, S], "target_segments": int32 [B, T]}``. Segments number the pairs of a row
from 1 and are 0 at padding. Positions follow from the segments, see
:func:`jaxformer.functional.positions.segment_positions`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxformer.data.batching import (
    Batch,
    Bucket,
    Lengths,
    check_any,
    round_down,
    round_up,
)
from jaxformer.data.store import Encoded, Sentences
from jaxformer.errors import InputError

# Windows that are packed at the same time, to share the cost of numpy calls.
_TOGETHER = 64
# Share of a window's tokens that is spread over its rows before the shortest pairs
# fill them.
_SPREAD = 0.85
# Rows that are added at a time where a window needs more than expected.
_MORE = 16
# The cost of a row that does not hold a pair.
_MOST = np.iinfo(np.int32).max
# Most pairs of the trial that estimates the number of rows.
_TRIAL = 1 << 17
# Share of rows that an epoch may need beyond the trial: each order packs differently.
_SPARE = 0.005


class RowShape(Bucket):
    """The shape of every packed batch: ``rows`` rows, each of so many slots a side."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Which pairs share a row: row i holds ``pairs[offsets[i]:offsets[i + 1]]``.

    Compact: a large corpus has tens of millions of pairs.
    """

    pairs: NDArray[np.int32]
    """Numbers of pairs, row after row, int32 [N]."""
    offsets: NDArray[np.int32]
    """Where each row begins in ``pairs``, and where the last ends: int32 [R + 1]."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> NDArray[np.int32]:
        """How many pairs each row holds, int32 [R]."""
        return np.diff(self.offsets)

    def part(self, start: int, stop: int) -> Rows:
        """Return the rows from ``start`` to before ``stop``, or to the last.

        Batch n of an epoch is ``rows.part(n * shape.rows, (n + 1) * shape.rows)``.
        """
        offsets = self.offsets[min(start, len(self)) : stop + 1]
        return Rows(self.pairs[offsets[0] : offsets[-1]], offsets - offsets[0])


def plan_rows(
    source_lengths: Lengths,
    target_lengths: Lengths,
    *,
    tokens_per_batch: int,
    packed_length: int | None = 256,
    shape_multiple: int = 1,
) -> RowShape:
    """Choose the one shape of packed batches for sentences of these lengths.

    The lengths of the sides are proportional to their mean lengths, so that both fill.
    The longer is ``packed_length``, or the longest pair if that is more. A trial
    estimates the rows of an epoch; as few batches as the budget allows share them
    evenly. Lengths and rows are rounded as those of
    :func:`~jaxformer.data.plan_buckets`.

    Args:
        source_lengths: tokens of each source sentence, [N].
        target_lengths: tokens of each target sentence, [N].
        tokens_per_batch: most slots on each side of a batch.
        packed_length: slots of a row, on its longer side. Longer rows waste less
            padding and cost more attention. None: four times the longer mean, at most
            256.
        shape_multiple: divides the lengths and the rows.

    Raises:
        InputError: there are no pairs, or ``tokens_per_batch`` does not hold a row.
    """
    check_any(source_lengths)
    sides = (source_lengths, target_lengths)
    means = [max(float(lengths.mean()), 1.0) for lengths in sides]
    longest = [max(int(lengths.max()), 1) for lengths in sides]
    pairs = max(
        (packed_length or min(4 * max(means), 256, tokens_per_batch)) / max(means),
        *(most / mean for most, mean in zip(longest, means, strict=True)),
    )
    row = [
        round_up(max(most, round(pairs * mean)), shape_multiple, tokens_per_batch)
        for most, mean in zip(longest, means, strict=True)
    ]
    most_rows = tokens_per_batch // max(row)
    if not most_rows:
        raise InputError(
            f"data.tokens_per_batch={tokens_per_batch} does not hold a packed row of"
            f" {max(row)} tokens: set it to at least {max(row)}, or lower"
            " data.packed_length or data.max_length"
        )
    most_rows = round_down(most_rows, shape_multiple)
    needed = _needed_rows(
        source_lengths, target_lengths, RowShape(row[0], row[1], most_rows)
    )
    even = -(-needed // -(-needed // most_rows))
    return RowShape(row[0], row[1], round_up(even, shape_multiple, most_rows))


def pack(
    source_lengths: Lengths,
    target_lengths: Lengths,
    order: NDArray[np.integer],
    shape: RowShape,
    *,
    window: int = 2048,
) -> Rows:
    """Pack pairs into rows: every pair of ``order`` once, with few empty slots.

    The order is cut into windows of about ``window`` pairs. Each window is packed into
    as few rows as could be enough, its longest pairs first. Most go where the tighter
    side keeps most room, so that both sides of all rows fill evenly; the last, short
    ones go where they leave least room. If no row holds a pair, another is opened. The
    rows of a window are in the order of their longest pairs, so a shuffled order gives
    shuffled rows. The result is deterministic; a million pairs take a second or two.

    Args:
        source_lengths: tokens of each source sentence, [N].
        target_lengths: tokens of each target sentence, [N].
        order: numbers of pairs, each as often as it is to occur.
        shape: of the rows.
        window: pairs that are packed together. More waste less and take longer; 2,048
            leave about 2 % of the slots empty.

    Raises:
        InputError: a pair is longer than a row.
    """
    _check_fit(source_lengths, target_lengths, order, shape)
    windows = max(1, round(len(order) / window))
    edges = np.arange(windows + 1) * len(order) // windows
    pairs, sizes = [np.zeros(0, np.int32)], [np.zeros(1, np.int32)]
    for first in range(0, windows if len(order) else 0, _TOGETHER):
        packed = _pack_windows(
            source_lengths,
            target_lengths,
            order,
            edges[first : first + _TOGETHER + 1],
            shape,
        )
        pairs.append(packed[0])
        sizes.append(packed[1])
    return Rows(np.concatenate(pairs), np.cumsum(np.concatenate(sizes), dtype=np.int32))


def make_packed_batch(
    pairs: Encoded, sizes: NDArray[np.integer], shape: Bucket
) -> Batch:
    """Return pairs as a packed batch; other rows are padding, which has no weight in
    the loss.

    Args:
        pairs: the pairs of the batch, row after row, such as
            ``encoded.take(rows.pairs)`` of a part of the rows.
        sizes: how many of them each row holds, [at most ``shape.rows``].
        shape: of the batch.
    """
    lengths = {"source": shape.source_length, "target": shape.target_length}
    laid = {
        name: _lay(side, sizes, shape.rows, lengths[name])
        for name, side in pairs.sides.items()
    }
    return {
        **{name: tokens for name, (tokens, _) in laid.items()},
        **{f"{name}_segments": segments for name, (_, segments) in laid.items()},
    }


def _lay(
    sentences: Sentences, sizes: NDArray[np.integer], rows: int, length: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return tokens and segments of one side, int32 [rows, length]."""
    ends = np.cumsum(sizes)
    filled = np.zeros(rows, np.int64)
    filled[: len(sizes)] = sentences.offsets[ends] - sentences.offsets[ends - sizes]
    # The tokens are in the order of the slots.
    inside = np.arange(length) < filled[:, None]
    tokens = np.full((rows, length), sentences.pad_id, np.int32)
    tokens[inside] = sentences.tokens
    numbers = np.arange(1, len(sentences) + 1) - np.repeat(ends - sizes, sizes)
    segments = np.zeros((rows, length), np.int32)
    segments[inside] = np.repeat(numbers, sentences.lengths)
    return tokens, segments


def _needed_rows(
    source_lengths: Lengths, target_lengths: Lengths, shape: RowShape
) -> int:
    """Estimate the rows that an epoch takes in any order, with some to spare."""
    generator, count = np.random.default_rng(0), len(source_lengths)
    order = (
        generator.permutation(count)
        if count <= _TRIAL
        else generator.integers(0, count, _TRIAL)
    )
    rows = len(pack(source_lengths, target_lengths, order, shape))
    return math.ceil(rows * count / len(order) * (1 + _SPARE))


def _check_fit(
    source_lengths: Lengths,
    target_lengths: Lengths,
    order: NDArray[np.integer],
    shape: RowShape,
) -> None:
    """Refuse a pair that no row holds."""
    source, target, _ = shape
    too_long = (source_lengths > source) | (target_lengths > target)
    if too_long.any() and too_long[order].any():
        pair = order[too_long[order]][0]
        raise InputError(
            f"pair {pair + 1} has {source_lengths[pair]} and {target_lengths[pair]}"
            f" tokens and a packed row holds {source} and {target}: raise"
            " data.packed_length, or lower data.max_length"
        )


def _pack_windows(
    source_lengths: Lengths,
    target_lengths: Lengths,
    order: NDArray[np.integer],
    edges: NDArray[np.int64],
    shape: RowShape,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Pack the windows between these edges of the order; return their pairs row after
    row, and the sizes of the rows.
    """
    # One line a window. Those that are a pair shorter end with one that has no tokens
    # and goes into no row.
    places = edges[:-1, None] + np.arange(np.diff(edges).max())
    real = places < edges[1:, None]
    pairs = order[np.minimum(places, len(order) - 1)].astype(np.int32)
    source, target = (
        np.where(real, lengths[pairs], 0).astype(np.int32)
        for lengths in (source_lengths, target_lengths)
    )
    share = source * np.int64(shape.target_length) + target * np.int64(
        shape.source_length
    )
    longest_first = np.argsort(np.where(real, -share, 1), axis=1, kind="stable")
    source, target, pairs, places, real = (
        np.take_along_axis(array, longest_first, axis=1)
        for array in (source, target, pairs, places, real)
    )
    row = _choose_rows(source, target, shape)
    counts = row.max(axis=1) + 1
    row = (row + (np.cumsum(counts) - counts)[:, None])[real]
    pairs, places = pairs[real], places[real]
    # Sort rows by the place of their first, longest pair; drop rows without a pair.
    _, first, row = np.unique(row, return_index=True, return_inverse=True)
    by_row = np.argsort(places[first][row], kind="stable")
    sizes = np.bincount(row)[np.argsort(places[first])]
    return pairs[by_row], sizes.astype(np.int32)


def _choose_rows(
    source: NDArray[np.int32], target: NDArray[np.int32], shape: RowShape
) -> NDArray[np.int64]:
    """Choose rows for pairs [G, P], one pair after another in each of G windows at
    once; return them, int64 [G, P].
    """
    windows = np.arange(len(source))
    # Lengths in units that make a row of either side as long as that of the other.
    unit = (
        np.int32 if 2 * shape.source_length * shape.target_length < _MOST else np.int64
    )
    full = unit(shape.source_length * shape.target_length)
    source, target = (
        source * unit(shape.target_length),
        target * unit(shape.source_length),
    )
    tokens = np.cumsum(source + target, axis=1, dtype=np.int64)
    spread = tokens <= _SPREAD * tokens[:, -1:]
    # As few rows as could be enough; more are opened if none holds a pair.
    enough = -(-np.maximum(source.sum(1, np.int64), target.sum(1, np.int64)) // full)
    closed = np.arange(enough.max() + _MORE) >= enough[:, None]
    source_room, target_room = (np.full(closed.shape, full) for _ in range(2))
    rows = np.empty(source.shape, np.int64)
    for index in range(source.shape[1]):
        source_left = source_room - source[:, index, None]
        target_left = target_room - target[:, index, None]
        tighter = np.minimum(source_left, target_left)
        cost = np.where(spread[:, index, None], -tighter, source_left + target_left)
        cost[closed] = _MOST - 1
        cost[tighter < 0] = _MOST
        rows[:, index] = chosen = cost.argmin(axis=1)
        source_room[windows, chosen] -= source[:, index]
        target_room[windows, chosen] -= target[:, index]
        closed[windows, chosen] = False
        if not closed[:, -1].all():
            more = ((0, 0), (0, _MORE))
            source_room, target_room = (
                np.pad(room, more, constant_values=full)
                for room in (source_room, target_room)
            )
            closed = np.pad(closed, more, constant_values=True)
    return rows
