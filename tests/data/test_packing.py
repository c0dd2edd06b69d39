"""Several pairs in a row: each once, none over the edge, little left empty."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pairs import arrays, draw_lengths

from jaxformer.data.packing import RowShape, make_packed_batch, pack, plan_rows
from jaxformer.data.store import Encoded, Sentences
from jaxformer.errors import InputError

PAIRS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40)), max_size=120)


def shuffled(count, seed=0):
    return np.random.default_rng(seed).permutation(count)


def members(rows):
    """Return the pairs of each row."""
    return [
        part.tolist() for part in np.split(rows.pairs, rows.offsets[1:-1]) if len(part)
    ]


@settings(deadline=None, max_examples=40)
@given(lengths=PAIRS, seed=st.integers(0, 99))
def test_a_window_is_packed_as_a_plain_loop_packs_it(lengths, seed):
    """Longest first; most where the tighter side keeps most room, the last ones where
    they leave least; another row only where none holds a pair.
    """
    source, target = arrays(lengths)
    full, size = 60 * 50, np.stack([source * 50, target * 60], 1)
    order = shuffled(len(lengths), seed).tolist()
    total, before = size.sum(), 0
    rows = [[] for _ in range(-(-int(size.sum(0).max()) // full))]
    for pair in sorted(order, key=lambda pair: -size[pair].sum()):
        before += size[pair].sum()
        left = [full - size[[*row, pair]].sum(0) for row in rows]
        holding = [index for index, room in enumerate(left) if min(room) >= 0]
        if not holding:
            rows.append([pair])
        elif before <= 0.85 * total:
            rows[max(holding, key=lambda i: (min(left[i]), -i))].append(pair)
        else:
            rows[min(holding, key=lambda i: (sum(left[i]), i))].append(pair)
    rows = sorted((row for row in rows if row), key=lambda row: order.index(row[0]))
    order = np.array(order, np.int64)
    packed = pack(source, target, order, RowShape(60, 50, 4), window=1000)
    assert members(packed) == rows


@pytest.mark.parametrize(("count", "tokens"), [(6000, 9000), (40_000, 3000)])
def test_little_is_padding(count, tokens):
    """At most 5 % of the slots of an epoch, both sides and the last batch included."""
    source, target = draw_lengths(count, 100)
    shape = plan_rows(source, target, tokens_per_batch=tokens)
    for seed in range(3):
        rows = pack(source, target, shuffled(count, seed), shape)
        slots = -(-len(rows) // shape.rows) * shape.slots
        assert source.sum() + target.sum() > 0.95 * slots


def test_rows_are_as_long_as_the_corpus_asks():
    """The sides are proportional to the mean lengths, the longer as asked; both grow
    where a pair needs it.
    """
    source, target = draw_lengths(4000, 60)
    options = {"tokens_per_batch": 5000, "packed_length": 200}
    shape = plan_rows(source, target, **options)
    assert shape[:2] == (round(200 / (target.mean() / source.mean())), 200)
    assert shape.rows * 200 <= 5000
    assert plan_rows(target, source, **options)[:2] == shape[:2][::-1]
    source[5] = 190
    shape = plan_rows(source, target, tokens_per_batch=5000, packed_length=64)
    grown = 190 * target.mean() / source.mean()
    assert shape[:2] == (190, pytest.approx(grown, abs=1))
    assert len(pack(source, target, np.arange(4000), shape)) > 0


@settings(deadline=None, max_examples=40)
@given(
    lengths=PAIRS.filter(bool),
    spare=st.integers(0, 3000),
    longest=st.integers(1, 50),
    multiple=st.integers(1, 17),
)
def test_shapes_are_multiples(lengths, spare, longest, multiple):
    """A length stays as it is only if its multiple exceeds the budget; rows, only if
    the budget has no more.
    """
    source, target = arrays(lengths)
    plain = plan_rows(source, target, tokens_per_batch=5000, packed_length=longest)
    tokens = max(plain[:2]) + spare
    options = {"tokens_per_batch": tokens, "packed_length": longest}
    *sides, rows = plan_rows(source, target, **options, shape_multiple=multiple)
    for length, exact in zip(sides, plain[:2], strict=True):
        rounded = exact + -exact % multiple
        assert length == (rounded if rounded <= tokens else exact)
    budget = tokens // max(sides)
    assert 0 < rows <= budget
    assert rows % multiple == 0 or budget < multiple
    shape = RowShape(*sides, rows)
    packed = pack(source, target, np.arange(len(source)), shape)
    assert sorted(packed.pairs) == list(range(len(source)))


def test_what_cannot_be_packed_is_refused():
    source, target = arrays([(3, 4), (30, 20), (5, 50)])
    for (*lengths, rows), message in (
        (
            (29, 60, 4),
            "pair 2 has 30 and 20 tokens and a packed row holds 29 and 60: ra",
        ),
        (
            (30, 49, 4),
            "pair 3 has 5 and 50 tokens and a packed row holds 30 and 49: ra",
        ),
    ):
        shape = RowShape(*lengths, rows)
        with pytest.raises(InputError, match=message):
            pack(source, target, np.arange(3), shape)
        assert members(pack(source, target, np.arange(1), shape)) == [[0]]
    message = "tokens_per_batch=59 does not hold a packed row of 60 tokens: .* at least"
    with pytest.raises(InputError, match=message):
        plan_rows(source, target, tokens_per_batch=59, packed_length=60)
    with pytest.raises(InputError, match="no pair is left"):
        plan_rows(*arrays([]), tokens_per_batch=100)


def encoded_of(source, target):
    """Draw tokens, none of them padding: 0 for the source and 1 for the target."""
    draw = np.random.default_rng(0).integers
    sides = [[draw(5, 99, n).tolist() for n in lengths] for lengths in (source, target)]
    return Encoded(*(Sentences.from_lists(side, pad) for pad, side in enumerate(sides)))


@settings(deadline=None, max_examples=30)
@given(lengths=PAIRS, rows=st.integers(1, 9), seed=st.integers(0, 99))
def test_an_epoch_of_packed_batches_holds_each_sentence_once(lengths, rows, seed):
    """Token for token; a source without a token leaves its number out."""
    encoded, shape = encoded_of(*arrays(lengths)), RowShape(45, 50, rows)
    order = shuffled(len(lengths), seed)
    packed = pack(*arrays(lengths), order, shape, window=30)
    found = []
    for start in range(0, len(packed), rows):
        part = packed.part(start, start + rows)
        batch = make_packed_batch(encoded.take(part.pairs), part.sizes, shape)
        assert ((batch["source"] == 0) == (batch["source_segments"] == 0)).all()
        assert ((batch["target"] == 1) == (batch["target_segments"] == 0)).all()
        for source, target, *segments in zip(*batch.values(), strict=True):
            for segment in range(1, segments[1].max() + 1):
                pair = source[segments[0] == segment], target[segments[1] == segment]
                found.append(tuple(map(tuple, pair)))
    wanted = [
        (tuple(encoded.source[i]), tuple(encoded.target[i]))
        for i in range(len(lengths))
    ]
    assert sorted(found) == sorted(wanted)
