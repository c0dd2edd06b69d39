"""Linear maps, norms, feed-forward, embedding and dropout against float64."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import InputError
from jaxformer import functional as F
from jaxformer.functional.checks import check_right_padding, check_tokens
from jaxformer.functional.int8 import quantize
from jaxformer.functional.layers import ACTIVATIONS


def normal(seed, *shape):
    return jnp.asarray(
        np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    )


def same(actual, expected, tolerance=1e-5):
    np.testing.assert_allclose(
        np.asarray(actual, np.float64), expected, rtol=tolerance, atol=tolerance
    )


def layer_norm_64(x, scale, bias, epsilon):
    x, scale, bias = (np.asarray(a, np.float64) for a in (x, scale, bias))
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(
        x.var(-1, keepdims=True) + epsilon
    ) * scale + bias


@pytest.mark.parametrize(
    ("x", "kernel", "contract", "equation"),
    [
        ((2, 3, 4), (4, 5), 1, "btd,df->btf"),
        ((2, 3, 4), (4, 2, 5), 1, "btd,dhk->bthk"),
        ((2, 3, 2, 5), (2, 5, 4), 2, "bthk,hkd->btd"),
    ],
)
def test_linear_contracts_the_axes_of_its_equation(x, kernel, contract, equation):
    """The product over the inner axes, plus a bias of the outer ones."""
    x, kernel = normal(0, *x), normal(1, *kernel)
    bias = normal(2, *kernel.shape[contract:])
    product = np.einsum(
        equation, np.asarray(x, np.float64), np.asarray(kernel, np.float64)
    )
    same(F.linear(x, kernel, contract=contract), product)
    same(F.linear(x, kernel, bias, contract=contract), product + np.asarray(bias))


def test_linear_adds_up_in_float32_under_bfloat16():
    """A bfloat16 input gives a bfloat16 output, one rounding away from the exact sum
    over 4,096 terms.
    """
    x, kernel, bias = (
        normal(3, 2, 4096).astype(jnp.bfloat16),
        normal(4, 4096, 8),
        normal(5, 8),
    )
    output = F.linear(x, kernel, bias)
    assert output.dtype == jnp.bfloat16
    rounded = np.asarray(kernel.astype(jnp.bfloat16), np.float64)
    exact = np.asarray(x, np.float64) @ rounded + np.asarray(bias, np.float64)
    # half a unit in the last of bfloat16's 8 bits, and a little for the float32 sum
    np.testing.assert_allclose(
        np.asarray(output, np.float64), exact, rtol=2**-8, atol=1e-3
    )


@pytest.mark.parametrize("epsilon", [1e-6, 1e-1])
def test_layer_norm_equals_its_formula(epsilon):
    """Mean 0 and biased variance 1 along the last axis, epsilon beside the variance,
    then scale and bias.
    """
    x, scale, bias = 3 * normal(6, 2, 3, 8) + 5, normal(7, 8), normal(8, 8)
    same(
        F.layer_norm(x, scale, bias, epsilon=epsilon),
        layer_norm_64(x, scale, bias, epsilon),
    )


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize(("size", "centre"), [(1, 100), (1000, 0)])
def test_layer_norm_statistics_are_float32(dtype, size, centre):
    """Half-precision inputs far from 0, or with squares beyond float16, lose only
    the last rounding.
    """
    x = (size * normal(9, 4, 512) + centre).astype(dtype)
    output = F.layer_norm(x, jnp.ones(512), jnp.zeros(512))
    assert output.dtype == dtype
    exact = layer_norm_64(x, np.ones(512), np.zeros(512), 1e-6)
    ulp = 2**-8 if dtype == jnp.bfloat16 else 2**-11
    np.testing.assert_allclose(
        np.asarray(output, np.float64), exact, rtol=1.01 * ulp, atol=1e-4
    )


def test_layer_norm_s_derivatives_are_those_of_its_formula():
    """Backward, forward and of second order as the plain formula has them in
    float64, epsilon included.
    """
    x, change, cotangent = (normal(seed, 3, 8) for seed in (50, 51, 52))
    scale, bias = normal(53, 8), normal(54, 8)

    def plain(x, scale, bias):
        centred = x - x.mean(-1, keepdims=True)
        return (
            centred
            / jnp.sqrt(jnp.square(centred).mean(-1, keepdims=True) + 0.1)
            * scale[None]
            + bias[None]
        )

    def ours(x, scale, bias):
        return F.layer_norm(x, scale, bias, epsilon=0.1)

    def derivatives(norm, *given):
        x, scale, bias, change, cotangent = given
        gradients = jax.vjp(norm, x, scale, bias)[1](cotangent)
        tangent = jax.jvp(norm, (x, scale, bias), (change, scale, bias))[1]
        twice = jax.jvp(
            jax.grad(lambda x: (norm(x, scale, bias) * cotangent).sum()),
            (x,),
            (change,),
        )[1]
        return *gradients, tangent, twice

    found = derivatives(ours, x, scale, bias, change, cotangent)
    with jax.enable_x64(True):
        wide = [
            jnp.asarray(np.asarray(array, np.float64))
            for array in (x, scale, bias, change, cotangent)
        ]
        expected = derivatives(plain, *wide)
        for one, other in zip(found, expected, strict=True):
            same(one, np.asarray(other), 2e-5)


def test_layer_norm_keeps_one_array_for_the_backward_pass():
    """Of all that is as large as the input, the normalised alone waits for the
    gradient.
    """
    _, pull = jax.vjp(
        lambda x: F.layer_norm(x, jnp.ones(64), jnp.zeros(64)), normal(55, 16, 64)
    )
    kept = {id(leaf): leaf for leaf in jax.tree.leaves(pull) if leaf.size == 16 * 64}
    assert len(kept) == 1


def test_layer_norm_of_a_constant_is_its_bias():
    """Without variance there is no division by 0, neither forward nor backward."""
    scale, bias = normal(10, 8), normal(11, 8)
    x = jnp.full((2, 8), 3.0)
    same(F.layer_norm(x, scale, bias), np.broadcast_to(bias, (2, 8)))
    assert np.isfinite(
        jax.grad(lambda x: jnp.square(F.layer_norm(x, scale, bias)).sum())(x)
    ).all()


ACTIVATIONS_64 = {
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: (
        0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    ),
    "gelu_exact": lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
    "silu": lambda x: x / (1 + math.exp(-x)),
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_feed_forward_equals_its_formula(activation):
    """max(0, x W_1 + b_1) W_2 + b_2, with the formula of each activation in place of
    max.
    """
    params = {
        "inner": {"kernel": normal(12, 4, 16), "bias": normal(13, 16)},
        "outer": {"kernel": normal(14, 16, 4), "bias": normal(15, 4)},
    }
    x = normal(16, 2, 3, 4)
    inner, outer = (
        {k: np.asarray(v, np.float64) for k, v in params[name].items()}
        for name in ("inner", "outer")
    )
    hidden = np.asarray(x, np.float64) @ inner["kernel"] + inner["bias"]
    hidden = np.vectorize(ACTIVATIONS_64[activation])(hidden)
    same(
        F.feed_forward(params, x, activation=activation),
        hidden @ outer["kernel"] + outer["bias"],
    )


def test_feed_forward_dropout_acts_between_the_layers():
    """Activation dropout drops hidden units: with as many outputs as units and W_2 =
    1, each is 0 or doubled.
    """
    params = {
        "inner": {"kernel": normal(17, 32, 32), "bias": jnp.ones(32)},
        "outer": {"kernel": jnp.eye(32), "bias": jnp.zeros(32)},
    }
    x = normal(18, 2, 50, 32)
    clean = np.asarray(F.feed_forward(params, x))
    dropped = np.asarray(
        F.feed_forward(params, x, dropout_rate=0.5, dropout_key=jax.random.key(0))
    )
    assert ((dropped == 0) | (np.abs(dropped - 2 * clean) < 1e-5)).all()
    assert abs((dropped[clean > 0] > 0).mean() - 0.5) < 0.1


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_hold_in_half_precision(name, dtype):
    """Values and slopes are finite and one rounding from float32, also where a cube
    is beyond float16.
    """
    activation = ACTIVATIONS[name]
    x = jnp.asarray(
        [-60000.0, -200.0, -45.0, -3.0, -0.5, 0.25, 2.0, 45.0, 200.0, 60000.0], dtype
    )
    found = (
        activation(x),
        jax.grad(lambda x: activation(x).astype(jnp.float32).sum())(x),
    )
    wide = x.astype(jnp.float32)
    expected = activation(wide), jax.grad(lambda x: activation(x).sum())(wide)
    ulp = 2**-8 if dtype == jnp.bfloat16 else 2**-11
    for half, full in zip(found, expected, strict=True):
        assert half.dtype == dtype
        np.testing.assert_allclose(
            half.astype(jnp.float32), full, rtol=ulp, atol=2**-24
        )


def test_embeddings_are_scaled_once():
    """A token's vector is its row times sqrt(d_model); logits are the plain products
    with the rows.
    """
    table, tokens = normal(19, 11, 16), jnp.array([[3, 0, 10], [3, 3, 1]])
    wide = np.asarray(table, np.float64)
    same(F.embed(table, tokens), wide[np.asarray(tokens)] * 4.0)
    np.testing.assert_array_equal(
        F.embed(table, tokens, scale=False), np.asarray(table)[np.asarray(tokens)]
    )
    x = normal(20, 2, 3, 16)
    same(F.project_to_vocabulary(table, x), np.asarray(x, np.float64) @ wide.T)


def test_logits_are_float32_under_bfloat16():
    """Logits come out as float32 whatever the type of the computation."""
    table, x = normal(21, 11, 1024), normal(22, 2, 1024).astype(jnp.bfloat16)
    logits = F.project_to_vocabulary(table, x)
    assert logits.dtype == jnp.float32
    exact = (
        np.asarray(x, np.float64) @ np.asarray(table.astype(jnp.bfloat16), np.float64).T
    )
    # a float32 sum of 1,024 products of size 1
    same(logits, exact, 1e-4)


@pytest.mark.parametrize("token", [-1, 11, 2**31 - 1])
def test_tokens_outside_the_vocabulary_are_refused(token):
    """An id below 0 or at least V raises where its value is known, with the id in
    the line.
    """
    tokens = jnp.array([[3, token]])
    with pytest.raises(
        InputError,
        match=rf"token id {token} is not in 0 to 10; encode with the vocabulary",
    ):
        F.embed(normal(23, 11, 4), tokens)
    # values are unknown inside jit
    jax.jit(lambda tokens: check_tokens(tokens, 11))(tokens)
    with pytest.raises(InputError):
        # but a constant of the program is known
        jax.jit(lambda: check_tokens(tokens, 11))()
    check_tokens(jnp.zeros((2, 0), jnp.int32), 11)
    check_tokens(jnp.array([0, 10]), 11)


def test_padding_before_a_token_is_refused():
    """Padding on the left or in the middle raises; on the right, or everywhere, it
    is fine.
    """
    check_right_padding(jnp.array([[3, 4, 5], [3, 0, 0], [0, 0, 0]]), 0)
    check_right_padding(jnp.array([[3], [0]]), 0)
    check_right_padding(jnp.zeros((2, 0), jnp.int32), 0)
    for row in ([0, 3, 4], [3, 0, 4]):
        with pytest.raises(
            InputError,
            match=(
                r"pad sequences on the right: row 1 has a token after padding \(id 0\)"
            ),
        ):
            check_right_padding(jnp.array([[3, 4, 5], row]), 0)
        check_right_padding(jnp.array([[3, 4, 5], row]), 9)


@pytest.mark.parametrize("rate", [0.1, 0.5])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_dropout_scales_what_it_keeps(rate, dtype):
    """About a share of 1 - rate is kept and divided by 1 - rate, so that the mean
    stays.
    """
    x = jnp.full((200, 200), 3.0, dtype)
    dropped = F.dropout(x, rate, jax.random.key(1))
    assert dropped.dtype == dtype
    values = np.asarray(dropped, np.float32)
    kept = values != 0.0
    assert abs(kept.mean() - (1 - rate)) < 5 * math.sqrt(rate * (1 - rate) / kept.size)
    # one rounding of bfloat16
    np.testing.assert_allclose(
        values[kept], 3.0 / (1 - rate), rtol=1e-6 if dtype == jnp.float32 else 2**-8
    )


def test_dropout_gradient_is_its_mask():
    """The gradient is 1 / (1 - rate) where the value was kept and 0 where it was
    dropped.
    """
    x, key = normal(24, 40, 40), jax.random.key(2)
    dropped = np.asarray(F.dropout(x, 0.2, key))
    gradient = jax.grad(lambda x: F.dropout(x, 0.2, key).sum())(x)
    same(gradient, np.where(dropped != 0, 1 / 0.8, 0.0))


def test_dropout_at_rate_zero_or_without_key_changes_nothing():
    """The very same array comes back."""
    x = normal(25, 3, 4)
    assert F.dropout(x, 0.0, jax.random.key(0)) is x
    assert F.dropout(x, 0.9, None) is x


def test_dropout_masks_differ_between_keys_rows_and_columns():
    """Other keys draw other masks, the same key the same; no row or column repeats
    another.
    """
    x = jnp.ones((64, 64))
    one, again, other = (
        np.asarray(F.dropout(x, 0.5, jax.random.key(k))) for k in (3, 3, 4)
    )
    np.testing.assert_array_equal(one, again)
    assert (one != other).mean() == pytest.approx(0.5, abs=0.05)
    assert len({row.tobytes() for row in one}) == 64
    assert len({column.tobytes() for column in one.T}) == 64


@pytest.mark.parametrize("rate", [1.0, -0.1, 1.5, math.nan])
def test_impossible_dropout_rates_are_refused(rate):
    """Rate 1 would divide by 0; it and what is no rate raise."""
    with pytest.raises(InputError, match=rf"at least 0 and below 1, not {rate}"):
        F.dropout(jnp.ones(3), rate, jax.random.key(0))


@pytest.mark.usefixtures("unchecked")
def test_integers_are_refused():
    """A linear map or a norm of integers would be rounded to integers."""
    x, ones = jnp.arange(8).reshape(2, 4), jnp.ones(4)
    for call in (
        lambda: F.layer_norm(x, ones, ones),
        lambda: F.linear(x, jnp.ones((4, 3))),
    ):
        with pytest.raises(InputError, match="floating-point numbers, not int32"):
            call()


def test_an_unknown_activation_is_named():
    """With those that there are."""
    params = {
        name: {"kernel": jnp.ones((4, 4)), "bias": jnp.ones(4)}
        for name in ("inner", "outer")
    }
    with pytest.raises(
        InputError,
        match="activation must be one of relu, gelu, gelu_exact, silu, not 'tanh'",
    ):
        F.feed_forward(params, jnp.ones((1, 2, 4)), activation="tanh")


def test_nothing_has_no_logits():
    """A batch without rows has an array of its shape, also of a table in 8 bits."""
    table = jnp.ones((7, 4))
    for weights in (table, quantize(table, (1,))):
        assert F.project_to_vocabulary(weights, jnp.zeros((0, 3, 4))).shape == (0, 3, 7)


@pytest.mark.parametrize("token", [-1, -11, -12, 11, 2**31 - 1])
def test_under_jit_a_token_outside_the_table_is_nan_and_touches_no_row(token):
    """Neither end of the table stands in for it, forward or backward."""
    table, tokens = normal(33, 11, 4), jnp.array([[3, token, 0]])
    rows = jax.jit(F.embed)(table, tokens)
    assert np.isnan(rows[0, 1]).all()
    np.testing.assert_array_equal(
        rows[0, 0], jax.jit(F.embed)(table, jnp.array([[3]]))[0, 0]
    )
    gradient = np.asarray(
        jax.jit(jax.grad(lambda table, tokens: F.embed(table, tokens).sum()))(
            table, tokens
        )
    )
    np.testing.assert_array_equal(gradient.any(axis=1), np.isin(np.arange(11), [0, 3]))


@pytest.mark.parametrize("rate", [0.1, 0.3])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_dropout_in_half_precision_scales_in_float32_and_rounds_once(dtype, rate):
    """Output and gradient are x / (1 - rate) in float32, rounded; what is kept for
    the gradient is half or boolean.
    """
    x, cotangent, key = (
        normal(34, 64).astype(dtype),
        normal(35, 64).astype(dtype),
        jax.random.key(5),
    )

    def scaled(values):
        return (values.astype(jnp.float32) / (1.0 - rate)).astype(dtype)

    dropped, pull = jax.vjp(lambda x: F.dropout(x, rate, key), x)
    kept = np.asarray(dropped != 0)
    np.testing.assert_array_equal(dropped[kept], scaled(x)[kept])
    np.testing.assert_array_equal(
        pull(cotangent)[0], jnp.where(kept, scaled(cotangent), jnp.zeros((), dtype))
    )
    assert not {leaf.dtype for leaf in jax.tree.leaves(pull) if leaf.ndim} & {
        jnp.dtype("float32")
    }
