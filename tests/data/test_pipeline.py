import dataclasses
import hashlib
import itertools
import json
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.data import Encoded, Sentences, cover
from jaxformer.data.config import DataConfig
from jaxformer.data.mixing import Share
from jaxformer.data.pipeline import Position, TrainingData, evaluation_batches
from jaxformer.errors import InputError

PAIR = st.tuples(st.integers(1, 30), st.integers(1, 30))
LENGTHS = st.lists(PAIR, min_size=1, max_size=60)


def encoded_of(lengths):
    """Make pairs of which every token names the pair: 100 + its index."""
    sides = [
        [[100 + i] * pair[side] for i, pair in enumerate(lengths)] for side in (0, 1)
    ]
    return Encoded(
        *(Sentences.from_lists(side, pad_id=i) for i, side in enumerate(sides))
    )


def data_of(lengths, *, num_buckets=4, tokens=90, seed=0, **options):
    options = {"packing": False, "packed_length": 40, **options}
    config = DataConfig(num_buckets=num_buckets, tokens_per_batch=tokens, **options)
    return TrainingData.from_pairs(encoded_of(lengths), config, seed=seed)


def mixed_lengths(count):
    generator = np.random.default_rng(0)
    sides = [generator.integers(1, 31, count).tolist() for _ in range(2)]
    return list(zip(*sides, strict=True))


def take(stream, count):
    return list(itertools.islice(stream, count))


def epoch_of(data, epoch=0):
    return [
        batch for batch, _ in take(data.batches(Position(epoch)), len(data.plan(epoch)))
    ]


def seen(batch):
    """Return the pairs of a batch, packed or not; both sides are aligned."""
    found = []
    for side, pad in (("source", 0), ("target", 1)):
        segments = batch.get(f"{side}_segments", np.ones_like(batch[side]))
        rows = [
            sorted({(s, t) for s, t in zip(*row, strict=True) if t != pad})
            for row in zip(segments.tolist(), batch[side].tolist(), strict=True)
        ]
        found.append(rows)
    assert found[0] == found[1]
    return [token - 100 for row in found[0] for _, token in row]


def seen_in(batches):
    return [number for batch in batches for number in seen(batch)]


@settings(deadline=None, max_examples=40)
@given(
    lengths=LENGTHS,
    buckets=st.integers(1, 6),
    tokens=st.integers(60, 200),
    epoch=st.integers(0, 3),
)
def test_an_epoch_holds_each_pair_once_within_the_budget(
    lengths, buckets, tokens, epoch
):
    """Batches have few shapes and are padded on the right."""
    data = data_of(lengths, num_buckets=buckets, tokens=tokens)
    batches = epoch_of(data, epoch)
    assert sorted(seen_in(batches)) == list(range(len(lengths)))
    assert len({batch["source"].shape for batch in batches}) <= buckets
    for batch in batches:
        assert all(side.size <= tokens for side in batch.values())
        assert seen(batch)
        for side, name in enumerate(("source", "target")):
            for row, number in zip(batch[name], seen(batch), strict=False):
                own = [100 + number] * lengths[number][side]
                assert row.tolist() == own + [side] * (len(row) - len(own))


@settings(deadline=None, max_examples=40)
@given(
    lengths=LENGTHS,
    packing=st.booleans(),
    stop=st.integers(0, 60),
    seed=st.integers(0, 2**31 - 1),
)
def test_resuming_continues_exactly(lengths, packing, stop, seed):
    """From any position, through JSON, in data that are loaded again."""
    first, second = (data_of(lengths, packing=packing, seed=seed) for _ in range(2))
    stream, position = first.batches(), Position()
    if stop:
        *_, (_, position) = itertools.islice(stream, stop)
    position = Position(**json.loads(json.dumps(dataclasses.asdict(position))))
    pairs = zip(stream, second.batches(position), strict=False)
    for (one, at_one), (other, at_other) in itertools.islice(pairs, 10):
        np.testing.assert_equal(one, other)
        assert at_one == at_other
    if packing:
        epoch = epoch_of(first)
        assert sorted(seen_in(epoch)) == list(range(len(lengths)))
        assert len({batch["source"].shape for batch in epoch}) == 1


