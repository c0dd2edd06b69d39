import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.data import (
    Bucket,
    Encoded,
    Sentences,
    assign,
    cover,
    group,
    make_batch,
    plan_buckets,
)
from jaxformer.data.batching import share
from jaxformer.errors import InputError

LENGTHS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 40)), min_size=1, max_size=60
)


def arrays(lengths):
    return tuple(np.array(side, np.int64) for side in zip(*lengths, strict=True))


def slots(buckets, source, target):
    """Count the slots of the rows that hold pairs, one pair at a time."""
    return sum(
        min(
            b.source_length + b.target_length
            for b in buckets
            if s <= b.source_length and t <= b.target_length
        )
        for s, t in zip(source, target, strict=True)
    )


def drawn(count, longest, seed=0):
    """Draw lengths as translations have them: skewed, and similar on both sides."""
    generator = np.random.default_rng(seed)
    source = np.clip(generator.lognormal(2.3, 0.6, count), 1, longest).astype(np.int64)
    return source, np.clip(
        source * generator.lognormal(0.1, 0.3, count), 1, longest
    ).astype(np.int64)


@settings(deadline=None, max_examples=60)
@given(lengths=LENGTHS, num_buckets=st.integers(1, 9), tokens=st.integers(320, 900))
def test_buckets_keep_their_promises(lengths, num_buckets, tokens):
    """The budget holds on each side, shapes are few, every pair fits."""
    source, target = arrays(lengths)
    buckets = plan_buckets(
        source, target, num_buckets=num_buckets, tokens_per_batch=tokens
    )
    assert 1 <= len(buckets) <= num_buckets
    for bucket in buckets:
        assert bucket.rows > 0
        assert bucket.rows * max(bucket.source_length, bucket.target_length) <= tokens
        assert (bucket.rows + 1) * max(
            bucket.source_length, bucket.target_length
        ) > tokens
    # Whatever is not longer than the longest fits somewhere, whether it occurs or not.
    everything = arrays(
        [(s, t) for s in range(source.max() + 1) for t in range(target.max() + 1)]
    )
    assert (assign(buckets, *everything) >= 0).all()
    assert set(assign(buckets, source, target)) <= set(range(len(buckets)))


@settings(deadline=None, max_examples=40)
@given(lengths=LENGTHS)
def test_each_pair_goes_to_the_smallest_bucket_that_holds_it(lengths):
    source, target = arrays(lengths)
    buckets = plan_buckets(source, target, num_buckets=5, tokens_per_batch=400)
    chosen = [buckets[i] for i in assign(buckets, source, target)]
    assert all(
        s <= b.source_length and t <= b.target_length
        for b, s, t in zip(chosen, source, target, strict=True)
    )
    assert sum(b.source_length + b.target_length for b in chosen) == slots(
        buckets, source, target
    )


@pytest.mark.parametrize("seed", range(5))
def test_two_buckets_are_the_best_two(seed):
    """Compared with every second bucket there could be."""
    source, target = drawn(60, 20, seed)
    largest = (int(source.max()), int(target.max()))
    best = min(
        slots([Bucket(s, t, 0), Bucket(*largest, 0)], source, target)
        for s in range(1, largest[0] + 1)
        for t in range(1, largest[1] + 1)
    )
    buckets = plan_buckets(source, target, num_buckets=2, tokens_per_batch=100)
    assert slots(buckets, source, target) == best


@pytest.mark.parametrize("seed", range(3))
def test_no_other_bucket_in_place_of_one_saves(seed):
    """The choice is a local optimum, and better than only adding buckets."""
    source, target = drawn(80, 16, seed)
    buckets = plan_buckets(source, target, num_buckets=4, tokens_per_batch=100)
    taken = slots(buckets, source, target)
    for index in range(3):  # the last bucket holds everything, and stays
        for s in range(1, 17):
            for t in range(1, 17):
                others = [*buckets[:index], *buckets[index + 1 :], Bucket(s, t, 0)]
                assert slots(others, source, target) >= taken


