"""Length buckets: a few static shapes of batches, chosen for little padding.

A batch is ``{"source": int32 [B, S], "target": int32 [B, T]}``, padded on the right
with each vocabulary's padding id. Texts of one side are ``target`` alone. A bucket is
one such shape; each pair goes to the smallest bucket that holds it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from jaxformer.data.store import Encoded
from jaxformer.errors import InputError

Batch: TypeAlias = Mapping[str, NDArray[np.int32]]
"""``source``: int32 [B, S] and ``target``: int32 [B, T], or ``target`` alone."""

Lengths: TypeAlias = NDArray[np.integer]
"""Tokens of each sentence, integers [N]."""

Box: TypeAlias = tuple[int, int]
"""Source and target length of a future bucket, in cells of the histogram."""

# The histogram of lengths has at most this many cells a side; longer lengths are
# counted in steps of several tokens.
_CELLS = 256


class Bucket(NamedTuple):
    """The shape of a batch: ``rows`` pairs of at most these lengths, in tokens."""

    source_length: int
    target_length: int
    rows: int

    @property
    def slots(self) -> int:
        """Token slots of a batch, both sides together."""
        return self.rows * (self.source_length + self.target_length)


def plan_buckets(
    source_lengths: Lengths,
    target_lengths: Lengths,
    *,
    num_buckets: int,
    tokens_per_batch: int,
    shape_multiple: int = 1,
    max_length: int | None = None,
    labels: bool = False,
) -> tuple[Bucket, ...]:
    """Choose at most ``num_buckets`` buckets with little padding for these lengths,
    smallest first.

    One bucket holds the longest source and the longest target. Add the bucket that
    saves most slots, repeatedly; then replace each in turn by the best one, until
    nothing saves more. The same lengths give the same buckets.

    Lengths round up to multiples of ``shape_multiple`` and rows round down. A length
    whose multiple exceeds ``max_length`` or the budget stays as it is, and so do rows
    fewer than the multiple.

    Args:
        source_lengths: tokens of each source sentence.
        target_lengths: tokens of each target sentence.
        num_buckets: most buckets.
        tokens_per_batch: most slots on each side of a batch.
        shape_multiple: divides the lengths and the rows.
        max_length: most tokens of a rounded length; None: no limit.
        labels: whether targets are a number of labels, which is not rounded.

    Raises:
        InputError: there is no pair, or ``tokens_per_batch`` does not hold the longest.
    """
    source_lengths, target_lengths = map(np.asarray, (source_lengths, target_lengths))
    check_any(source_lengths)
    largest = int(source_lengths.max()), int(target_lengths.max())
    # No cell is smaller than the multiple: distinct boxes round to distinct shapes.
    step = shape_multiple * -(-max(largest) // (_CELLS * shape_multiple))
    cells = -(-source_lengths // step), -(-target_lengths // step)
    histogram = np.zeros((cells[0].max() + 1, cells[1].max() + 1), np.int64)
    np.add.at(histogram, cells, 1)
    boxes = [
        (step * source, step * target)
        for source, target in _choose_boxes(histogram, num_buckets)
    ]
    most = min(tokens_per_batch, max_length or tokens_per_batch)
    multiples = shape_multiple, 1 if labels else shape_multiple
    rounded = {
        tuple(map(round_up, shrunk, multiples, (most, most)))
        for shrunk in _shrink(boxes, source_lengths, target_lengths)
    }
    buckets = [
        Bucket(
            source,
            target,
            _rows(max(source, target), tokens_per_batch, shape_multiple),
        )
        for source, target in rounded
    ]
    return tuple(sorted(buckets, key=_by_size))


def check_any(lengths: Lengths) -> None:
    """Refuse to make batches of nothing.

    Raises:
        InputError: there is no pair.
    """
    if not len(lengths):
        raise InputError(
            "no pair is left to make batches of: the data set has no sentences of"
            " usable length"
        )


def cover(
    buckets: Sequence[Bucket],
    source_lengths: Lengths,
    target_lengths: Lengths,
    *,
    tokens_per_batch: int,
    shape_multiple: int = 1,
    max_length: int | None = None,
    labels: bool = False,
) -> tuple[Bucket, ...]:
    """Return the buckets, and one more if they do not hold every pair.

    So evaluation uses the shapes of training, and at most one of its own. The options
    are those of :func:`plan_buckets`.

    Raises:
        InputError: ``tokens_per_batch`` does not hold one of the pairs.
    """
    left = assign(buckets, source_lengths, target_lengths) < 0
    if not left.any():
        return tuple(buckets)
    extra = plan_buckets(
        source_lengths[left],
        target_lengths[left],
        num_buckets=1,
        tokens_per_batch=tokens_per_batch,
        shape_multiple=shape_multiple,
        max_length=max_length,
        labels=labels,
    )
    return tuple(sorted({*buckets, *extra}, key=_by_size))


def assign(
    buckets: Sequence[Bucket], source_lengths: Lengths, target_lengths: Lengths
) -> NDArray[np.int16]:
    """Return the index of the smallest bucket that holds each pair, int16 [N]; -1 if
    none does. Leave such pairs out of the order of :func:`group`.

    ``buckets`` are sorted, smallest first, as :func:`plan_buckets` returns them.
    """
    assigned = np.full(len(source_lengths), -1, np.int16)
    for index in reversed(range(len(buckets))):
        fits = (source_lengths <= buckets[index].source_length) & (
            target_lengths <= buckets[index].target_length
        )
        assigned[fits] = index
    return assigned


@dataclass(frozen=True, eq=False)
class Epoch:
    """Which pairs each batch holds: batch n has the shape ``shapes[n]`` and the pairs
    of ``pairs(n)``.

    Compact: a large corpus has tens of millions of pairs.
    """

    indices: NDArray[np.integer]
    """Numbers of pairs, batch after batch [N]."""
    starts: NDArray[np.int64]
    """Where each batch begins in ``indices``, int64 [M]."""
    stops: NDArray[np.int64]
    """Where each ends, int64 [M]."""
    shapes: NDArray[np.int64]
    """Index of each batch's bucket, int64 [M]."""

    def __len__(self) -> int:
        return len(self.starts)

    def pairs(self, number: int) -> NDArray[np.integer]:
        """Return the numbers of the pairs of a batch."""
        return self.indices[self.starts[number] : self.stops[number]]

    def take(self, numbers: NDArray[np.integer]) -> Epoch:
        """Return these batches, in this order."""
        parts = (self.starts, self.stops, self.shapes)
        return Epoch(self.indices, *(part[numbers] for part in parts))