def test_positions_count_batches_and_epochs():
    """The end of an epoch is the start of the next; other positions are refused."""
    data = data_of(mixed_lengths(40))
    size = len(data.plan(0))
    positions = [position for _, position in take(data.batches(), 2 * size)]
    assert positions == [
        *(Position(0, batch) for batch in range(1, size)),
        *(Position(1, batch) for batch in range(size)),
        Position(2, 0),
    ]
    (first, at), (second, at_too) = (
        next(data.batches(position)) for position in (Position(0, size), Position(1, 0))
    )
    np.testing.assert_equal(first, second)
    assert at == at_too == Position(1, 1)
    with pytest.raises(InputError, match=rf"batch 1000 of an epoch of {size}: data or"):
        data.batches(Position(0, 1000))


@pytest.mark.parametrize(
    ("packing", "digest"), [(False, "77ea389d9ddd8d45"), (True, "22c93c270aa0cf67")]
)
def test_the_order_is_that_of_every_version(packing, digest):
    """A run of an earlier version resumes with the same batches and positions."""
    plain = data_of(mixed_lengths(200), seed=5, packing=packing)
    shares = Share("a", 0, 150, 1.0), Share("b", 150, 200, 2.5)
    stream = dataclasses.replace(plain, shares=shares).batches(Position(1, 3))
    found = hashlib.sha256()
    for batch, position in itertools.islice(stream, 100):
        for name in sorted(batch):
            found.update(batch[name].astype("<i4").tobytes())
        found.update(f"{position.epoch} {position.batch}".encode())
    assert found.hexdigest().startswith(digest)


@pytest.mark.parametrize("packing", [False, True])
def test_the_shapes_that_follow_are_known_ahead(packing):
    """In the order in which they come, each once, in batches of padding."""
    data = data_of(mixed_lengths(200), packing=packing)
    position = Position(1, 3 * (not packing))
    following = [batch for batch, _ in take(data.batches(position), 5)]
    blanks = [*data.blanks(position, 5)]
    expected, found = (
        [tuple(rows.shape for rows in batch.values()) for batch in batches]
        for batches in (following, blanks)
    )
    assert found == [*dict.fromkeys(expected)]
    assert not any(seen_in(blanks))


def test_batches_are_not_in_the_order_of_lengths():
    """Each bucket's batches are spread over the epoch, and the next epoch groups other
    pairs.
    """
    data = data_of(mixed_lengths(2000), tokens=300)
    first, second = (epoch_of(data, epoch) for epoch in (0, 1))
    sizes = np.array([sum(side.shape[1] for side in b.values()) for b in first])
    assert len(set(sizes.tolist())) == 4
    for size in set(sizes.tolist()):
        # Expected 0.5 with a standard error below 0.06.
        assert 0.3 < np.flatnonzero(sizes == size).mean() / len(sizes) < 0.7
    groups = [{frozenset(seen(batch)) for batch in epoch} for epoch in (first, second)]
    assert not groups[0] & groups[1]


@settings(deadline=None, max_examples=40)
@given(
    lengths=LENGTHS,
    packing=st.booleans(),
    hosts=st.lists(st.sampled_from([1, 2, 3, 8, 32]), min_size=2, max_size=3),
    data=st.data(),
)
def test_hosts_that_change_see_each_pair_once(lengths, packing, hosts, data):
    """Disjoint shares and equal steps, also after resumes on other numbers of hosts."""
    everything = data_of(lengths, packing=packing, seed=7)
    batches = len(everything.plan(2))
    stop = st.integers(0, batches)
    stops = sorted(data.draw(stop) for _ in hosts[1:])
    found = []
    for start, end, count in zip([0, *stops], [*stops, batches], hosts, strict=True):
        at = Position(2, start)
        streams = [everything.batches(at, host=i, hosts=count) for i in range(count)]
        for _ in range(end - start):
            shares, positions = zip(*map(next, streams), strict=True)
            sizes = {tuple(side.shape for side in one.values()) for one in shares}
            assert len(set(positions)) == len(sizes) == 1
            found += seen_in(shares)
    assert sorted(found) == list(range(len(lengths)))