def test_more_buckets_waste_less():
    source, target = drawn(5000, 60)
    taken = [
        slots(
            plan_buckets(source, target, num_buckets=n, tokens_per_batch=2000),
            source,
            target,
        )
        for n in (1, 2, 4, 8, 16)
    ]
    assert taken == sorted(taken, reverse=True)
    assert len(set(taken)) == len(taken)
    assert (source.sum() + target.sum()) / taken[3] > 0.75


def test_the_buckets_of_few_lengths_are_those_lengths():
    """No bucket is kept that saves nothing."""
    source, target = arrays([(3, 4)] * 5 + [(7, 6)] * 5 + [(20, 25)])
    buckets = plan_buckets(source, target, num_buckets=8, tokens_per_batch=100)
    assert buckets == (Bucket(3, 4, 25), Bucket(7, 6, 14), Bucket(20, 25, 4))


def test_the_order_of_the_pairs_does_not_matter():
    source, target = drawn(500, 60)
    order = np.random.default_rng(1).permutation(500)
    options = {"num_buckets": 6, "tokens_per_batch": 500}
    assert plan_buckets(source, target, **options) == plan_buckets(
        source[order], target[order], **options
    )


def test_long_sentences_are_planned_in_steps():
    """Lengths over 256 are counted coarsely, and the buckets still end at lengths
    that occur.
    """
    source, target = drawn(3000, 1500)
    source[0], target[1] = 1500, 1499
    buckets = plan_buckets(source, target, num_buckets=6, tokens_per_batch=3000)
    assert buckets[-1][:2] == (1500, 1499)
    assert (assign(buckets, source, target) >= 0).all()
    assert {bucket.source_length for bucket in buckets} <= set(source.tolist())


def test_a_budget_that_does_not_hold_the_longest_pair():
    """The cure is named."""
    source, target = arrays([(3, 4), (30, 20)])
    with pytest.raises(
        InputError,
        match=r"tokens_per_batch=29 does not hold a pair of 30 tokens: .* at least 30",
    ):
        plan_buckets(source, target, num_buckets=2, tokens_per_batch=29)
    assert (
        plan_buckets(source, target, num_buckets=2, tokens_per_batch=240)[-1].rows == 8
    )


def test_no_pairs_are_refused():
    with pytest.raises(InputError, match="no pair is left"):
        plan_buckets(
            np.zeros(0, np.int64),
            np.zeros(0, np.int64),
            num_buckets=2,
            tokens_per_batch=200,
        )


def test_cover_adds_one_bucket_at_most():
    """Evaluation has at most one shape that training has not."""
    buckets = plan_buckets(*drawn(500, 30), num_buckets=4, tokens_per_batch=600)
    inside, outside = (
        arrays([(3, 4), (20, 21)]),
        arrays([(3, 4), (50, 2), (2, 60), (31, 31)]),
    )
    assert cover(buckets, *inside, tokens_per_batch=600) == buckets
    covering = cover(buckets, *outside, tokens_per_batch=600)
    assert set(covering) == {*buckets, Bucket(50, 60, 10)}
    assert (assign(covering, *outside) >= 0).all()
    with pytest.raises(InputError, match="at least 700"):
        cover(buckets, *arrays([(700, 3)]), tokens_per_batch=600)


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


@settings(deadline=None, max_examples=50)
@given(lengths=LENGTHS, num_buckets=st.integers(1, 6), seed=st.integers(0, 99))
def test_groups_hold_each_pair_once(lengths, num_buckets, seed):
    """No batch is empty, none has more pairs than rows, and every pair fits its
    bucket.
    """
    source, target = arrays(lengths)
    buckets = plan_buckets(
        source, target, num_buckets=num_buckets, tokens_per_batch=100
    )
    order = np.random.default_rng(seed).permutation(len(source))
    assigned = assign(buckets, source, target)
    epoch = group(assigned, order, buckets)
    assert sorted(
        i for number in range(len(epoch)) for i in epoch.pairs(number)
    ) == list(range(len(source)))
    for number, shape in enumerate(epoch.shapes):
        pairs, bucket = epoch.pairs(number), buckets[shape]
        assert 0 < len(pairs) <= bucket.rows
        assert (source[pairs] <= bucket.source_length).all()
        assert (target[pairs] <= bucket.target_length).all()
    # Only pairs that would not fill a batch of their own bucket are in a larger one,
    # and a bucket has one such batch.
    for shape, bucket in enumerate(buckets):
        own = [number for number in range(len(epoch)) if epoch.shapes[number] == shape]
        assert all(len(epoch.pairs(number)) == bucket.rows for number in own[:-1])
    moved = sum(
        int((assigned[epoch.pairs(n)] != epoch.shapes[n]).sum())
        for n in range(len(epoch))
    )
    assert moved <= sum(bucket.rows - 1 for bucket in buckets[:-1])


