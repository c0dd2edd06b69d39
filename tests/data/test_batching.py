import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pairs import arrays, draw_lengths

from jaxformer.data import assign, cover, group, plan_buckets
from jaxformer.data.batching import Bucket
from jaxformer.errors import InputError

LENGTHS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 40)), min_size=1, max_size=60
)


def slots(buckets, source, target):
    """Count the slots of the rows that hold pairs, one pair at a time."""
    return sum(
        min(b[0] + b[1] for b in buckets if s <= b[0] and t <= b[1])
        for s, t in zip(source, target, strict=True)
    )


@settings(deadline=None, max_examples=60)
@given(
    lengths=LENGTHS,
    num_buckets=st.integers(1, 9),
    tokens=st.integers(40, 900),
    multiple=st.integers(1, 17),
    longest=st.none() | st.integers(40, 60),
)
def test_shapes_are_multiples(lengths, num_buckets, tokens, multiple, longest):
    """A length stays as it is only if its multiple exceeds the budget or the limit;
    rows, only if they are fewer than the multiple. Each pair is in the smallest bucket
    that holds it; so is any that is not longer than the longest.
    """
    source, target = arrays(lengths)
    buckets = plan_buckets(
        source,
        target,
        num_buckets=num_buckets,
        tokens_per_batch=tokens,
        shape_multiple=multiple,
        max_length=longest,
    )
    assert 1 <= len({bucket[:2] for bucket in buckets}) == len(buckets) <= num_buckets
    for *sides, rows in buckets:
        for length, own in zip(sides, (source, target), strict=True):
            above = length + -length % multiple > min(tokens, longest or tokens)
            assert length in own if above else length % multiple == 0
            assert length <= (longest or tokens)
        budget = tokens // max(sides)
        assert rows == (budget if budget < multiple else budget - budget % multiple)
    chosen = [buckets[i] for i in assign(buckets, source, target)]
    assert sum(b[0] + b[1] for b in chosen) == slots(buckets, source, target)
    every_length = np.indices((source.max() + 1, target.max() + 1)).reshape(2, -1)
    assert (assign(buckets, *every_length) >= 0).all()


@pytest.mark.parametrize("multiple", [1, 2, 3])
def test_two_buckets_are_the_best_two(multiple):
    """Of more, no other bucket in place of one saves. All are of rounded lengths."""
    source, target = draw_lengths(60, 16)
    lengths = range(multiple, 16 + multiple, multiple)
    boxes = list(itertools.product(lengths, lengths))
    options = {"tokens_per_batch": 100, "shape_multiple": multiple}
    two, four = (
        plan_buckets(source, target, num_buckets=count, **options) for count in (2, 4)
    )
    assert {*two, *four} <= {(*box, rows) for box in boxes for rows in range(1, 101)}
    best = min(slots([box, two[-1]], source, target) for box in boxes)
    assert slots(two, source, target) == best
    taken = slots(four, source, target)
    for index in range(3):  # the last bucket holds everything, and stays
        others = [*four[:index], *four[index + 1 :]]
        assert all(slots([*others, box], source, target) >= taken for box in boxes)


def test_cover_adds_one_bucket_at_most():
    """Evaluation has at most one shape that training has not."""
    buckets = plan_buckets(*draw_lengths(500, 30), num_buckets=4, tokens_per_batch=600)
    inside = arrays([(3, 4), (20, 21)])
    outside = arrays([(3, 4), (50, 2), (2, 60), (31, 31)])
    assert cover(buckets, *inside, tokens_per_batch=600) == buckets
    covering = cover(buckets, *outside, tokens_per_batch=600)
    assert set(covering) == {*buckets, Bucket(50, 60, 10)}
    assert (assign(covering, *outside) >= 0).all()
    options = {"tokens_per_batch": 600, "shape_multiple": 8, "max_length": 60}
    assert set(cover(buckets, *outside, **options)) == {*buckets, Bucket(56, 60, 8)}
    with pytest.raises(InputError, match="at least 700"):
        cover(buckets, *arrays([(700, 3)]), tokens_per_batch=600)


@settings(deadline=None, max_examples=50)
@given(lengths=LENGTHS, num_buckets=st.integers(1, 6), seed=st.integers(0, 99))
def test_groups_hold_each_pair_once(lengths, num_buckets, seed):
    """No batch is empty, none has more pairs than rows, and every pair fits its
    bucket. Only pairs that would not fill a batch are in a larger bucket.
    """
    source, target = arrays(lengths)
    options = {"num_buckets": num_buckets, "tokens_per_batch": 100}
    buckets = plan_buckets(source, target, **options)
    order = np.random.default_rng(seed).permutation(len(source))
    assigned = assign(buckets, source, target)
    epoch = group(assigned, order, buckets)
    batches = [epoch.pairs(number) for number in range(len(epoch))]
    assert sorted(np.concatenate(batches)) == list(range(len(source)))
    moved, partial = 0, []
    for pairs, shape in zip(batches, epoch.shapes, strict=True):
        longest_source, longest_target, rows = buckets[shape]
        assert 0 < len(pairs) <= rows
        assert (source[pairs] <= longest_source).all()
        assert (target[pairs] <= longest_target).all()
        assert shape not in partial  # only the last batch of a bucket is not full
        partial += [shape] * (len(pairs) < rows)
        moved += int((assigned[pairs] != shape).sum())
    assert moved <= sum(bucket.rows - 1 for bucket in buckets[:-1])


def test_wrong_lengths_are_refused():
    options = {"num_buckets": 2, "tokens_per_batch": 10}
    with pytest.raises(InputError, match="no pair is left"):
        plan_buckets([], [], **options)
    message = "tokens_per_batch=10 does not hold a pair of 30 tok.* 30"
    with pytest.raises(InputError, match=message):
        plan_buckets([3, 30], [4, 20], **options)
