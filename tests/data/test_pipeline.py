import dataclasses
import itertools
import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.data import (
    Bucket,
    DataConfig,
    Dropped,
    Encoded,
    Pair,
    Position,
    Sentences,
    TrainingData,
    Vocabularies,
    Vocabulary,
    assign,
    cover,
    encode_evaluation,
    evaluation_batches,
    load,
    plan_buckets,
)
from jaxformer.errors import InputError

LENGTHS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=60)


def data_of(lengths, *, num_buckets=4, tokens=90, seed=0):
    """Make training data whose pair i is recognisable: source and target begin with the number 100 + i."""
    encoded = Encoded(
        Sentences.of([[100 + i] * s for i, (s, _) in enumerate(lengths)], pad_id=0),
        Sentences.of([[100 + i] * t for i, (_, t) in enumerate(lengths)], pad_id=1),
    )
    buckets = plan_buckets(
        encoded.source.lengths,
        encoded.target.lengths,
        num_buckets=num_buckets,
        tokens_per_batch=tokens,
    )
    return TrainingData(encoded, Dropped(0, 0), buckets, seed)


def epoch_of(data, epoch=0):
    return [batch for batch, _ in itertools.islice(data.batches(Position(epoch, 0)), data.batches_per_epoch)]


def numbers(batch):
    """Say which pairs a batch holds, after checking that their two sides lie together and are whole."""
    source, target = batch["source"], batch["target"]
    real = source[:, 0] != 0
    assert (real == (target[:, 0] != 1)).all()
    assert (source[real, 0] == target[real, 0]).all()
    return (source[real, 0] - 100).tolist()


def same(first, second):
    return all(np.array_equal(first[name], second[name]) for name in ("source", "target"))


def mixed_lengths(count, seed=0):
    generator = np.random.default_rng(seed)
    return list(zip(generator.integers(1, 31, count).tolist(), generator.integers(1, 31, count).tolist(), strict=True))


@settings(deadline=None, max_examples=100)
@given(
    lengths=LENGTHS, num_buckets=st.integers(1, 6), tokens=st.integers(60, 200),
    epoch=st.integers(0, 3),
)  # fmt: skip
def test_an_epoch_holds_each_pair_once_within_the_budget(lengths, num_buckets, tokens, epoch):
    """Each pair once and whole, within budget, in few shapes, padded on the right (statements 16, 60, 61 and 62)."""
    data = data_of(lengths, num_buckets=num_buckets, tokens=tokens)
    batches = epoch_of(data, epoch)
    assert sorted(number for batch in batches for number in numbers(batch)) == list(range(len(lengths)))
    for batch in batches:
        assert all(side.size <= tokens for side in batch.values())
        for row, number in enumerate(numbers(batch)):
            for name, pad, length in (("source", 0, lengths[number][0]), ("target", 1, lengths[number][1])):
                assert (batch[name][row] == [100 + number] * length + [pad] * (batch[name].shape[1] - length)).all()
        assert numbers(batch)
    assert len({(batch["source"].shape, batch["target"].shape) for batch in batches}) <= num_buckets


@settings(deadline=None, max_examples=60)
@given(lengths=LENGTHS, stop=st.integers(0, 60), seed=st.integers(0, 2**31 - 1))
def test_resuming_gives_exactly_the_rest(lengths, stop, seed):
    """From any position, through JSON, in data made anew (statement 119)."""
    position = Position()
    stream = data_of(lengths, seed=seed).batches()
    if stop:
        *_, (_, position) = itertools.islice(stream, stop)
    position = Position(**json.loads(json.dumps(dataclasses.asdict(position))))
    resumed = data_of(lengths, seed=seed).batches(position)
    for (first, at_first), (second, at_second) in itertools.islice(zip(stream, resumed, strict=False), 12):
        assert same(first, second)
        assert at_first == at_second