def test_leftovers_go_on_only_where_that_is_cheaper():
    """One pair more than a batch rides in the next bucket; half a batch of a far
    smaller bucket stays.
    """
    buckets = (Bucket(2, 2, 10), Bucket(3, 3, 6), Bucket(30, 30, 1))
    assigned = np.array([0] * 11 + [1] * 5)
    epoch = group(assigned, np.arange(16), buckets)
    assert epoch.shapes.tolist() == [0, 1]
    assert sorted(epoch.pairs(1).tolist()) == [10, 11, 12, 13, 14, 15]
    epoch = group(np.array([1] * 3), np.arange(3), buckets)
    assert epoch.shapes.tolist() == [1]
    assert epoch.pairs(0).tolist() == [0, 1, 2]


def test_a_batch_is_padded_on_the_right_with_each_vocabularys_id():
    """Other rows are padding."""
    encoded = encoded_of([2, 5, 3], [4, 1, 6])
    batch = make_batch(encoded.take(np.array([2, 0])), Bucket(5, 6, 4))
    assert {name: (side.shape, side.dtype) for name, side in batch.items()} == {
        "source": ((4, 5), np.int32),
        "target": ((4, 6), np.int32),
    }
    assert batch["source"].tolist() == [
        [*encoded.source[2], 0, 0],
        [*encoded.source[0], 0, 0, 0],
        [0] * 5,
        [0] * 5,
    ]
    assert batch["target"].tolist() == [
        [*encoded.target[2]],
        [*encoded.target[0], 1, 1],
        [1] * 6,
        [1] * 6,
    ]


@pytest.mark.parametrize("hosts", [1, 2, 3, 8, 32])
def test_hosts_share_a_batch(hosts):
    """Disjoint, together everything, and the same number of rows each."""
    for pairs, rows in ((17, 17), (5, 17), (1, 40), (32, 32)):
        indices = np.random.default_rng(pairs).permutation(pairs)
        shares = [share(indices, rows, host, hosts) for host in range(hosts)]
        assert np.concatenate([own for own, _ in shares]).tolist() == indices.tolist()
        assert {own_rows for _, own_rows in shares} == {-(-rows // hosts)}
        assert all(len(own) <= own_rows for own, own_rows in shares)


@pytest.mark.parametrize(
    ("lengths", "buckets", "line"),
    [
        (([3, 4], [3]), 2, r"two arrays \[N\], not \(2,\) and \(1,\)"),
        (([3, 4], [3, 4]), 0, "num_buckets must be at least 1, not 0"),
        (([3, -4], [3, 4]), 2, "a length is negative"),
    ],
)
def test_lengths_that_are_none(lengths, buckets, line):
    """They are refused, and lists are lengths as well as arrays."""
    with pytest.raises(InputError, match=line):
        plan_buckets(*lengths, num_buckets=buckets, tokens_per_batch=10)
    assert plan_buckets([3, 4], [4, 3], num_buckets=1, tokens_per_batch=8) == (
        Bucket(4, 4, 2),
    )


def test_a_pair_without_a_bucket_has_no_place():
    """What `assign` gives -1 is named if it is to be grouped, and the others group
    without it.
    """
    buckets = plan_buckets(
        np.array([3, 4]), np.array([3, 4]), num_buckets=1, tokens_per_batch=8
    )
    assigned = assign(buckets, np.array([3, 9, 4]), np.array([3, 3, 4]))
    with pytest.raises(InputError, match="pair 1 fits no bucket"):
        group(assigned, np.arange(3), buckets)
    assert sorted(group(assigned, np.array([0, 2]), buckets).indices) == [0, 2]
