"""Linear maps, norms, feed-forward, embedding and dropout against float64."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import InputError
from jaxformer import functional as F
from jaxformer.functional.layers import ACTIVATIONS, GATED
from jaxformer.models.checks import check_right_padding, check_tokens

dropout = jax.jit(F.dropout, static_argnums=1)


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def wide(x):
    return np.asarray(x, np.float64)


def same(actual, expected, tolerance=1e-5):
    np.testing.assert_allclose(wide(actual), expected, rtol=tolerance, atol=tolerance)


ACTIVATIONS_64 = {
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: (
        0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    ),
    "gelu_exact": lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
    "silu": lambda x: x / (1 + math.exp(-x)),
}


@pytest.mark.parametrize("name", [*ACTIVATIONS, *GATED])
def test_feed_forward_equals_its_formula(name):
    """With each activation, and with gates and no biases."""
    shapes = {"gate": (4, 16), "inner": (4, 16), "outer": (16, 4)}
    params = {
        part: {"kernel": normal(12 + i, *shape), "bias": normal(16 + i, shape[1])}
        for i, (part, shape) in enumerate(shapes.items())
    }
    x = normal(16, 2, 3, 4)
    maps = {part: wide(x) @ params[part]["kernel"] for part in ("gate", "inner")}
    if name in GATED:
        hidden = np.vectorize(ACTIVATIONS_64[GATED[name]])(maps["gate"]) * maps["inner"]
        expected = hidden @ params["outer"]["kernel"]
        params = {part: {"kernel": each["kernel"]} for part, each in params.items()}
    else:
        hidden = maps["inner"] + params["inner"]["bias"]
        hidden = np.vectorize(ACTIVATIONS_64[name])(hidden)
        expected = hidden @ params["outer"]["kernel"] + params["outer"]["bias"]
        del params["gate"]
    found = jax.jit(
        functools.partial(F.feed_forward, activation=ACTIVATIONS[GATED.get(name, name)])
    )(params, x)
    same(found, expected)


def test_stochastic_depth_drops_whole_rows():
    """A quarter of them; the others are scaled, so that the mean stays."""
    x = jnp.ones((4000, 2, 3))
    found = np.asarray(F.stochastic_depth(x, 0.25, jax.random.key(0)))
    rows = found[:, :1, :1]
    np.testing.assert_array_equal(found, np.broadcast_to(rows, x.shape))
    assert set(np.unique(rows)) == {0, np.float32(1 / 0.75)}
    assert abs(rows.mean() - 1) < 0.03
    np.testing.assert_array_equal(F.stochastic_depth(x, 0.25, None), x)
    with pytest.raises(InputError):
        F.stochastic_depth(x, 1.0, jax.random.key(0))


@pytest.mark.parametrize("token", [-1, -12, 11, 2**31 - 1])
def test_tokens_outside_the_vocabulary(token):
    """They are refused where their value is known. Under jit they are NaN and touch no
    row of the gradient.
    """
    tokens, table = jnp.array([[3, token, 0]]), normal(23, 11, 4)
    line = rf"token id {token} is not in 0 to 10; encode with the vocabulary"
    with pytest.raises(InputError, match=line):
        check_tokens(tokens, 11)
    with pytest.raises(InputError):  # a constant of the program is known
        jax.eval_shape(lambda: check_tokens(tokens, 11))
    check_tokens(jnp.zeros((2, 0), jnp.int32), 11)
    check_tokens(jnp.array([0, 10]), 11)

    @jax.jit
    @functools.partial(jax.grad, has_aux=True)
    def run(table, tokens):
        rows = F.embed(table, tokens)
        return rows.sum(), rows

    gradient, rows = run(table, tokens)
    assert np.isnan(rows[0]).any(axis=1).tolist() == [False, True, False]
    touched = np.asarray(gradient).any(axis=1)
    np.testing.assert_array_equal(touched, np.isin(np.arange(11), [0, 3]))


def test_padding_before_a_token_is_refused():
    """On the right, or everywhere, it is fine."""
    check_right_padding(jnp.array([[3, 4, 5], [3, 0, 0], [0, 0, 0]]), 0)
    check_right_padding(jnp.zeros((2, 0), jnp.int32), 0)
    line = r"pad sequences on the right: row 1 has a token after padding \(id 0\)"
    for row in ([0, 3, 4], [3, 0, 4]):
        with pytest.raises(InputError, match=line):
            check_right_padding(jnp.array([[3, 4, 5], row]), 0)
        check_right_padding(jnp.array([[3, 4, 5], row]), 9)


def test_dropout_masks_differ_between_keys_rows_and_columns():
    """At rate 0 or without a key the very same array comes back."""
    x = jnp.ones((64, 64))
    masks = (np.asarray(dropout(x, 0.5, jax.random.key(seed))) for seed in (3, 3, 4))
    one, again, other = masks
    np.testing.assert_array_equal(one, again)
    assert (one != other).mean() == pytest.approx(0.5, abs=0.05)
    assert len({row.tobytes() for row in one}) == 64
    assert len({column.tobytes() for column in one.T}) == 64
    assert F.dropout(x, 0.0, jax.random.key(0)) is x
    assert F.dropout(x, 0.9, None) is x


@pytest.mark.usefixtures("unchecked")
def test_impossible_arguments_are_refused():
    x, ones = jnp.arange(8).reshape(2, 4), jnp.ones(4)
    for call in (
        lambda: F.layer_norm(x, ones, ones),
        lambda: F.linear(x, jnp.ones((4, 3))),
    ):
        with pytest.raises(InputError, match=r"takes x: Float.*, not int32"):
            call()
    for rate in (1.0, -0.1, math.nan):
        with pytest.raises(InputError, match=rf"at least 0 and below 1, not {rate}"):
            F.dropout(ones, rate, jax.random.key(0))
    layer = {"kernel": jnp.ones((4, 5)), "bias": jnp.ones(5)}
    with pytest.raises(InputError, match=r"activation is a function .*, not 'gelu'"):
        F.feed_forward({}, jnp.ones((1, 2, 4)), activation="gelu")
    with pytest.raises(InputError, match=r"tokens: Int\[B S\], not list"):
        F.padding_mask([[1, 0]], 0)
    line = r"params\['outer'\]\['kernel'\]: Float\[F D\], not float32\[4, 5\], for x"
    with pytest.raises(InputError, match=line):
        F.feed_forward({"inner": layer, "outer": layer}, jnp.ones((1, 2, 4)))
