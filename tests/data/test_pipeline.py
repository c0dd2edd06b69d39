import dataclasses
import hashlib
import itertools
import json
import subprocess
import sys
import threading
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.data import (
    Bucket,
    DataConfig,
    Encoded,
    Pair,
    Position,
    Sentences,
    TrainingData,
    TrainingText,
    Vocabularies,
    Vocabulary,
    assign,
    cover,
    evaluation_batches,
    load,
    plan_buckets,
)
from jaxformer.data.encoding import encode_evaluation
from jaxformer.data.mixing import Share
from jaxformer.errors import InputError

LENGTHS = st.lists(
    st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=60
)


def data_of(lengths, *, num_buckets=4, tokens=90, seed=0, **options):
    """Make training data whose pair i is recognisable: source and target begin with
    the number 100 + i.
    """
    encoded = Encoded(
        Sentences.from_lists(
            [[100 + i] * s for i, (s, _) in enumerate(lengths)], pad_id=0
        ),
        Sentences.from_lists(
            [[100 + i] * t for i, (_, t) in enumerate(lengths)], pad_id=1
        ),
    )
    config = DataConfig(num_buckets=num_buckets, tokens_per_batch=tokens, **options)
    return TrainingData.from_pairs(encoded, config, seed=seed)


def epoch_of(data, epoch=0):
    return [
        batch
        for batch, _ in itertools.islice(
            data.batches(Position(epoch, 0)), len(data.plan(epoch))
        )
    ]


def numbers(batch):
    """Return which pairs a batch holds; both sides must be whole and aligned."""
    source, target = batch["source"], batch["target"]
    real = source[:, 0] != 0
    assert (real == (target[:, 0] != 1)).all()
    assert (source[real, 0] == target[real, 0]).all()
    return (source[real, 0] - 100).tolist()


def same(first, second):
    return first.keys() == second.keys() and all(
        np.array_equal(first[name], second[name]) for name in first
    )


def seen(batch):
    """Return which pairs a batch holds, packed or not, each as often as it is in it."""
    found = []
    for side, pad in (("source", 0), ("target", 1)):
        segments = batch.get(f"{side}_segments", np.broadcast_to(1, batch[side].shape))
        rows = [
            {(int(s), int(t)) for s, t in zip(segment, tokens, strict=True) if t != pad}
            for segment, tokens in zip(segments, batch[side], strict=True)
        ]
        found.append([sorted(row) for row in rows])
    assert found[0] == found[1]  # the same pairs in the same segments of the same rows
    return [token - 100 for row in found[0] for _, token in row]


def mixed_lengths(count, seed=0):
    generator = np.random.default_rng(seed)
    return list(
        zip(
            generator.integers(1, 31, count).tolist(),
            generator.integers(1, 31, count).tolist(),
            strict=True,
        )
    )


@settings(deadline=None, max_examples=40)
@given(
    lengths=LENGTHS, num_buckets=st.integers(1, 6), tokens=st.integers(60, 200),
    epoch=st.integers(0, 3),
)  # fmt: skip
def test_an_epoch_holds_each_pair_once_within_the_budget(
    lengths, num_buckets, tokens, epoch
):
    """Each pair once and whole, within budget, in few shapes, padded on the right."""
    data = data_of(lengths, num_buckets=num_buckets, tokens=tokens)
    batches = epoch_of(data, epoch)
    assert sorted(number for batch in batches for number in numbers(batch)) == list(
        range(len(lengths))
    )
    for batch in batches:
        assert all(side.size <= tokens for side in batch.values())
        for row, number in enumerate(numbers(batch)):
            for name, pad, length in (
                ("source", 0, lengths[number][0]),
                ("target", 1, lengths[number][1]),
            ):
                assert (
                    batch[name][row]
                    == [100 + number] * length + [pad] * (batch[name].shape[1] - length)
                ).all()
        assert numbers(batch)
    assert (
        len({(batch["source"].shape, batch["target"].shape) for batch in batches})
        <= num_buckets
    )


