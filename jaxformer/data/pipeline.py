"""The stream of batches that trains a model, in an order that can be taken up again anywhere; and the evaluation's."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxformer.data.batching import Batch, Bucket, assign, group, make_batch, plan_buckets
from jaxformer.data.config import DataConfig
from jaxformer.data.sources import Pair
from jaxformer.data.transforms import Dropped, Encoded, encode_training
from jaxformer.data.vocabulary import Vocabularies
from jaxformer.errors import InputError


@dataclass(frozen=True)
class Position:
    """A place in the training data: the next batch to come. ``dataclasses.asdict`` makes it JSON, ``**`` takes it back.

    Raises:
        InputError: a number is negative.
    """

    epoch: int = 0
    batch: int = 0

    def __post_init__(self) -> None:
        if self.epoch < 0 or self.batch < 0:
            raise InputError(f"a position in the data has no negative numbers: {self}")


@dataclass(frozen=True)
class Statistics:
    """What an epoch of training data holds, for the log."""

    pairs: int
    dropped: Dropped
    source_tokens: int
    target_tokens: int
    batches: int
    padding: float
    """Share of the slots of an epoch, on both sides together, that hold padding: 0 to 1."""
    buckets: tuple[Bucket, ...]


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Training pairs in batches of a few static shapes, without end, each pair once an epoch.

    The order depends on the seed and the epoch alone: pairs are shuffled, fill the buckets in that order, and then the
    batches of all buckets are shuffled together, so that lengths come mixed.
    """

    encoded: Encoded
    dropped: Dropped
    buckets: tuple[Bucket, ...]
    seed: int

    @classmethod
    def of(cls, pairs: Sequence[Pair], vocabularies: Vocabularies, config: DataConfig, *, seed: int) -> TrainingData:
        """Tokenise the pairs, drop those that cannot be used, and choose the buckets.

        Raises:
            InputError: no pair is left, or the token budget does not hold the longest for each device.
        """
        encoded, dropped = encode_training(
            pairs, vocabularies, source_eos=config.source_eos, max_length=config.max_length
        )
        if not len(encoded):
            raise InputError(
                f"none of the {len(pairs):,} training pairs can be used ({dropped.empty:,} have an empty side, "
                f"{dropped.too_long:,} more than data.max_length={config.max_length} tokens)"
            )
        buckets = plan_buckets(
            encoded.source.lengths,
            encoded.target.lengths,
            num_buckets=config.num_buckets,
            tokens_per_batch=config.tokens_per_batch,
        )
        return cls(encoded, dropped, buckets, seed)

    def batches(self, position: Position = Position()) -> Iterator[tuple[Batch, Position]]:
        """Give the batches from this position on, epoch after epoch, each with the position that follows it.

        Raises:
            InputError: the epoch has fewer batches than the position says: the data or the budget has changed.
        """
        if position.batch > self.batches_per_epoch:
            raise InputError(
                f"the position in the data is batch {position.batch} of an epoch of {self.batches_per_epoch}: "
                "data or budget differ from those of the run"
            )
        return self._from(position)

    def _from(self, position: Position) -> Iterator[tuple[Batch, Position]]:
        epoch, start = position.epoch, position.batch
        while True:
            plan = self._epoch(epoch)
            for number in range(start, len(plan)):
                bucket, indices = plan[number]
                last = number + 1 == len(plan)
                following = Position(epoch + 1, 0) if last else Position(epoch, number + 1)
                yield make_batch(self.encoded, indices, self.buckets[bucket]), following
            epoch, start = epoch + 1, 0

    def _epoch(self, epoch: int) -> list[tuple[int, NDArray[np.int64]]]:
        """Order an epoch: for each batch the index of its bucket and the indices of its pairs."""
        generator = np.random.default_rng([self.seed, epoch])
        batches = group(self._assigned, generator.permutation(len(self.encoded)), self.buckets)
        return [batches[index] for index in generator.permutation(len(batches))]

    @functools.cached_property
    def _assigned(self) -> NDArray[np.int64]:
        return assign(self.buckets, self.encoded.source.lengths, self.encoded.target.lengths)

    @functools.cached_property
    def _batches_by_bucket(self) -> list[int]:
        pairs = np.bincount(self._assigned, minlength=len(self.buckets))
        return [-(-int(count) // bucket.rows) for count, bucket in zip(pairs, self.buckets, strict=True)]

    @functools.cached_property
    def hash(self) -> str:
        """SHA-256 over all pairs as token ids, in hex: what tells one text from another."""
        digest = hashlib.sha256()
        for side in (self.encoded.source, self.encoded.target):
            digest.update(side.tokens.tobytes())
            digest.update(side.offsets.tobytes())
        return digest.hexdigest()

    @property
    def batches_per_epoch(self) -> int:
        """Number of batches in every epoch."""
        return sum(self._batches_by_bucket)

    @property
    def statistics(self) -> Statistics:
        """What an epoch holds."""
        source, target = len(self.encoded.source.tokens), len(self.encoded.target.tokens)
        slots = sum(n * bucket.slots for n, bucket in zip(self._batches_by_bucket, self.buckets, strict=True))
        return Statistics(
            pairs=len(self.encoded),
            dropped=self.dropped,
            source_tokens=source,
            target_tokens=target,
            batches=self.batches_per_epoch,
            padding=1 - (source + target) / slots,
            buckets=self.buckets,
        )


def evaluation_batches(encoded: Encoded, buckets: Sequence[Bucket]) -> Iterator[tuple[Batch, NDArray[np.int64]]]:
    """Give every pair once, in a fixed order, each batch with the indices of the pairs in its first rows.

    ``buckets`` hold every pair: :func:`jaxformer.data.cover` sees to that.

    Raises:
        InputError: a pair fits no bucket.
    """
    assigned = assign(buckets, encoded.source.lengths, encoded.target.lengths)
    if (assigned < 0).any():
        index = int(np.flatnonzero(assigned < 0)[0])
        raise InputError(
            f"pair {index + 1}, of {len(encoded.source[index])} and {len(encoded.target[index])} tokens, fits no "
            "bucket: add one with jaxformer.data.cover"
        )
    return (
        (make_batch(encoded, indices, buckets[bucket]), indices)
        for bucket, indices in group(assigned, np.arange(len(encoded)), buckets)
    )
