"""Several pairs in a row: each once, none over the edge, little left empty."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.data.packing import Rows, RowShape, make_packed_batch, pack, plan_rows
from jaxformer.data.store import Encoded, Sentences
from jaxformer.errors import InputError

PAIRS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40)), max_size=120)


def arrays(lengths):
    return tuple(
        np.array([pair[side] for pair in lengths], np.int32) for side in range(2)
    )


def drawn(count, longest, seed=0):
    """Draw lengths as translations have them: skewed, and similar on both sides."""
    generator = np.random.default_rng(seed)
    source = np.clip(generator.lognormal(2.3, 0.6, count), 1, longest).astype(np.int32)
    return source, np.clip(
        source * generator.lognormal(0.1, 0.3, count), 1, longest
    ).astype(np.int32)


def members(rows):
    """Return the pairs of each row."""
    return [
        rows.pairs[start:stop].tolist()
        for start, stop in zip(rows.offsets, rows.offsets[1:], strict=False)
    ]


def padding(rows, source, target, shape):
    """Return the share of an epoch's slots that hold no token, the last batch's empty
    rows among them.
    """
    tokens = int(source[rows.pairs].sum() + target[rows.pairs].sum())
    return 1 - tokens / (-(-len(rows) // shape.rows) * shape.slots)


@settings(deadline=None, max_examples=60)
@given(
    lengths=PAIRS,
    source_length=st.integers(40, 90),
    target_length=st.integers(40, 90),
    window=st.integers(1, 150),
    seed=st.integers(0, 99),
)
def test_each_pair_lies_once_in_a_row_that_holds_it(
    lengths, source_length, target_length, window, seed
):
    """Nothing is lost, nothing occurs twice, no row is empty or overfull on a side, for
    any window, and the same order packs the same way again.
    """
    source, target = arrays(lengths)
    order = np.random.default_rng(seed).permutation(len(lengths))
    shape = RowShape(source_length, target_length, 4)
    rows = pack(source, target, order, shape, window=window)
    packed = members(rows)
    assert sorted(pair for row in packed for pair in row) == list(range(len(lengths)))
    assert len(packed) == len(rows)
    for row in packed:
        assert row
        assert source[row].sum() <= source_length
        assert target[row].sum() <= target_length
    again = pack(source, target, order, shape, window=window)
    np.testing.assert_array_equal(again.pairs, rows.pairs)
    np.testing.assert_array_equal(again.offsets, rows.offsets)
    assert rows.pairs.dtype == rows.offsets.dtype == np.int32


@settings(deadline=None, max_examples=40)
@given(lengths=PAIRS, seed=st.integers(0, 99))
def test_a_window_is_packed_as_a_plain_loop_packs_it(lengths, seed):
    """Longest first; most where the tighter side keeps most room, the last ones where
    they leave least; and a row more only where none holds a pair.
    """
    source, target = arrays(lengths)
    full = 60 * 50
    size = {
        pair: (int(s) * 50, int(t) * 60)
        for pair, (s, t) in enumerate(zip(source, target, strict=True))
    }
    order = np.random.default_rng(seed).permutation(len(lengths)).tolist()
    total, before = sum(map(sum, size.values())), 0
    rows = [[] for _ in range(-(-max(50 * source.sum(), 60 * target.sum()) // full))]
    for pair in sorted(order, key=lambda pair: -sum(size[pair])):
        before += sum(size[pair])
        left = [
            [full - sum(size[other][side] for other in [*row, pair]) for side in (0, 1)]
            for row in rows
        ]
        holding = [index for index, room in enumerate(left) if min(room) >= 0]
        if not holding:
            rows.append([pair])
        elif before <= 0.85 * total:
            rows[max(holding, key=lambda index: (min(left[index]), -index))].append(
                pair
            )
        else:
            rows[min(holding, key=lambda index: (sum(left[index]), index))].append(pair)
    rows = sorted((row for row in rows if row), key=lambda row: order.index(row[0]))
    assert (
        members(
            pack(
                source,
                target,
                np.array(order, np.int64),
                RowShape(60, 50, 4),
                window=1000,
            )
        )
        == rows
    )


def test_windows_are_packed_alone():
    """An epoch is the packings of its windows one after another, however many are
    packed at a time: what is later in the order changes no row before.
    """
    source, target = drawn(1000, 40)
    order = np.random.default_rng(1).permutation(1000)
    shape = RowShape(80, 90, 4)
    whole = members(pack(source, target, order, shape, window=10))
    parts = [
        members(pack(source, target, order[start : start + 10], shape))
        for start in range(0, 1000, 10)
    ]
    assert whole == [row for part in parts for row in part]


def test_rows_come_in_the_order_of_their_longest_pairs():
    """A shuffled order gives shuffled rows: long and short sentences are mixed."""
    source, target = drawn(4000, 60)
    order = np.random.default_rng(2).permutation(4000)
    rows = pack(source, target, order, RowShape(120, 140, 4))
    packed = members(rows)
    place = np.argsort(order)
    firsts = [place[row[0]] for row in packed]
    half = 2000  # the first of two windows
    share = source / 120 + target / 140
    assert all(max(share[row]) == share[row[0]] for row in packed)
    assert firsts == sorted(firsts)
    assert all(len({place[pair] < half for pair in row}) == 1 for row in packed)
    longest = np.array([share[row[0]] for row in packed])
    assert abs(np.corrcoef(np.arange(len(longest)), longest)[0, 1]) < 0.1


def test_another_order_packs_other_rows():
    """Each epoch brings other neighbours, and about as many rows."""
    source, target = drawn(3000, 60)
    shape = RowShape(120, 140, 4)
    one, other = (
        pack(source, target, np.random.default_rng(seed).permutation(3000), shape)
        for seed in (0, 1)
    )
    assert set(map(frozenset, members(one))) != set(map(frozenset, members(other)))
    assert abs(len(one) - len(other)) <= 0.01 * len(one)


def test_a_pair_may_occur_often():
    """A mixture may repeat a corpus: each pair is packed as often as the order names
    it, and others are not.
    """
    source, target = drawn(50, 40)
    order = np.repeat(np.arange(10, 20), 7)
    rows = pack(source, target, order, RowShape(60, 70, 4))
    np.testing.assert_array_equal(np.bincount(rows.pairs), [0] * 10 + [7] * 10)


def test_parts_are_the_batches():
    """Batch n is taken from the rows at once, and all batches together are the
    epoch.
    """
    source, target = drawn(500, 40)
    rows = pack(
        source,
        target,
        np.random.default_rng(3).permutation(500),
        shape := RowShape(80, 90, 7),
    )
    count = -(-len(rows) // shape.rows)
    parts = [rows.part(n * shape.rows, (n + 1) * shape.rows) for n in range(count)]
    assert {len(part) for part in parts[:-1]} == {7}
    assert 1 <= len(parts[-1]) <= 7
    assert [row for part in parts for row in members(part)] == members(rows)
    np.testing.assert_array_equal(
        np.concatenate([part.sizes for part in parts]), rows.sizes
    )
    assert len(rows.part(len(rows) + 5, len(rows) + 9)) == 0


@pytest.mark.parametrize("count", [6000, 40_000])
@pytest.mark.parametrize("tokens", [3000, 9000])
def test_little_is_padding(count, tokens):
    """At most 5 % of the slots of an epoch, both sides and the last batch included,
    hold padding.
    """
    source, target = drawn(count, 100)
    shape = plan_rows(source, target, tokens_per_batch=tokens)
    for seed in range(3):
        rows = pack(
            source, target, np.random.default_rng(seed).permutation(count), shape
        )
        assert padding(rows, source, target, shape) < 0.05


def test_rows_are_as_long_as_the_corpus_asks():
    """The sides are as the mean lengths are, the longer as asked; both grow where a
    pair needs it.
    """
    source, target = drawn(4000, 60)
    ratio = target.mean() / source.mean()
    shape = plan_rows(source, target, tokens_per_batch=5000, packed_length=200)
    assert shape.target_length == 200
    assert shape.source_length == round(200 / ratio)
    assert shape.rows * 200 <= 5000
    assert (
        plan_rows(target, source, tokens_per_batch=5000, packed_length=200)[:2]
        == shape[:2][::-1]
    )
    source[5] = 190
    shape = plan_rows(source, target, tokens_per_batch=5000, packed_length=64)
    assert shape.source_length == 190
    assert shape.target_length == pytest.approx(
        190 * target.mean() / source.mean(), abs=1
    )
    assert len(pack(source, target, np.arange(4000), shape)) > 0


def test_rows_are_shared_evenly_by_the_batches():
    """What is more than one batch makes two of half the rows, and what is less makes
    one that is full. A row in two hundred is to spare, since each order packs a little
    differently.
    """
    ten = np.full(100, 10, np.int32)
    for tokens, rows in ((600, 51), (5000, 101), (1010, 101), (1000, 51), (100, 10)):
        shape = plan_rows(ten, ten, tokens_per_batch=tokens, packed_length=10)
        assert shape == (10, 10, rows)


def test_the_order_of_the_corpus_hardly_matters_to_the_plan():
    """The lengths of the rows are those of the corpus in any order; their number is
    that of a trial.
    """
    source, target = drawn(3000, 60)
    order = np.random.default_rng(1).permutation(3000)
    one = plan_rows(source, target, tokens_per_batch=3000)
    assert one == plan_rows(source, target, tokens_per_batch=3000)
    other = plan_rows(source[order], target[order], tokens_per_batch=3000)
    assert one[:2] == other[:2]
    assert abs(one.rows - other.rows) <= 1


def test_what_cannot_be_packed_is_refused():
    """Rule, value and cure are named, before any work."""
    source, target = arrays([(3, 4), (30, 20), (5, 50)])
    order = np.arange(3)
    with pytest.raises(
        InputError,
        match=r"the source of pair 2 has 30 tokens and a packed row holds 29: raise",
    ):
        pack(source, target, order, RowShape(29, 60, 4))
    with pytest.raises(
        InputError,
        match=r"the target of pair 3 has 50 tokens and a packed row holds 49: raise",
    ):
        pack(source, target, order, RowShape(30, 49, 4))
    assert members(pack(source, target, order[:1], RowShape(29, 49, 4))) == [[0]]
    with pytest.raises(InputError, match="at least 1 pair, not 0"):
        pack(source, target, order, RowShape(60, 60, 4), window=0)
    with pytest.raises(
        InputError,
        match=(
            r"tokens_per_batch=59 does not hold a packed row of 60 tokens: .* at least"
        ),
    ):
        plan_rows(source, target, tokens_per_batch=59, packed_length=60)
    with pytest.raises(InputError, match="no pair is left"):
        plan_rows(source[:0], target[:0], tokens_per_batch=100)


def test_nothing_packs_to_nothing():
    rows = pack(*arrays([]), np.zeros(0, np.int64), shape := RowShape(5, 5, 2))
    assert (len(rows), len(rows.pairs), -(-len(rows) // shape.rows)) == (0, 0, 0)


def encoded_of(source, target, seed=0):
    """Invent tokens, none of them padding: 0 for the source and 1 for the target."""
    generator = np.random.default_rng(seed)
    return Encoded(
        Sentences.from_lists(
            [generator.integers(5, 99, n).tolist() for n in source], pad_id=0
        ),
        Sentences.from_lists(
            [generator.integers(5, 99, n).tolist() for n in target], pad_id=1
        ),
    )


def test_a_packed_batch():
    """Pairs follow each other with segments from 1; padding has segment 0, and so have
    other rows.
    """
    encoded = encoded_of([2, 3, 4], [3, 1, 5])
    rows = Rows(np.array([2, 0, 1], np.int32), np.array([0, 1, 3], np.int32))
    batch = make_packed_batch(encoded.take(rows.pairs), rows.sizes, RowShape(6, 5, 3))
    assert {name: (array.shape, array.dtype) for name, array in batch.items()} == {
        "source": ((3, 6), np.int32),
        "target": ((3, 5), np.int32),
        "source_segments": ((3, 6), np.int32),
        "target_segments": ((3, 5), np.int32),
    }
    source, target = encoded.source, encoded.target
    assert batch["source"].tolist() == [
        [*source[2], 0, 0],
        [*source[0], *source[1], 0],
        [0] * 6,
    ]
    assert batch["source_segments"].tolist() == [
        [1, 1, 1, 1, 0, 0],
        [1, 1, 2, 2, 2, 0],
        [0] * 6,
    ]
    assert batch["target"].tolist() == [
        [*target[2]],
        [*target[0], *target[1], 1],
        [1] * 5,
    ]
    assert batch["target_segments"].tolist() == [[1] * 5, [1, 1, 1, 2, 0], [0] * 5]


@settings(deadline=None, max_examples=30)
@given(lengths=PAIRS, rows=st.integers(1, 9), seed=st.integers(0, 99))
def test_an_epoch_of_packed_batches_holds_each_sentence_once(lengths, rows, seed):
    """What is in the segments of all batches are the pairs, token for token, and
    nothing else; a source without a token leaves its number out.
    """
    source, target = arrays(lengths)
    encoded = encoded_of(source, target, seed)
    shape = RowShape(45, 50, rows)
    packed = pack(
        source,
        target,
        np.random.default_rng(seed).permutation(len(lengths)),
        shape,
        window=30,
    )
    found = []
    for number in range(-(-len(packed) // shape.rows)):
        part = packed.part(number * rows, (number + 1) * rows)
        batch = make_packed_batch(encoded.take(part.pairs), part.sizes, shape)
        assert ((batch["source"] == 0) == (batch["source_segments"] == 0)).all()
        assert ((batch["target"] == 1) == (batch["target_segments"] == 0)).all()
        for row in range(rows):
            found += [
                tuple(
                    tuple(batch[side][row][batch[f"{side}_segments"][row] == segment])
                    for side in ("source", "target")
                )
                for segment in range(1, batch["target_segments"][row].max() + 1)
            ]
    wanted = [
        (tuple(encoded.source[i]), tuple(encoded.target[i]))
        for i in range(len(lengths))
    ]
    assert sorted(found) == sorted(wanted)


def test_no_pairs_make_a_batch_of_padding():
    """A host that has no row of the last batch still has its batch."""
    encoded = encoded_of([2], [3]).take(np.zeros(0, np.int64))
    batch = make_packed_batch(encoded, np.zeros(0, np.int32), RowShape(3, 4, 2))
    assert batch["source"].tolist() == [[0] * 3] * 2
    assert batch["target"].tolist() == [[1] * 4] * 2
    assert not batch["source_segments"].any()
    assert not batch["target_segments"].any()