@settings(deadline=None, max_examples=30)
@given(lengths=LENGTHS, stop=st.integers(0, 60), seed=st.integers(0, 2**31 - 1))
def test_resuming_gives_exactly_the_rest(lengths, stop, seed):
    """From any position, through JSON, in data that are loaded again."""
    position = Position()
    stream = data_of(lengths, seed=seed).batches()
    if stop:
        *_, (_, position) = itertools.islice(stream, stop)
    position = Position(**json.loads(json.dumps(dataclasses.asdict(position))))
    resumed = data_of(lengths, seed=seed).batches(position)
    for (first, at_first), (second, at_second) in itertools.islice(
        zip(stream, resumed, strict=False), 12
    ):
        assert same(first, second)
        assert at_first == at_second


def test_positions_count_batches_and_epochs():
    data = data_of(mixed_lengths(40))
    per_epoch = len(data.plan(0))
    positions = [
        position for _, position in itertools.islice(data.batches(), 2 * per_epoch)
    ]
    one_after_the_other = [Position(e, b) for e in range(3) for b in range(per_epoch)]
    assert positions == one_after_the_other[1 : 2 * per_epoch + 1]


def test_the_end_of_an_epoch_is_the_start_of_the_next():
    data = data_of(mixed_lengths(40))
    first, at = next(data.batches(Position(0, len(data.plan(0)))))
    second, at_too = next(data.batches(Position(1, 0)))
    assert same(first, second)
    assert at == at_too == Position(1, 1)


def test_an_impossible_position_is_refused_at_once():
    data = data_of(mixed_lengths(40))
    with pytest.raises(
        InputError,
        match=rf"batch 1000 of an epoch of {len(data.plan(0))}: data or budget differ",
    ):
        data.batches(Position(0, 1000))
    with pytest.raises(InputError, match="negative"):
        Position(-1, 0)


def test_the_order_depends_on_seed_and_epoch_alone():
    """Not on what was read before, and not on the process; each seed and epoch has
    its own order.
    """
    lengths = mixed_lengths(60)
    orders = {
        (seed, epoch): [
            numbers(batch) for batch in epoch_of(data_of(lengths, seed=seed), epoch)
        ]
        for seed in (0, 1)
        for epoch in (0, 1, 2)
    }
    assert len({str(order) for order in orders.values()}) == 6
    data = data_of(lengths, seed=1)
    stream = data.batches()
    for epoch in (0, 1, 2):
        straight = [
            numbers(batch) for batch, _ in itertools.islice(stream, len(data.plan(0)))
        ]
        assert straight == orders[1, epoch]


@pytest.mark.parametrize(
    ("packing", "digest"), [(False, "77ea389d9ddd8d45"), (True, "22c93c270aa0cf67")]
)
def test_the_order_is_that_of_every_version(packing, digest):
    """A run of an earlier version resumes with the same batches and positions."""
    plain = data_of(mixed_lengths(200), seed=5, packing=packing, packed_length=40)
    shares = Share("a", 0, 150, 1.0), Share("b", 150, 200, 2.5)
    stream = dataclasses.replace(plain, shares=shares).batches(Position(1, 3))
    found = hashlib.sha256()
    for batch, position in itertools.islice(stream, 100):
        for name in sorted(batch):
            found.update(batch[name].astype("<i4").tobytes())
        found.update(f"{position.epoch} {position.batch}".encode())
    assert found.hexdigest().startswith(digest)


