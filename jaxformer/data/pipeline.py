"""Batches for training, in an order that resumes at any position; and for evaluation.

Every host plans the same batches for all hosts, from the lengths of the pairs only, and
makes its own rows of each. So hosts make the same number of steps, see each pair once
together, and a run may continue with another number of hosts.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from jaxformer.data.batching import (
    Batch,
    Bucket,
    Epoch,
    assign,
    group,
    make_batch,
    plan_buckets,
)
from jaxformer.data.cleaning import Counts
from jaxformer.data.config import DataConfig
from jaxformer.data.encoding import map_ahead
from jaxformer.data.mixing import Share, choose_pairs
from jaxformer.data.packing import Rows, RowShape, make_packed_batch, pack, plan_rows
from jaxformer.data.store import Encoded
from jaxformer.errors import InputError

# Batches that are made before the consumer asks for them: enough to hide a slow read.
_AHEAD = 4


@dataclass(frozen=True)
class Position:
    """A place in the training data: the next batch to come. ``dataclasses.asdict``
    makes it JSON, ``**`` takes it back.
    """

    epoch: int = 0
    batch: int = 0


@dataclass(frozen=True)
class Statistics:
    """What an epoch of training data holds, for the log."""

    pairs: int
    source_tokens: int
    """0 where texts have one side, the target."""
    target_tokens: int
    batches: int
    padding: float
    """Share of the slots of an epoch, on both sides together, that hold padding: 0
    to 1.
    """
    shapes: int
    """Number of distinct shapes of batches."""


Resample: TypeAlias = Callable[[int, Callable[[], bool]], Encoded]
"""Returns the pairs in the segmentation of an epoch, or as many windows; asks now and
then whether to stop.
"""


@dataclass(frozen=True, eq=False)
class Plan:
    """The batches of an epoch, in the shapes of buckets or packed."""

    store: Encoded
    shapes: Sequence[Bucket]
    """The shape of each batch."""
    rows: Epoch | Rows
    """The pairs of each batch, one a row, or packed."""
    continuing: NDArray[np.bool_] | None = None
    """Which tokens continue a word, where batches say so."""

    def __len__(self) -> int:
        return len(self.shapes)

    @property
    def pairs(self) -> NDArray[np.integer]:
        """Numbers of the pairs of all batches."""
        if isinstance(self.rows, Rows):
            return self.rows.pairs
        parts = [self.rows.pairs(number) for number in range(len(self))]
        return np.concatenate([np.zeros(0, np.int32), *parts])

    def batch(self, number: int, host: int = 0, hosts: int = 1) -> Batch:
        """Make one host's rows of a batch, as many as on all hosts.

        With ``continuing`` a batch has ``continues``, 1 where a token of the text
        continues a word.
        """
        batch = self._batch(number, host, hosts)
        if self.continuing is not None:
            side = batch.get("source", batch["target"])
            known = np.minimum(side, len(self.continuing) - 1)  # padding may lie beyond
            batch = {**batch, "continues": self.continuing[known].astype(np.int32)}
        return batch

    def _batch(self, number: int, host: int, hosts: int) -> Batch:
        shape = self.shapes[number]
        own = -(-shape.rows // hosts)
        start, stop, own_shape = host * own, (host + 1) * own, shape._replace(rows=own)
        if isinstance(self.rows, Epoch):
            pairs = self.rows.pairs(number)[start:stop]
            return make_batch(self.store.take(pairs), own_shape)
        whole = self.rows.part(number * shape.rows, (number + 1) * shape.rows)
        part = whole.part(start, stop)
        return make_packed_batch(self.store.take(part.pairs), part.sizes, own_shape)


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Training pairs in batches of a few static shapes, without end, each pair once an
    epoch.

    The order depends only on the seed and the epoch. Pairs are shuffled and fill
    buckets or rows in that order; then the batches of all buckets are shuffled.
    """

    store: Encoded
    shares: tuple[Share, ...]
    shape: tuple[Bucket, ...] | RowShape
    """Buckets, smallest first; or the one shape of packed rows."""
    seed: int
    drop_remainder: bool = False
    counts: Mapping[str, Counts] = field(default_factory=dict)
    """What cleaning read and dropped, by data set."""
    resample: Resample | None = None
    """Returns the same pairs in the segmentation of an epoch; None: all epochs have
    the same.
    """
    continuing: NDArray[np.bool_] | None = None
    """Which tokens continue a word, where batches are to say so, bool [V]."""
    _last_plan: dict[int, Plan] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def from_pairs(
        cls,
        store: Encoded,
        config: DataConfig,
        *,
        seed: int,
        shares: Sequence[Share] | None = None,
        counts: Mapping[str, Counts] | None = None,
        resample: Resample | None = None,
        continuing: NDArray[np.bool_] | None = None,
    ) -> TrainingData:
        """Choose the shapes of the batches for these pairs.

        Args:
            store: the pairs.
            config: how batches are made.
            seed: of the order.
            shares: how often the pairs occur in an epoch; None: each once.
            counts: what cleaning dropped before.
            resample: returns the pairs in the segmentation of each epoch.
            continuing: which tokens continue a word, where batches are to say so.

        Raises:
            InputError: there is no pair, or the token budget does not hold the longest.
        """
        lengths = store.source_lengths, store.target_lengths
        if config.packs:
            shape = plan_rows(
                *lengths,
                tokens_per_batch=config.tokens_per_batch,
                packed_length=config.packed_length,
                shape_multiple=config.shape_multiple,
            )
        else:
            shape = plan_buckets(
                *lengths,
                num_buckets=1 if config.window else config.num_buckets,
                tokens_per_batch=config.tokens_per_batch,
                shape_multiple=config.shape_multiple,
                max_length=config.max_length,
                labels=config.labels_per_text is not None,
            )
        return cls(
            store,
            (Share("", 0, len(store), 1.0),) if shares is None else tuple(shares),
            shape,
            seed,
            config.drop_remainder,
            counts or {},
            resample,
            continuing,
        )

    def batches(
        self, position: Position = Position(), *, host: int = 0, hosts: int = 1
    ) -> Generator[tuple[Batch, Position], None, None]:
        """Return the batches from this position on, epoch after epoch, each with the
        position that follows it.

        Threads make a few batches ahead and, from the middle of an epoch on, the plan
        of the next; their errors are raised here. ``close()`` ends them. It does not
        wait for a plan. An epoch without a batch is skipped.

        Args:
            position: the first batch.
            host: this host's number. Each host gets the same number of rows, padded
                where there are not enough pairs.
            hosts: number of hosts; a run may continue with another number.

        Raises:
            InputError: the epoch has fewer batches than the position says: the data or
                the budget has changed.
        """
        plan = self.plan(position.epoch)
        if position.batch > len(plan):
            raise InputError(
                f"the position in the data is batch {position.batch} of an epoch of"
                f" {len(plan)}: data or budget differ from those of the run"
            )
        self._first_plan(position.epoch)
        return self._stream(plan, position, host, hosts)

    def _stream(
        self, plan: Plan, position: Position, host: int, hosts: int
    ) -> Generator[tuple[Batch, Position], None, None]:
        epoch, start = position.epoch, position.batch
        stopped = threading.Event()
        # More threads would make batches no faster: they hold Python's lock.
        batch_maker = ThreadPoolExecutor(1, "batches")
        planner = ThreadPoolExecutor(1, "plan")
        try:
            while True:
                following = functools.cache(
                    lambda later=epoch + 1: planner.submit(
                        self._make_plan, later, stopped.is_set
                    )
                )
                make = functools.partial(plan.batch, host=host, hosts=hosts)
                made = map_ahead(batch_maker, make, range(start, len(plan)), _AHEAD)
                for number, batch in enumerate(made, start):
                    if number >= len(plan) // 2:
                        following()
                    if number + 1 < len(plan):
                        yield batch, Position(epoch, number + 1)
                    else:
                        yield batch, Position(epoch + 1)
                epoch, start = epoch + 1, 0
                plan = following().result()
                self._last_plan.clear()
        finally:
            stopped.set()
            planner.shutdown(wait=False)
            batch_maker.shutdown(cancel_futures=True)

    def _first_plan(self, first: int) -> Plan:
        """Return the plan of the first epoch, from this one on, that has a batch."""
        for epoch in range(first, first + 1_000):
            if len(plan := self.plan(epoch)):
                return plan
        if self.drop_remainder:
            raise InputError(
                "data.drop_remainder=True leaves no batch, since no batch is full: set"
                " it to False"
            )
        raise InputError(
            "the weights of data.train leave no pair in 1,000 epochs: give larger ones"
        )

    def plan(self, epoch: int) -> Plan:
        """Plan an epoch.

        The last plan is kept: the statistics and the batches of an epoch share it.
        """
        planned = self._last_plan.get(epoch)
        if planned is None:
            self._last_plan.clear()
            planned = self._last_plan[epoch] = self._make_plan(epoch)
        return planned

    def _make_plan(self, epoch: int, stop: Callable[[], bool] = lambda: False) -> Plan:
        pairs = self.store if self.resample is None else self.resample(epoch, stop)
        generator = np.random.default_rng([self.seed, epoch])
        order = generator.permutation(
            choose_pairs(self.shares, seed=self.seed, epoch=epoch)
        )
        if isinstance(self.shape, RowShape):
            rows = pack(pairs.source_lengths, pairs.target_lengths, order, self.shape)
            if self.drop_remainder:
                rows = rows.part(0, len(rows) // self.shape.rows * self.shape.rows)
            shapes = [self.shape] * -(-len(rows) // self.shape.rows)
            return Plan(pairs, shapes, rows, self.continuing)
        assigned = assign(self.shape, pairs.source_lengths, pairs.target_lengths)
        batches = group(assigned, order, self.shape)
        if self.drop_remainder:
            rows = np.array([bucket.rows for bucket in self.shape])
            full = batches.stops - batches.starts == rows[batches.shapes]
            batches = batches.take(np.flatnonzero(full))
        batches = batches.take(generator.permutation(len(batches)))
        shapes = [self.shape[index] for index in batches.shapes]
        return Plan(pairs, shapes, batches, self.continuing)

    def blanks(self, position: Position, steps: int) -> Iterator[Batch]:
        """Yield a batch of padding in each shape of so many batches, at most of an
        epoch, from this position on, in their order.
        """
        none = np.zeros(0, np.int32)
        if isinstance(self.shape, RowShape):
            shapes, rows = (self.shape,), Rows(none, np.zeros(1, np.int32))
        else:
            shapes = self.plan(position.epoch).shapes[position.batch :][:steps]
            rows = Epoch(none, *[np.zeros(1, np.int64)] * 3)
        for shape in dict.fromkeys(shapes):
            yield Plan(self.store, (shape,), rows, self.continuing).batch(0)

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """The buckets, smallest first; none where rows are packed."""
        return () if isinstance(self.shape, RowShape) else self.shape

    @property
    def hash(self) -> str:
        """SHA-256 of all pairs as token ids, in hex."""
        return self.store.hash

    @functools.cached_property
    def statistics(self) -> Statistics:
        """What the first epoch with a batch holds. With fractional weights others
        differ by a few pairs.

        Raises:
            InputError: there is no batch.
        """
        # The segmentation of an epoch would need all text to be read again.
        best = (
            self if self.resample is None else dataclasses.replace(self, resample=None)
        )
        plan = best._first_plan(0)
        pairs = plan.store
        source = int(pairs.source_lengths[plan.pairs].sum(dtype=np.int64))
        target = int(pairs.target_lengths[plan.pairs].sum(dtype=np.int64))
        slots = sum(shape.slots for shape in plan.shapes)
        if "source" not in pairs.sides:
            source, slots = 0, slots // 2
        return Statistics(
            pairs=len(plan.pairs),
            source_tokens=source,
            target_tokens=target,
            batches=len(plan),
            padding=1 - (source + target) / slots,
            shapes=1 if isinstance(self.shape, RowShape) else len(self.shape),
        )


def evaluation_batches(
    encoded: Encoded, shape: Sequence[Bucket] | RowShape
) -> Iterator[tuple[Batch, NDArray[np.integer]]]:
    """Return every pair once, in a fixed order; each batch comes with the indices of
    its pairs, which are in its first rows, one a row or packed.

    ``shape`` must hold every pair, see :func:`jaxformer.data.cover`.

    Raises:
        InputError: a pair does not fit.
    """
    lengths = encoded.source_lengths, encoded.target_lengths
    order = np.arange(len(encoded))
    if isinstance(shape, RowShape):
        rows = pack(*lengths, order, shape)
        plan = Plan(encoded, [shape] * -(-len(rows) // shape.rows), rows)
        return (
            (plan.batch(number), rows.part(start, start + shape.rows).pairs)
            for number, start in enumerate(range(0, len(rows), shape.rows))
        )
    epoch = group(assign(shape, *lengths), order, shape)
    return (
        (make_batch(encoded.take(indices), shape[bucket]), indices)
        for indices, bucket in zip(
            map(epoch.pairs, range(len(epoch))), epoch.shapes, strict=True
        )
    )