def group(
    assigned: NDArray[np.integer], order: NDArray[np.integer], buckets: Sequence[Bucket]
) -> Epoch:
    """Fill the buckets with pairs in this order.

    Batches are sorted by bucket, smallest first. Pairs that do not fill a last batch
    move to the next larger bucket if that takes fewer slots than rows of padding.

    Args:
        assigned: index of each pair's bucket, [N].
        order: numbers of pairs, each as often as it is to occur.
        buckets: smallest first.

    Raises:
        InputError: a pair of ``order`` fits no bucket.
    """
    without = order[assigned[order] < 0]
    if len(without):
        raise InputError(
            f"pair {without[0] + 1} fits no bucket: add one with"
            " jaxformer.data.cover, or leave the pair out of the order"
        )
    by_bucket = order[np.argsort(assigned[order], kind="stable")]
    ends = np.cumsum(np.bincount(assigned[order], minlength=len(buckets)))
    members = [[part] for part in np.split(by_bucket, ends[:-1])]
    indices, starts, stops, shapes = [], [], [], []
    total = 0
    for index, bucket in enumerate(buckets):
        own = np.concatenate(members[index])
        left = len(own) % bucket.rows
        larger = _next_larger(index, buckets)
        if left and larger and left * _price(buckets[larger]) < bucket.slots:
            members[larger].insert(0, own[len(own) - left :])
            own = own[: len(own) - left]
        begins = np.arange(0, len(own), bucket.rows)
        indices.append(own)
        starts.append(total + begins)
        stops.append(total + np.minimum(begins + bucket.rows, len(own)))
        shapes.append(np.full(len(begins), index))
        total += len(own)
    return Epoch(*map(np.concatenate, (indices, starts, stops, shapes)))


