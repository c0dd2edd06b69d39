"""Packed pairs are to the model what they are in rows of their own."""

import jax
import numpy as np
import pytest
from models.little import LATER, make_model, run, same, trace

from jaxformer import InputError

# Lengths (source, target) of the pairs of each row: several, one, one that fills its
# row when alone, and none.
ROWS = [[(3, 4), (5, 3), (2, 3)], [(2, 6)], [(9, 8)], []]
PACKED, ALONE = (12, 11), (9, 9)


def draw(seed, pad_id=0):
    """Return the pairs packed, their segments, and the pairs in rows of their own."""
    rng = np.random.default_rng(seed)
    packed = [np.full((len(ROWS), width), pad_id, np.int32) for width in PACKED]
    segments = [np.zeros((len(ROWS), width), np.int32) for width in PACKED]
    alone = []
    for side in range(2):
        alone.append(np.full((sum(map(len, ROWS)), ALONE[side]), pad_id, np.int32))
        for pair, (row, *starts, source, target) in enumerate(places()):
            start, length = starts[side], (source, target)[side]
            tokens = rng.integers(3, 13, length)
            alone[side][pair, :length] = tokens
            packed[side][row, start : start + length] = tokens
            number = segments[side][row].max() + 1
            segments[side][row, start : start + length] = number
    names = ("source_segments", "target_segments")
    return packed, dict(zip(names, segments, strict=True)), alone


def places():
    """Return for each pair its row, its beginning on both sides, and its lengths."""
    return [
        (row, *np.sum([(0, 0), *pairs[:number]], axis=0).tolist(), *pairs[number])
        for row, pairs in enumerate(ROWS)
        for number in range(len(pairs))
    ]


POST = {"norm_order": "post", "positions": "sinusoidal"}
PRE = {"norm_order": "pre", "positions": "learned", "pad_id": 2, "bos_id": 1}


@pytest.mark.parametrize(
    "settings",
    [
        POST,
        PRE | {"max_length": 9},
        *(pytest.param(each, marks=pytest.mark.slow) for each in LATER.values()),
    ],
    ids=str,
)
def test_packed_pairs_are_as_alone(settings):
    """Loss, gradients, logits and attention weights are those of rows of their own,
    and the weights across segments and at padding are exactly 0. Rows may be longer
    than the model's positions. Other pairs of a row change no bit.
    """
    model, params = make_model(0, **settings)
    packed, segments, alone = draw(1, model.config.pad_id)
    value, gradient, logits, weights = run(model, params, *packed, segments)
    wanted = run(model, params, *alone)
    np.testing.assert_allclose(value, wanted[0], rtol=1e-5)
    jax.tree.map(same, gradient, wanted[1])
    for name, sides in {"encoder": (0, 0), "decoder": (1, 1), "cross": (1, 0)}.items():
        (found,), (expected,) = getattr(weights, name), getattr(wanted[3], name)
        covered = np.zeros(found.shape, bool)
        for pair, (row, *starts, source, target) in enumerate(places()):
            lengths = (source, target)
            query, key = (slice(starts[i], starts[i] + lengths[i]) for i in sides)
            own = expected[pair, :, : lengths[sides[0]], : lengths[sides[1]]]
            same(found[row, :, query, key], own)
            covered[row, :, query, key] = True
            if name == "decoder":
                same(logits[row, query], wanted[2][pair, :target])
        assert (np.asarray(found)[~covered] == 0.0).all()
        same(found.sum(-1), covered.any(-1))

    second = [each == 2 for each in segments.values()]
    changed = [
        np.where(own, 3 + (side - 2) % 10, side)
        for own, side in zip(second, packed, strict=True)
    ]
    found = np.asarray(run(model, params, *changed, segments)[2])
    np.testing.assert_array_equal(found[~second[1]], np.asarray(logits)[~second[1]])
    assert np.abs(found - logits)[second[1]].max() > 1e-2

    nothing = [np.full_like(side, model.config.pad_id) for side in packed]
    empty = {name: np.zeros_like(each) for name, each in segments.items()}
    value, gradient, *_ = run(model, params, *nothing, empty)
    assert float(value) == 0.0
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(gradient))
    if settings["positions"] == "learned":
        # Unknown inside jit: NaN, and not the positions of other places.
        ones = {name: np.minimum(each, 1) for name, each in segments.items()}
        assert np.isnan(run(model, params, *packed, ones)[2][0, 9]).all()


def test_segments_that_do_not_fit_are_refused():
    model, params = make_model(8, max_length=9)
    packed, segments, _ = draw(9)
    trace(model, params, *packed, **segments)
    flip = lambda side: side[:, ::-1]  # noqa: E731
    with pytest.raises(InputError, match="row 0 has a token after padding"):
        trace(model, params, *map(flip, packed), **jax.tree.map(flip, segments))
    for name in segments:
        zeroed = segments[name].copy()
        zeroed[0, 0] = 0
        for changed, line in (
            ({name: None}, "give source_segments and target_segments"),
            ({name: zeroed}, "row 0 is numbered otherwise"),
            ({name: np.minimum(segments[name], 1)}, "of 10 tokens is longer than the"),
        ):
            with pytest.raises(InputError, match=line):
                trace(model, params, *packed, **segments | changed)