def test_positions_count_batches_and_epochs():
    data = data_of(mixed_lengths(40))
    per_epoch = data.batches_per_epoch
    positions = [position for _, position in itertools.islice(data.batches(), 2 * per_epoch)]
    one_after_the_other = [Position(e, b) for e in range(3) for b in range(per_epoch)]
    assert positions == one_after_the_other[1 : 2 * per_epoch + 1]


def test_the_end_of_an_epoch_is_the_start_of_the_next():
    data = data_of(mixed_lengths(40))
    first, at = next(data.batches(Position(0, data.batches_per_epoch)))
    second, at_too = next(data.batches(Position(1, 0)))
    assert same(first, second)
    assert at == at_too == Position(1, 1)


def test_an_impossible_position_is_refused_at_once():
    data = data_of(mixed_lengths(40))
    with pytest.raises(InputError, match=rf"batch 1000 of an epoch of {data.batches_per_epoch}: data or budget differ"):
        data.batches(Position(0, 1000))
    with pytest.raises(InputError, match="negative"):
        Position(-1, 0)


def test_the_order_depends_on_seed_and_epoch_alone():
    """Not on what was read before, and not on the process; each seed and epoch has its own order (statement 66)."""
    lengths = mixed_lengths(60)
    orders = {
        (seed, epoch): [numbers(batch) for batch in epoch_of(data_of(lengths, seed=seed), epoch)]
        for seed in (0, 1)
        for epoch in (0, 1, 2)
    }
    assert len({str(order) for order in orders.values()}) == 6
    data = data_of(lengths, seed=1)
    stream = data.batches()
    for epoch in (0, 1, 2):
        straight = [numbers(batch) for batch, _ in itertools.islice(stream, data.batches_per_epoch)]
        assert straight == orders[1, epoch]


