"""What padding, the future and half precision may change, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models.little import make_model, make_sentences, run, same, shapes, trace

from jaxformer import InputError

SETTINGS = {"positions": "learned", "tied_embeddings": "target"}
SOURCE, TARGET = make_sentences(1, [4, 2]), make_sentences(2, [3, 5])


def with_row(params, token, change):
    """Return parameters whose source table has another row."""
    table = params["source_embedding"]["table"].copy()
    table[token] = change(table[token])
    return params | {"source_embedding": {"table": table}}


def test_padding_changes_nothing():
    """Wider batches and filler sentences change no logits, loss or gradients. What
    padding holds, and other neighbours, change no bit.
    """
    model, params = make_model(0, **SETTINGS)
    value, gradient, logits, weights = run(model, params, SOURCE, TARGET)
    wide = np.pad(SOURCE, ((0, 2), (0, 5))), np.pad(TARGET, ((0, 2), (0, 3)))
    wide_value, wide_gradient, wide_logits, _ = run(model, params, *wide)
    same(wide_logits[0, :3], logits[0, :3])
    same(wide_logits[1, :5], logits[1, :5])
    same(wide_value, value)
    jax.tree.map(same, wide_gradient, gradient)
    for content in (-3.0, 1e10):
        dirty = with_row(params, 0, lambda _, content=content: content)
        np.testing.assert_array_equal(run(model, dirty, SOURCE, TARGET)[2], logits)
    other = np.concatenate([make_sentences(3, [4]), SOURCE[1:]])
    found = run(model, params, other, TARGET)[2]
    np.testing.assert_array_equal(found[1], logits[1])
    assert (found[0] != logits[0]).any()
    # The unknown token, id 1, is no padding.
    unknown = SOURCE.copy()
    unknown[0, 2] = 1
    _, _, expected, weights = run(model, params, unknown, TARGET)
    assert (weights.cross[0][0, ..., 2] > 0.0).all()
    moved = with_row(params, 1, lambda row: row + 1)
    assert np.abs(run(model, moved, unknown, TARGET)[2] - expected).max() > 1e-3


def test_a_target_token_is_seen_from_the_next_position_on():
    """Token t changes no bit of the logits up to t, and some at t + 1."""
    model, params = make_model(0, **SETTINGS)
    full = make_sentences(8, [5, 5])
    clean = np.asarray(run(model, params, SOURCE, full)[2])
    for t in range(5):
        other = full.copy()
        other[:, t] = 3 + (other[:, t] - 2) % 10
        found = np.asarray(run(model, params, SOURCE, other)[2])
        changed = np.abs(found - clean).max((0, 2))
        assert (changed[: t + 1] == 0.0).all()
        assert t == 4 or changed[t + 1] > 1e-3


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("bfloat16", 0.2), ("float16", 0.025)]
)
def test_half_precision_is_near_float32_and_finite(dtype, tolerance):
    """Parameters, gradients, logits and weights are float32. Filler sentences add
    nothing, also where the score of a masked key would be infinite.
    """
    full, params = make_model(0, **SETTINGS)
    half, _ = make_model(0, dtype=dtype, **SETTINGS)
    found = run(half, params, SOURCE, TARGET)
    leaves = jax.tree.leaves((found, shapes(half.config)))
    assert {leaf.dtype for leaf in leaves} == {jnp.dtype("float32")}
    encode = lambda *x: half.apply({"params": x[0]}, x[1], method="encode")  # noqa: E731
    assert jax.eval_shape(encode, params, SOURCE)[0].dtype == jnp.dtype(dtype)
    difference = np.abs(found[2] - run(full, params, SOURCE, TARGET)[2])[TARGET != 0]
    # A rounding of 2^-9 or 2^-12 at some twenty places, of values below 4.
    assert 0.0 < difference.max() < tolerance
    nothing = np.zeros_like(SOURCE), np.zeros_like(TARGET)
    without_source = run(half, params, nothing[0], TARGET)
    for leaf in jax.tree.leaves((found, without_source)):
        assert np.isfinite(leaf).all()
    value, gradient, *_ = run(half, params, *nothing)
    assert float(value) == 0.0
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(gradient))


_GOOD, _LONG = np.full((1, 4), 5), np.full((1, 5), 5)


def _bad(token):
    return np.array([[5, 5, 5, token]])


@pytest.mark.parametrize(
    ("source", "target", "line"),
    [
        (_LONG, _GOOD, "5 tokens is longer than the model's 4 positions"),
        (_GOOD, _LONG, "5 tokens is longer than the model's 4 positions"),
        (_bad(17), _GOOD, "token id 17 is not in 0 to 16"),
        (_GOOD, _bad(13), "token id 13 is not in 0 to 12"),
        (_GOOD, _bad(-2), "token id -2 is not in 0 to 12"),
        (np.array([[0, 5, 5, 5]]), _GOOD, r"row 0 has a token after padding \(id 0\)"),
        (_GOOD, np.array([[5, 5, 0, 5]]), r"row 0 has a token after padding \(id 0\)"),
    ],
)
def test_wrong_sentences_are_refused(source, target, line):
    settings = {"tied_embeddings": "none", "source_vocabulary_size": 17}
    model, params = make_model(29, max_length=4, **settings)
    trace(model, params, _GOOD, _GOOD)
    with pytest.raises(InputError, match=line):
        trace(model, params, source, target)
    if "positions" in line:  # known inside jit too
        with pytest.raises(InputError, match=line):
            run(model, params, source, target)