def test_the_order_is_the_same_in_another_process():
    """A process with another hash seed draws the same batches."""
    code = (
        "import itertools, numpy as np\nfrom jaxformer.data import *\npairs ="
        " list(load('bundled:en-de/valid', 'en', 'de'))\nv = Vocabulary.train([text for"
        " pair in pairs for text in pair], 300)\nconfig ="
        " DataConfig(train='bundled:en-de/valid', tokens_per_batch=900)\ndata ="
        " TrainingText.open(config).load(Vocabularies(v, v),"
        " seed=5)\nprint([b['target'].tolist() for b, _ in"
        " itertools.islice(data.batches(), 9)])\n"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(runs) == 1


def test_batches_are_not_in_the_order_of_lengths():
    """Shuffling crosses the buckets: shapes are mixed, and neighbours of an epoch
    part in the next.
    """
    data = data_of(mixed_lengths(2000), num_buckets=4, tokens=300)
    for epoch in (0, 1):
        shapes = [
            batch["source"].shape[1] + batch["target"].shape[1]
            for batch in epoch_of(data, epoch)
        ]
        places = {
            shape: np.flatnonzero(np.array(shapes) == shape).mean() / len(shapes)
            for shape in set(shapes)
        }
        assert len(places) == 4
        # A bucket's batches are not a block: their mean place in the epoch is 1/2,
        # with a standard error of at most 0.06 for the 25 batches or more of each.
        assert all(0.3 < place < 0.7 for place in places.values()), places
        assert abs(np.corrcoef(np.arange(len(shapes)), shapes)[0, 1]) < 0.3
    first, second = (
        {frozenset(numbers(batch)) for batch in epoch_of(data, epoch)}
        for epoch in (0, 1)
    )
    assert not first & second


def test_statistics_equal_what_an_epoch_holds():
    data = data_of(mixed_lengths(100))
    batches, facts = epoch_of(data), data.statistics
    assert facts.pairs == 100
    assert facts.batches == len(batches)
    assert facts.source_tokens == sum(
        int((batch["source"] != 0).sum()) for batch in batches
    )
    assert facts.target_tokens == sum(
        int((batch["target"] != 1).sum()) for batch in batches
    )
    slots = sum(side.size for batch in batches for side in batch.values())
    assert facts.padding == pytest.approx(
        1 - (facts.source_tokens + facts.target_tokens) / slots
    )
    assert facts.shapes == len(data.buckets)


@pytest.mark.parametrize("packing", [False, True])
def test_an_epoch_is_planned_once(monkeypatch, packing):
    """Its statistics and its batches share one plan; that of another epoch takes its
    place.
    """
    made, make = [], TrainingData._make_plan
    monkeypatch.setattr(
        TrainingData,
        "_make_plan",
        lambda data, epoch, store: made.append(epoch) or make(data, epoch, store),
    )
    data = data_of(mixed_lengths(40), packing=packing, packed_length=40)
    stream = data.batches()
    for _ in range(data.statistics.batches):
        next(stream)
    assert made == [0]
    next(stream)
    assert made == [0, 1]
    assert list(data._last_plan) == [1]


@settings(deadline=None, max_examples=40)
@given(
    lengths=LENGTHS,
    packing=st.booleans(),
    hosts=st.lists(st.sampled_from([1, 2, 3, 8, 32]), min_size=2, max_size=3),
    data=st.data(),
)
def test_hosts_that_change_see_each_pair_once(lengths, packing, hosts, data):
    """Disjoint shares and equal steps, also after resumes on other numbers of hosts."""
    everything = data_of(lengths, packing=packing, packed_length=40, seed=7)
    batches = len(everything.plan(2))
    stops = sorted(
        data.draw(
            st.lists(
                st.integers(0, batches),
                min_size=len(hosts) - 1,
                max_size=len(hosts) - 1,
            )
        )
    )
    found = []
    for start, stop, count in zip([0, *stops], [*stops, batches], hosts, strict=True):
        streams = [
            everything.batches(Position(2, start), host=host, hosts=count)
            for host in range(count)
        ]
        for _ in range(stop - start):
            shares, positions = zip(*(next(stream) for stream in streams), strict=True)
            assert len(set(positions)) == 1
            assert (
                len(
                    {
                        tuple(
                            sorted((name, side.shape) for name, side in share.items())
                        )
                        for share in shares
                    }
                )
                == 1
            )
            found += [number for share in shares for number in seen(share)]
    assert sorted(found) == list(range(len(lengths)))


def test_a_host_has_a_number_below_their_count():
    with pytest.raises(InputError, match="from 0 to 2, not 3"):
        data_of(mixed_lengths(40)).batches(host=3, hosts=3)


@settings(deadline=None, max_examples=20)
@given(lengths=LENGTHS, stop=st.integers(0, 40), seed=st.integers(0, 2**31 - 1))
def test_packed_data_resumes_and_holds_each_pair_once(lengths, stop, seed):
    """Packing changes the positions of pairs, not which occur; it resumes exactly."""
    first, second = (
        data_of(lengths, packing=True, packed_length=40, seed=seed) for _ in range(2)
    )
    assert sorted(
        number for batch in epoch_of(first) for number in seen(batch)
    ) == list(range(len(lengths)))
    stream, position = first.batches(), Position()
    if stop:
        *_, (_, position) = itertools.islice(stream, stop)
    for (one, at_one), (other, at_other) in itertools.islice(
        zip(stream, second.batches(position), strict=False), 9
    ):
        assert same(one, other)
        assert at_one == at_other
    assert (
        len({tuple(side.shape for side in batch.values()) for batch in epoch_of(first)})
        == 1
    )


@pytest.mark.parametrize("packing", [False, True])
def test_batches_that_are_not_full_are_left_out_if_asked(packing):
    """Every batch is then full, and no pair occurs twice; without any full batch the
    cure is named.
    """
    options = {"packing": packing, "packed_length": 40, "tokens": 200}
    whole, dropping = (
        data_of(mixed_lengths(997), **options, drop_remainder=drop)
        for drop in (False, True)
    )
    partial = {len(whole.plan(epoch)) - len(dropping.plan(epoch)) for epoch in range(8)}
    assert max(partial) > 0
    assert not packing or partial == {0, 1}
    for batch in epoch_of(dropping):
        rows = batch["source_segments"] if packing else (batch["source"] != 0)
        assert rows.any(axis=1).all()
    numbers = [number for batch in epoch_of(dropping) for number in seen(batch)]
    assert len(set(numbers)) == len(numbers) <= 997
    assert dropping.statistics.pairs == len(numbers) == len(dropping.plan(0).pairs)
    if not packing:
        with pytest.raises(
            InputError, match=r"data\.drop_remainder=True leaves no batch"
        ):
            data_of([(3, 4)], drop_remainder=True).batches()


def test_weights_say_how_often_pairs_come():
    """A pair of weight 2.5 occurs two or three times an epoch, drawn in each epoch."""
    lengths = mixed_lengths(40)
    plain = data_of(lengths)
    shares = (Share("a", 0, 30, 1.0), Share("b", 30, 40, 2.5))
    data = dataclasses.replace(plain, shares=shares)
    thirds = []
    for epoch in range(3):
        counts = np.bincount(
            [n for batch in epoch_of(data, epoch) for n in seen_twice(batch)],
            minlength=40,
        )
        assert (counts[:30] == 1).all()
        assert set(counts[30:].tolist()) == {2, 3}
        assert counts[30:].sum() == 25
        thirds.append(tuple(np.flatnonzero(counts == 3)))
    assert len(set(thirds)) > 1
    assert data.statistics.pairs == 30 + 25


def seen_twice(batch):
    """Name the pair of each row."""
    return [int(row[0]) - 100 for row in batch["source"] if row[0] != 0]


def test_memory_is_flat_and_batches_are_made_a_few_ahead():
    """The thread that makes batches stops a few ahead of who takes them."""
    data = data_of(mixed_lengths(1000), tokens=60)
    made = []

    class Counting(type(data.store)):
        def take(self, indices):
            made.append(len(indices))
            return super().take(indices)

    data = dataclasses.replace(
        data, store=Counting(data.store.source, data.store.target)
    )
    stream = data.batches()
    for taken in range(1, 40):
        next(stream)
        time.sleep(0.002)
        assert len(made) <= taken + 8
    tracemalloc.start()
    for _ in range(200):
        next(stream)
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(2 * len(data.plan(0))):
        next(stream)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 2**20


def test_an_error_of_the_thread_reaches_the_consumer():
    """At the batch that it concerns, and the thread ends."""
    data = data_of(mixed_lengths(300), tokens=60)
    wrong = set(data.plan(0).epoch.pairs(7).tolist())

    class Failing(type(data.store)):
        def take(self, indices):
            if set(indices.tolist()) == wrong:
                raise InputError("the disk is gone")
            return super().take(indices)

    data = dataclasses.replace(
        data, store=Failing(data.store.source, data.store.target)
    )
    stream = data.batches()
    assert len(list(itertools.islice(stream, 7))) == 7
    with pytest.raises(InputError, match="the disk is gone"):
        next(stream)
    assert not threads_of_batches()


def test_closing_ends_the_thread():
    stream = data_of(mixed_lengths(300), tokens=60).batches()
    next(stream)
    assert threads_of_batches()
    stream.close()
    assert not threads_of_batches()


def threads_of_batches():
    return [one for one in threading.enumerate() if one.name.startswith("batches")]


@pytest.fixture(scope="module")
def pairs():
    return list(load("bundled:en-de/train", "en", "de"))


@pytest.fixture(scope="module")
def vocabularies(pairs):
    shared = Vocabulary.train([text for pair in pairs for text in pair], 4000)
    return Vocabularies(shared, shared)


def load_training(vocabularies, train="bundled:en-de/train", **options):
    config = DataConfig(train=train, vocabulary_size=4000, **options)
    return TrainingText.open(config).load(vocabularies, seed=0)


@pytest.fixture(scope="module")
def loaded(vocabularies):
    return load_training(vocabularies, tokens_per_batch=4000)


class TestBundled:
    @pytest.mark.parametrize("options", [{"num_buckets": 12}, {"packing": True}])
    def test_an_epoch_of_the_corpus(self, loaded, options):
        """All 18,315 pairs, in few shapes, with little padding."""
        config = DataConfig(tokens_per_batch=2000, **options)
        data = TrainingData.from_pairs(loaded.store, config, seed=0)
        (counts,) = loaded.counts.values()
        assert data.statistics.pairs == counts.kept == counts.read == 18_315
        shapes = set()
        for batch in epoch_of(data):
            assert all(side.size <= 2000 for side in batch.values())
            shapes.add((batch["source"].shape, batch["target"].shape))
        assert len(shapes) <= options.get("num_buckets", 1)
        assert data.statistics.padding < (0.05 if "packing" in options else 0.14)

    def test_validation_counts_every_pair_once(self, vocabularies, loaded):
        """In fixed order, in the shapes of training and at most one more."""
        data = loaded
        valid = [
            *load("bundled:en-de/valid", "en", "de"),
            Pair("long " * 100, "x"),
            Pair("", ""),
        ]
        encoded = encode_evaluation(valid, vocabularies, source_eos=True)
        lengths = encoded.source.lengths, encoded.target.lengths
        buckets = cover(data.buckets, *lengths, tokens_per_batch=4000)
        assert len(buckets) == len(data.buckets) + 1
        batches = list(evaluation_batches(encoded, buckets))
        assert sorted(i for _, indices in batches for i in indices) == list(range(502))
        for batch, indices in batches:
            for row, index in enumerate(indices):
                assert vocabularies.target.decode(
                    batch["target"][row]
                ) == vocabularies.target.decode(encoded.target[index])
        assert sum(int((batch["target"] != 0).sum()) for batch, _ in batches) == len(
            encoded.target.tokens
        )
        again = list(evaluation_batches(encoded, buckets))
        assert all(
            same(first, second)
            for (first, _), (second, _) in zip(batches, again, strict=True)
        )
        with pytest.raises(
            InputError, match=r"pair 501, of \d+ and \d+ tokens, fits no bucket"
        ):
            evaluation_batches(encoded, data.buckets)

    def test_long_and_empty_pairs_are_dropped_and_counted(
        self, pairs, vocabularies, tmp_path
    ):
        """Nothing vanishes silently."""
        strange = [*pairs[:50], Pair("", "x"), Pair("x", " "), Pair("long " * 300, "x")]

        def write(chosen):
            for side in (0, 1):
                (tmp_path / f"t{side}").write_text(
                    "".join(pair[side] + "\n" for pair in chosen), "utf-8"
                )
            return f"text:{tmp_path}/t0,{tmp_path}/t1"

        data = load_training(vocabularies, write(strange))
        (counts,) = data.counts.values()
        assert (counts.read, counts.dropped) == (53, {"empty": 2, "max_length": 1})
        assert data.statistics.pairs == 50
        with pytest.raises(
            InputError,
            match=(
                r"every one of 3 pairs was dropped, 2 by empty side, 1 by too many"
                r" tokens"
            ),
        ):
            load_training(vocabularies, write(strange[50:]))


def test_without_source_eos_an_empty_source_is_a_row_of_padding():
    encoded = Encoded(
        Sentences.from_lists([[], []], pad_id=0),
        Sentences.from_lists([[7, 3], [3]], pad_id=1),
    )
    buckets = plan_buckets(
        encoded.source.lengths,
        encoded.target.lengths,
        num_buckets=2,
        tokens_per_batch=8,
    )
    batches = list(evaluation_batches(encoded, buckets))
    assert sorted(i for _, indices in batches for i in indices) == [0, 1]
    assert all(
        (batch["source"] == 0).all() and batch["source"].shape[1] == 1
        for batch, _ in batches
    )


def test_one_pair_is_an_epoch():
    data = data_of([(3, 4)])
    assert data.buckets == (Bucket(3, 4, 22),)
    assert len(data.plan(0)) == 1
    assert list(assign(data.buckets, np.array([3, 4]), np.array([4, 4]))) == [0, -1]
