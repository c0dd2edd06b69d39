"""Several pairs in a row are to the model what they are in rows of their own."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import InputError
from jaxformer import functional as F

# Lengths (source, target) of the pairs of each row: of equal and unequal lengths, one
# that fills its row, and none.
ROWS = [[(3, 4), (5, 2), (1, 1)], [(2, 6)], [(9, 8)], []]
WIDTHS = (9, 8)


@functools.partial(jax.jit, static_argnums=0)
def run(model, params, source, target, segments=None):
    """Return loss, gradient, logits and attention weights."""

    def loss(params):
        logits, weights = model.apply(
            {"params": params}, source, target, **(segments or {}), method="forward"
        )
        real = target != model.config.pad_id
        return F.cross_entropy(logits, target, real, smoothing=0.1)[0], (
            logits,
            weights,
        )

    (value, (logits, weights)), gradient = jax.value_and_grad(loss, has_aux=True)(
        params
    )
    return value, gradient, logits, weights


@functools.partial(jax.jit, static_argnums=0)
def apply(model, params, source, target, segments):
    """Return the logits of packed rows."""
    return model.apply({"params": params}, source, target, **segments)


def same(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def draw(seed, pad_id=0):
    """Draw the pairs of ROWS; give them packed, with their segments, and one a row."""
    rng = np.random.default_rng(seed)
    pairs = [lengths for row in ROWS for lengths in row]
    packed, alone, segments = [], [], []
    for side, width in enumerate(WIDTHS):
        tokens = [rng.integers(3, 13, lengths[side]) for lengths in pairs]
        alone.append(
            np.array(
                [
                    np.pad(t, (0, width - len(t)), constant_values=pad_id)
                    for t in tokens
                ],
                np.int32,
            )
        )
        packed.append(np.full((len(ROWS), width), pad_id, np.int32))
        segments.append(np.zeros((len(ROWS), width), np.int32))
        left = iter(tokens)
        for index, row in enumerate(ROWS):
            start = 0
            for number, _ in enumerate(row, 1):
                sentence = next(left)
                packed[side][index, start : start + len(sentence)] = sentence
                segments[side][index, start : start + len(sentence)] = number
                start += len(sentence)
    names = {
        "source_segments": jnp.asarray(segments[0]),
        "target_segments": jnp.asarray(segments[1]),
    }
    return (
        [jnp.asarray(side) for side in packed],
        names,
        [jnp.asarray(side) for side in alone],
    )


def places():
    """Return for each pair its row, and where it begins in it on either side."""
    return [
        (
            index,
            *(sum(lengths[side] for lengths in row[:number]) for side in (0, 1)),
            *row[number],
        )
        for index, row in enumerate(ROWS)
        for number in range(len(row))
    ]


@pytest.mark.parametrize(
    ("norm_order", "positions"), [("post", "sinusoidal"), ("pre", "learned")]
)
def test_packed_pairs_are_as_alone(make_model, norm_order, positions):
    """Loss, gradients, logits and attention weights of packed pairs are those of the
    same pairs in rows of their own, and the weights across segments and at padding are
    exactly 0.
    """
    model, params = make_model(0, norm_order=norm_order, positions=positions)
    packed, segments, alone = draw(1)
    value, gradient, logits, weights = run(model, params, *packed, segments)
    wanted, wanted_gradient, wanted_logits, wanted_weights = run(model, params, *alone)
    np.testing.assert_allclose(value, wanted, rtol=1e-5)
    jax.tree.map(same, gradient, wanted_gradient)
    queries = {"encoder": (0, 0), "decoder": (1, 1), "cross": (1, 0)}
    covered = {
        name: [np.zeros(w.shape, bool) for w in getattr(weights, name)]
        for name in queries
    }
    for pair, (row, *starts, source, target) in enumerate(places()):
        spans = [
            slice(start, start + length)
            for start, length in zip(starts, (source, target), strict=True)
        ]
        lengths = (source, target)
        same(logits[row, spans[1]], wanted_logits[pair, :target])
        for name, (query, key) in queries.items():
            for layer, found in enumerate(getattr(weights, name)):
                expected = getattr(wanted_weights, name)[layer][
                    pair, :, : lengths[query], : lengths[key]
                ]
                same(found[row, :, spans[query], spans[key]], expected)
                covered[name][layer][row, :, spans[query], spans[key]] = True
    for name in queries:
        for found, inside in zip(getattr(weights, name), covered[name], strict=True):
            assert (np.asarray(found)[~inside] == 0.0).all()
            sums = np.asarray(found).sum(-1)
            same(sums, inside.any(-1))


def test_a_pair_does_not_feel_its_neighbours(make_model):
    """Another pair in the same row leaves logits as they are to the last bit, on
    either side.
    """
    model, params = make_model(2)
    (source, target), segments, _ = draw(3)
    logits = apply(model, params, source, target, segments)
    second = [segments[name] == 2 for name in ("source_segments", "target_segments")]
    changed = [
        jnp.where(own, 3 + (side - 2) % 10, side)
        for own, side in zip(second, (source, target), strict=True)
    ]
    found = apply(model, params, *changed, segments)
    others = np.asarray(second[1]) == 0
    np.testing.assert_array_equal(np.asarray(found)[others], np.asarray(logits)[others])
    assert np.abs(np.asarray(found - logits))[~others].max() > 1e-2


@pytest.mark.parametrize(("pad_id", "bos_id"), [(0, 0), (2, 1)])
def test_special_ids_of_any_kind(make_model, pad_id, bos_id):
    """Each segment begins with bos_id in the decoder, also where that is padding's
    id.
    """
    model, params = make_model(4, pad_id=pad_id, bos_id=bos_id)
    packed, segments, alone = draw(5, pad_id)
    value, gradient, _, _ = run(model, params, *packed, segments)
    wanted, wanted_gradient, _, _ = run(model, params, *alone)
    np.testing.assert_allclose(value, wanted, rtol=1e-5)
    jax.tree.map(same, gradient, wanted_gradient)


def test_rows_of_padding_add_nothing(make_model):
    """A packed batch of padding alone has loss 0 and gradient 0, in bfloat16 too."""
    model, params = make_model(6, dtype="bfloat16")
    nothing = [jnp.zeros((2, width), jnp.int32) for width in WIDTHS]
    segments = {"source_segments": nothing[0], "target_segments": nothing[1]}
    value, gradient, logits, _ = run(model, params, *nothing, segments)
    assert float(value) == 0.0
    assert np.isfinite(logits).all()
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(gradient))


def trace(model, params, source, target, **segments):
    """Run what happens before any computation: the tokens are known, nothing is
    compiled.
    """
    return jax.eval_shape(
        lambda: model.apply({"params": params}, source, target, **segments)
    )


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_rows_may_be_longer_than_the_model_s_positions(make_model, positions):
    """Sentences may not: they are refused where they are known, and compiled learned
    positions are NaN rather than those of other places.
    """
    model, params = make_model(7, positions=positions, max_length=4)
    tokens = jnp.full((1, 8), 5)
    fitting, too_long = (
        jnp.array([[1, 1, 1, 1, 2, 2, 2, 2]]),
        jnp.array([[1, 1, 1, 1, 1, 2, 2, 2]]),
    )
    logits = apply(
        model,
        params,
        tokens,
        tokens,
        {"source_segments": fitting, "target_segments": fitting},
    )
    assert np.isfinite(logits).all()
    same(logits[0, 4:], logits[0, :4])
    for source, target in ((fitting, too_long), (too_long, fitting)):
        with pytest.raises(
            InputError,
            match=(
                "a packed sequence of 5 tokens is longer than the model's 4 positions"
            ),
        ):
            trace(
                model,
                params,
                tokens,
                tokens,
                source_segments=source,
                target_segments=target,
            )
        if positions == "learned":
            logits = apply(
                model,
                params,
                tokens,
                tokens,
                {"source_segments": source, "target_segments": target},
            )
            assert np.isnan(logits[0, 4]).all()


def test_segments_that_do_not_fit_are_refused(make_model):
    """Segments of one side alone, of another shape, or that say otherwise than the
    padding does raise, and padding is on the right of packed rows too.
    """
    model, params = make_model(8)
    (source, target), segments, _ = draw(9)
    for name in segments:
        with pytest.raises(
            InputError,
            match="segments on both sides: give source_segments and target_segments",
        ):
            trace(model, params, source, target, **{name: segments[name]})
        with pytest.raises(InputError, match="the shape of the tokens"):
            trace(
                model,
                params,
                source,
                target,
                **(segments | {name: segments[name][:, 1:]}),
            )
        with pytest.raises(InputError, match="row 0 is numbered otherwise"):
            trace(
                model,
                params,
                source,
                target,
                **(segments | {name: segments[name].at[0, 0].set(0)}),
            )
    flipped = {name: side[:, ::-1] for name, side in segments.items()}
    with pytest.raises(InputError, match="row 1 has a token after padding"):
        trace(model, params, source[:, ::-1], target[:, ::-1], **flipped)