def make_batch(pairs: Encoded, bucket: Bucket) -> Batch:
    """Return pairs as a batch of the bucket's shape; other rows are padding, which
    has no weight in the loss.
    """
    lengths = {"source": bucket.source_length, "target": bucket.target_length}
    return {
        name: side.padded(bucket.rows, lengths[name])
        for name, side in pairs.sides.items()
    }


def _next_larger(index: int, buckets: Sequence[Bucket]) -> int | None:
    """Return the smallest larger bucket that holds all pairs of this one."""
    source, target, _ = buckets[index]
    for number, other in enumerate(buckets[index + 1 :], index + 1):
        if other.source_length >= source and other.target_length >= target:
            return number
    return None


def _price(bucket: Bucket) -> int:
    """Return the slots of one pair."""
    return bucket.source_length + bucket.target_length


def _by_size(bucket: Bucket) -> tuple[int, Bucket]:
    """Return a key that sorts by the slots of one pair, without ties."""
    return _price(bucket), bucket


def _choose_boxes(histogram: NDArray[np.int64], num_boxes: int) -> list[Box]:
    """Choose boxes for a histogram [source length + 1, target length + 1]; the first
    holds everything.
    """
    boxes: list[Box] = [(histogram.shape[0] - 1, histogram.shape[1] - 1)]
    while len(boxes) < num_boxes:
        box, saved = _best_box(histogram, boxes)
        if not saved:
            return boxes
        boxes.append(box)
    improved = True
    while improved:
        improved = False
        for index in range(1, len(boxes)):
            others = boxes[:index] + boxes[index + 1 :]
            more = _prices(histogram.shape, others) - _prices(histogram.shape, boxes)
            box, saved = _best_box(histogram, others)
            if saved > int((histogram * more).sum()):
                boxes[index] = box
                improved = True
    return boxes


def _best_box(histogram: NDArray[np.int64], boxes: Sequence[Box]) -> tuple[Box, int]:
    """Return the box that saves most slots in addition to these, and how many."""
    prices = _prices(histogram.shape, boxes)
    own_price = np.add.outer(*map(np.arange, histogram.shape))
    saved = np.zeros_like(histogram)
    for price in np.unique(prices):
        # A new box takes those pairs of this price that it holds.
        taken = (histogram * (prices == price)).cumsum(0).cumsum(1)
        saved += taken * np.maximum(price - own_price, 0)
    source, target = divmod(int(saved.argmax()), histogram.shape[1])
    return (source, target), int(saved[source, target])


def _prices(shape: tuple[int, ...], boxes: Sequence[Box]) -> NDArray[np.int64]:
    """Return the slots of a pair in the smallest box that holds it, by lengths."""
    prices = np.full(shape, np.iinfo(np.int64).max)
    for source, target in boxes:
        held = prices[: source + 1, : target + 1]
        np.minimum(held, source + target, out=held)
    return prices


def _shrink(
    boxes: Sequence[Box], source_lengths: Lengths, target_lengths: Lengths
) -> set[Box]:
    """Shrink each box to its pairs, in tokens, and the first to the longest of all."""
    smallest_first = sorted({Bucket(*box, 0) for box in boxes}, key=_by_size)
    assigned = assign(smallest_first, source_lengths, target_lengths)
    largest = [box[:2] == tuple(boxes[0]) for box in smallest_first]
    own = [assigned == index for index in np.unique(assigned) if not largest[index]]
    return {
        (
            max(1, int(source_lengths[members].max())),
            max(1, int(target_lengths[members].max())),
        )
        for members in [assigned >= 0, *own]  # all pairs, and those of each box
    }


def round_up(number: int, multiple: int, most: int) -> int:
    """Return the next multiple, or the number itself if that exceeds ``most``."""
    rounded = -(-number // multiple) * multiple
    return rounded if rounded <= most else number


def round_down(number: int, multiple: int) -> int:
    """Return the multiple before, or the number itself if that is 0."""
    return number // multiple * multiple or number


def _rows(longest: int, tokens_per_batch: int, shape_multiple: int) -> int:
    rows = tokens_per_batch // longest
    if not rows:
        raise InputError(
            f"data.tokens_per_batch={tokens_per_batch} does not hold a pair of"
            f" {longest} tokens: set it to at least {longest}, or lower data.max_length"
        )
    return round_down(rows, shape_multiple)