def test_the_order_is_the_same_in_another_process():
    """Statement 66, with another hash seed."""
    code = (
        "import itertools, numpy as np\n"
        "from jaxformer.data import *\n"
        "pairs = load('bundled:en-de/valid', 'en', 'de')\n"
        "v = Vocabulary.train([text for pair in pairs for text in pair], 300)\n"
        "data = TrainingData.of(pairs, Vocabularies(v, v), DataConfig(tokens_per_batch=900), seed=5)\n"
        "print([b['target'].tolist() for b, _ in itertools.islice(data.batches(), 9)])\n"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(runs) == 1


def test_batches_are_not_in_the_order_of_lengths():
    """Shuffling crosses the buckets: shapes come mixed, and neighbours of an epoch part in the next (statement 67)."""
    data = data_of(mixed_lengths(2000), num_buckets=4, tokens=300)
    for epoch in (0, 1):
        shapes = [batch["source"].shape[1] + batch["target"].shape[1] for batch in epoch_of(data, epoch)]
        places = {shape: np.flatnonzero(np.array(shapes) == shape).mean() / len(shapes) for shape in set(shapes)}
        assert len(places) == 4
        # A bucket's batches lie around the middle of the epoch, not in a block of their own: the mean place of a
        # bucket is then 1/2, give or take a standard error of at most 0.06 with the 25 batches or more that each has.
        assert all(0.3 < place < 0.7 for place in places.values()), places
        assert abs(np.corrcoef(np.arange(len(shapes)), shapes)[0, 1]) < 0.3
    first, second = ({frozenset(numbers(batch)) for batch in epoch_of(data, epoch)} for epoch in (0, 1))
    assert not first & second


def test_statistics_equal_what_an_epoch_holds():
    data = data_of(mixed_lengths(100))
    batches, facts = epoch_of(data), data.statistics
    assert facts.pairs == 100
    assert facts.batches == len(batches)
    assert facts.source_tokens == sum(int((batch["source"] != 0).sum()) for batch in batches)
    assert facts.target_tokens == sum(int((batch["target"] != 1).sum()) for batch in batches)
    slots = sum(side.size for batch in batches for side in batch.values())
    assert facts.padding == pytest.approx(1 - (facts.source_tokens + facts.target_tokens) / slots)
    assert facts.buckets == data.buckets


@pytest.fixture(scope="module")
def pairs():
    return load("bundled:en-de/train", "en", "de")


@pytest.fixture(scope="module")
def vocabularies(pairs):
    shared = Vocabulary.train([text for pair in pairs for text in pair], 4000)
    return Vocabularies(shared, shared)


class TestBundled:
    def test_an_epoch_of_the_corpus(self, pairs, vocabularies):
        """All 18,315 pairs, in at most eight shapes, with little padding (statements 60, 61 and 62)."""
        config = DataConfig(vocabulary_size=4000, tokens_per_batch=2000)
        data = TrainingData.of(pairs, vocabularies, config, seed=0)
        assert data.statistics.pairs + sum(data.statistics.dropped) == 18_315
        seen = set()
        for batch in epoch_of(data):
            assert all(side.size <= 2000 for side in batch.values())
            seen.add((batch["source"].shape, batch["target"].shape))
        assert len(seen) <= 8
        assert data.statistics.padding < 0.2

    def test_validation_counts_every_pair_once(self, pairs, vocabularies):
        """In fixed order, in the shapes of training and at most one more (statements 61 and 62)."""
        data = TrainingData.of(pairs, vocabularies, DataConfig(vocabulary_size=4000, tokens_per_batch=4000), seed=0)
        valid = [*load("bundled:en-de/valid", "en", "de"), Pair("long " * 100, "x"), Pair("", "")]
        encoded = encode_evaluation(valid, vocabularies, source_eos=True)
        lengths = encoded.source.lengths, encoded.target.lengths
        buckets = cover(data.buckets, *lengths, tokens_per_batch=4000)
        assert len(buckets) == len(data.buckets) + 1
        batches = list(evaluation_batches(encoded, buckets))
        assert sorted(i for _, indices in batches for i in indices) == list(range(502))
        for batch, indices in batches:
            for row, index in enumerate(indices):
                assert vocabularies.target.decode(batch["target"][row]) == vocabularies.target.decode(
                    encoded.target[index]
                )
        assert sum(int((batch["target"] != 0).sum()) for batch, _ in batches) == len(encoded.target.tokens)
        again = list(evaluation_batches(encoded, buckets))
        assert all(same(first, second) for (first, _), (second, _) in zip(batches, again, strict=True))
        with pytest.raises(InputError, match=r"pair 501, of \d+ and \d+ tokens, fits no bucket"):
            evaluation_batches(encoded, data.buckets)

    def test_long_and_empty_pairs_are_dropped_and_counted(self, pairs, vocabularies):
        """Nothing vanishes silently (statement 62)."""
        strange = [*pairs[:50], Pair("", "x"), Pair("x", " "), Pair("long " * 300, "x")]
        config = DataConfig(vocabulary_size=4000)
        data = TrainingData.of(strange, vocabularies, config, seed=0)
        assert data.statistics.dropped == (2, 1)
        assert data.statistics.pairs == 50
        with pytest.raises(InputError, match=r"none of the 3 training pairs .*2 have an empty side, 1 more than"):
            TrainingData.of(strange[50:], vocabularies, config, seed=0)


def test_without_source_eos_an_empty_source_is_a_row_of_padding():
    encoded = Encoded(Sentences.of([[], []], pad_id=0), Sentences.of([[7, 3], [3]], pad_id=1))
    buckets = plan_buckets(encoded.source.lengths, encoded.target.lengths, num_buckets=2, tokens_per_batch=8)
    batches = list(evaluation_batches(encoded, buckets))
    assert sorted(i for _, indices in batches for i in indices) == [0, 1]
    assert all((batch["source"] == 0).all() and batch["source"].shape[1] == 1 for batch, _ in batches)


def test_one_pair_is_an_epoch():
    data = data_of([(3, 4)])
    assert data.buckets == (Bucket(3, 4, 22),)
    assert data.batches_per_epoch == 1
    assert list(assign(data.buckets, np.array([3, 4]), np.array([4, 4]))) == [0, -1]
