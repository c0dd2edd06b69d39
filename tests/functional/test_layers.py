"""Linear maps, norms, feed-forward, embedding and dropout against float64."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen

from jaxformer import InputError
from jaxformer import functional as F
from jaxformer.functional.checks import check_right_padding, check_tokens
from jaxformer.functional.layers import ACTIVATIONS, GATED

linear = jax.jit(F.linear, static_argnames="contract")
layer_norm = jax.jit(F.layer_norm, static_argnames="epsilon")
dropout = jax.jit(F.dropout, static_argnums=1)
HALF = [(jnp.bfloat16, 2**-8), (jnp.float16, 2**-11)]


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def wide(x):
    return np.asarray(x, np.float64)


def same(actual, expected, tolerance=1e-5):
    np.testing.assert_allclose(wide(actual), expected, rtol=tolerance, atol=tolerance)


def test_linear_and_logits_add_up_in_float32_under_bfloat16():
    """A linear map is one rounding from the exact sum over 4,096 terms; logits are
    float32.
    """
    x, kernel = normal(3, 2, 4096).astype(jnp.bfloat16), normal(4, 4096, 8)
    output = linear(x, kernel, normal(5, 8))
    assert output.dtype == jnp.bfloat16
    product = wide(x) @ wide(kernel.astype(jnp.bfloat16))
    # Half a unit in the last of bfloat16's 8 bits, and a little for the float32 sum.
    exact = product + normal(5, 8)
    np.testing.assert_allclose(wide(output), exact, rtol=2**-8, atol=1e-3)
    x, table = x[:, :1024], kernel[:1024].T
    logits = jax.jit(F.project_to_vocabulary)(table, x)
    assert logits.dtype == jnp.float32
    same(logits, wide(x) @ wide(table.astype(jnp.bfloat16)).T, 1e-4)


def test_derivatives_of_layer_norm_are_those_of_its_formula():
    """Backward, forward and of second order, in float64. Only one array as large as the
    input is kept, and a constant has a finite gradient.
    """
    given = [normal(50, 3, 8), normal(53, 8), normal(54, 8)]
    change, cotangent = normal(51, 3, 8), normal(52, 3, 8)

    def plain(x, scale, bias):
        centred = x - x.mean(-1, keepdims=True)
        variance = jnp.square(centred).mean(-1, keepdims=True)
        return centred / jnp.sqrt(variance + 0.1) * scale[None] + bias[None]

    @functools.partial(jax.jit, static_argnums=0)
    def derive(norm, x, scale, bias, change, cotangent):
        gradients = jax.vjp(norm, x, scale, bias)[1](cotangent)
        tangent = jax.jvp(norm, (x, scale, bias), (change, scale, bias))[1]
        slope = jax.grad(lambda x: (norm(x, scale, bias) * cotangent).sum())
        return *gradients, tangent, jax.jvp(slope, (x,), (change,))[1]

    ours = functools.partial(F.layer_norm, epsilon=0.1)
    found = derive(ours, *given, change, cotangent)
    with jax.enable_x64(True):
        expected = derive(plain, *map(wide, (*given, change, cotangent)))
        for one, other in zip(found, expected, strict=True):
            same(one, np.asarray(other), 2e-5)
    constant = np.full((3, 8), 3, np.float32)
    assert np.isfinite(derive(ours, constant, *given[1:], change, cotangent)[0]).all()
    pull = jax.eval_shape(lambda *x: jax.vjp(F.layer_norm, *x)[1], *given)
    assert sum(leaf.shape == (3, 8) for leaf in jax.tree.leaves(pull)) == 1


ACTIVATIONS_64 = {
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: (
        0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    ),
    "gelu_exact": lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
    "silu": lambda x: x / (1 + math.exp(-x)),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_feed_forward_equals_its_formula(name):
    """With each activation, whose values and slopes in half precision are one rounding
    from float32, also where a cube is beyond float16.
    """
    params = {
        "inner": {"kernel": normal(12, 4, 16), "bias": normal(13, 16)},
        "outer": {"kernel": normal(14, 16, 4), "bias": normal(15, 4)},
    }
    x = normal(16, 2, 3, 4)
    inner, outer = params["inner"], params["outer"]
    hidden = wide(x) @ inner["kernel"] + inner["bias"]
    hidden = np.vectorize(ACTIVATIONS_64[name])(hidden)
    found = jax.jit(functools.partial(F.feed_forward, activation=name))(params, x)
    same(found, hidden @ outer["kernel"] + outer["bias"])

    @jax.jit
    def both(x):
        slope = jax.grad(lambda x: ACTIVATIONS[name](x).astype(jnp.float32).sum())
        return ACTIVATIONS[name](x), slope(x)

    points = [-60000, -200, -45, -3, -0.5, 0.25, 2, 45, 200, 60000]
    for dtype, ulp in HALF:
        x = np.array(points, dtype)
        for half, full in zip(both(x), both(x.astype(np.float32)), strict=True):
            assert half.dtype == dtype
            half = np.asarray(half, np.float32)
            np.testing.assert_allclose(half, full, rtol=ulp, atol=2**-24)


@pytest.mark.parametrize(("name", "gate"), GATED.items())
def test_a_gated_feed_forward_layer_equals_its_formula(name, gate):
    """The activation of one map times another, without biases."""
    shapes = {"gate": (4, 16), "inner": (4, 16), "outer": (16, 4)}
    kernels = {
        part: normal(i, *shape) for i, (part, shape) in enumerate(shapes.items())
    }
    params = {part: {"kernel": kernel} for part, kernel in kernels.items()}
    x = normal(16, 2, 3, 4)
    hidden = np.vectorize(ACTIVATIONS_64[gate])(wide(x) @ kernels["gate"])
    hidden = hidden * (wide(x) @ kernels["inner"])
    found = jax.jit(functools.partial(F.feed_forward, activation=name))(params, x)
    same(found, hidden @ kernels["outer"])


def test_rms_norm_equals_its_formula_and_flax():
    """Without mean and bias; half precision is rounded once. A biasless layer norm has
    a bias of zeros.
    """
    x, scale = normal(1, 3, 8) + 5, normal(2, 8)
    mean = np.sqrt((wide(x) ** 2).mean(-1, keepdims=True) + 0.1)
    norm = jax.jit(functools.partial(F.rms_norm, epsilon=0.1))
    same(norm(x, scale), wide(x) / mean * scale)
    flax = linen.RMSNorm(epsilon=0.1)
    same(norm(x, scale), flax.apply({"params": {"scale": scale}}, x))
    for dtype, ulp in HALF:
        half = x.astype(dtype)
        full = norm(half.astype(np.float32), scale)
        assert norm(half, scale).dtype == dtype
        np.testing.assert_allclose(norm(half, scale).astype(np.float32), full, ulp)
    zeros = layer_norm(x, scale, np.zeros_like(scale))
    np.testing.assert_array_equal(layer_norm(x, scale), zeros)


def test_stochastic_depth_drops_whole_rows():
    """A quarter of them; the others are scaled, so that the mean stays."""
    x = jnp.ones((4000, 2, 3))
    found = np.asarray(F.stochastic_depth(x, 0.25, jax.random.key(0)))
    rows = found[:, :1, :1]
    np.testing.assert_array_equal(found, np.broadcast_to(rows, x.shape))
    assert set(np.unique(rows)) == {0, np.float32(1 / 0.75)}
    assert abs(rows.mean() - 1) < 0.03
    assert F.stochastic_depth(x, 0.25, None) is x
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
        F.embed(jnp.asarray(table), tokens)
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


@pytest.mark.parametrize("rate", [0.1, 0.5])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_dropout_scales_what_it_keeps(rate, dtype):
    """Output and gradient are x / (1 - rate) in float32, rounded once, where kept, and
    0 elsewhere. In half precision nothing in float32 is kept for the gradient.
    """
    x, cotangent = (normal(seed, 200, 200).astype(dtype) for seed in (34, 35))

    @jax.jit
    def run(x, cotangent, key):
        dropped, pull = jax.vjp(lambda x: F.dropout(x, rate, key), x)
        return dropped, pull(cotangent)[0], pull

    dropped, gradient, pull = run(x, cotangent, jax.random.key(1))
    kept = np.asarray(dropped) != 0
    deviation = math.sqrt(rate * (1 - rate) / kept.size)
    assert abs(kept.mean() - (1 - rate)) < 5 * deviation
    for found, given in ((dropped, x), (gradient, cotangent)):
        assert found.dtype == dtype
        scaled = (given.astype(np.float32) / np.float32(1 - rate)).astype(dtype)
        expected = np.where(kept, scaled, np.zeros((), dtype)).astype(np.float32)
        ulp = 1e-6 if dtype == "float32" else 0
        np.testing.assert_allclose(np.float32(found), expected, rtol=ulp)
    kinds = {leaf.dtype for leaf in jax.tree.leaves(pull) if leaf.ndim}
    assert dtype == "float32" or jnp.dtype("float32") not in kinds


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
        with pytest.raises(InputError, match="floating-point array, not int32"):
            call()
    for rate in (1.0, -0.1, math.nan):
        with pytest.raises(InputError, match=rf"at least 0 and below 1, not {rate}"):
            F.dropout(ones, rate, jax.random.key(0))
    layer = {"kernel": jnp.ones((4, 4)), "bias": ones}
    params = {"inner": layer, "outer": layer}
    line = "activation must be one of relu, gelu, .*, geglu_exact, swiglu, not 'tanh'"
    with pytest.raises(InputError, match=line):
        F.feed_forward(params, jnp.ones((1, 2, 4)), activation="tanh")