@pytest.mark.parametrize("packing", [False, True])
def test_batches_that_are_not_full_are_left_out_if_asked(packing):
    """Every batch is then full, and no pair occurs twice."""
    whole, dropping = (
        data_of(mixed_lengths(997), packing=packing, tokens=200, drop_remainder=drop)
        for drop in (False, True)
    )
    partial = {len(whole.plan(epoch)) - len(dropping.plan(epoch)) for epoch in range(8)}
    assert max(partial) > 0
    assert not packing or partial == {0, 1}
    batches = epoch_of(dropping)
    assert all((batch["source"] != 0).any(axis=1).all() for batch in batches)
    numbers = seen_in(batches)
    assert len(set(numbers)) == len(numbers) <= 997
    assert dropping.statistics.pairs == len(numbers) == len(dropping.plan(0).pairs)


def test_an_epoch_without_batches_is_refused():
    """The line names the key to change."""
    with pytest.raises(InputError, match=r"data\.drop_remainder=True leaves no batch"):
        data_of([(3, 4)], drop_remainder=True).batches()
    light = dataclasses.replace(data_of([(3, 4)]), shares=(Share("a", 0, 1, 1e-9),))
    for call in (light.batches, lambda: light.statistics):
        with pytest.raises(
            InputError, match=r"the weights of data\.train leave no pair in"
        ):
            call()


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("weight", [0.003, 0.007, 0.02, 0.05])
def test_an_epoch_without_pairs_is_skipped(packing, weight):
    """Over the epochs the pairs are as many as the weight says, and training continues
    exactly from every position.
    """
    whole = data_of(mixed_lengths(60), packing=packing)
    data = dataclasses.replace(whole, shares=(Share("a", 0, 60, weight),))
    expected = take(data.batches(), 8)
    last = expected[-1][1]
    assert last.epoch > 8 * (60 * weight < 0.5)
    assert len(seen_in(batch for batch, _ in expected)) == round(
        60 * weight * last.epoch
    )
    for number, (_, position) in enumerate(expected[:-1], 1):
        (batch, following) = next(data.batches(position))
        assert following == expected[number][1]
        np.testing.assert_equal(batch, expected[number][0])
    assert data.statistics.pairs >= 1


def with_take(data, take):
    """Replace how pairs are read."""
    reader = type("Reader", (Encoded,), {"take": take})
    return dataclasses.replace(data, store=reader(data.store.source, data.store.target))


def threads_of_batches():
    return [
        one for one in threading.enumerate() if one.name.startswith(("batches", "plan"))
    ]


def test_errors_and_closing_end_the_thread():
    """An error of the thread is raised at the batch that it concerns."""
    data = data_of(mixed_lengths(300), tokens=60)
    wrong = set(data.plan(0).rows.pairs(7).tolist())

    def failing(store, indices):
        if set(indices.tolist()) == wrong:
            raise InputError("the disk is gone")
        return Encoded.take(store, indices)

    stream = with_take(data, failing).batches()
    assert len(take(stream, 7)) == 7
    with pytest.raises(InputError, match="the disk is gone"):
        next(stream)
    assert not threads_of_batches()
    stream = data.batches()
    next(stream)
    assert threads_of_batches()
    stream.close()
    assert not threads_of_batches()


def test_evaluation_counts_every_pair_once():
    """In fixed order, in the shapes of training and at most one more; an empty source
    is a row of padding.
    """
    data = data_of(mixed_lengths(200))
    encoded = encoded_of([*mixed_lengths(50), (0, 3), (40, 2)])
    lengths = encoded.source_lengths, encoded.target_lengths
    buckets = cover(data.buckets, *lengths, tokens_per_batch=90)
    assert len(buckets) == len(data.buckets) + 1
    batches = list(evaluation_batches(encoded, buckets))
    assert sorted(i for _, indices in batches for i in indices) == list(range(52))
    for batch, indices in batches:
        for row, index in enumerate(indices):
            for name, side in (("source", encoded.source), ("target", encoded.target)):
                tokens = side[index].tolist()
                padding = [side.pad_id] * (batch[name].shape[1] - len(tokens))
                assert batch[name][row].tolist() == tokens + padding
    again = evaluation_batches(encoded, buckets)
    np.testing.assert_equal(list(again), batches)
    with pytest.raises(InputError, match="pair 52 fits no bucket: add one with"):
        evaluation_batches(encoded, data.buckets)
