"""Matmuls accumulate in float32 and multiply in the compute dtype, forward and
backward.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.functional.attention import dot_product_attention
from jaxformer.functional.kernels import _log_sum_exp_in_one_pass, log_sum_exp
from jaxformer.functional.layers import embed, linear, project_to_vocabulary

WIDTH, HEADS, VOCABULARY = 16, 2, 24


def loss(params, x):
    heads = linear(x, params["kernel"], params["bias"])
    mixed, _ = dot_product_attention(heads, heads, heads)
    x = linear(mixed, params["output"], contract=2)
    return jnp.sum(jnp.sin(project_to_vocabulary(params["table"], x)))


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def arguments(dtype):
    params = {
        "kernel": 0.3 * draw(0, WIDTH, HEADS, WIDTH // HEADS),
        "bias": np.zeros((HEADS, WIDTH // HEADS), np.float32),
        "output": 0.3 * draw(1, HEADS, WIDTH // HEADS, WIDTH),
        "table": 0.3 * draw(2, VOCABULARY, WIDTH),
    }
    return params, draw(3, 3, 5, WIDTH).astype(dtype)


gradient = jax.jit(jax.grad(loss, argnums=(0, 1)))


@pytest.mark.parametrize(
    ("dtype", "short", "platform"),
    [
        ("float32", "f32", "cpu"),
        ("bfloat16", "bf16", "cpu"),
        ("bfloat16", "bf16", "tpu"),
        ("float16", "f16", "cuda"),
    ],
)
def test_every_matmul_of_a_gradient_has_operands_of_the_compute_dtype(
    dtype, short, platform
):
    """In float32 half-precision units would be idle."""
    traced = gradient.trace(*arguments(dtype))
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    pattern = r"dot_general.*: \(tensor<\S*x(\w+)>, tensor<\S*x(\w+)>\) ->"
    operands = re.findall(pattern, text)
    assert len(operands) == 15  # five matmuls, and two for the gradients of each
    assert set(operands) == {(short, short)}


def test_linear_in_half_precision_refuses_forward_mode():
    """As its docstring says: jvp raises but in float32, and a Hessian-vector product is
    the gradient of a product with the gradient.
    """
    params, x = arguments("bfloat16")
    kernel = jnp.asarray(params["kernel"])

    def energy(x):
        return jnp.sum(jnp.sin(linear(x, kernel).astype(jnp.float32)))

    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(energy, (jnp.asarray(x),), (jnp.asarray(x),))
    wide = x.astype(np.float32)
    exact = jax.jit(lambda x: jax.jvp(jax.grad(energy), (x,), (x,))[1])(wide)
    along = lambda y: jnp.vdot(jax.grad(energy)(y).astype(jnp.float32), wide)  # noqa: E731
    twice = np.asarray(jax.jit(jax.grad(along))(x), np.float32)
    assert np.abs(twice - exact).max() < 2**-4 * np.abs(exact).max()


@pytest.mark.parametrize("kept", ["bfloat16", "float32"])
def test_weights_have_gradients_of_their_own_type(kept):
    """Also a table that is looked up and multiplied, whose gradients add up."""
    tokens = np.array([[1, 2, 3]])

    def tied(table):
        x = embed(table, jnp.asarray(tokens)).astype(jnp.bfloat16)
        return project_to_vocabulary(table, x).sum()

    table = np.ones((VOCABULARY, WIDTH), kept)
    found = jax.jit(jax.grad(tied))(table)
    assert found.dtype == table.dtype
    assert (np.asarray(found, np.float32) > 0).all()


def test_a_sum_of_exponentials_in_one_pass():
    """What a GPU computes is ``jax.nn.logsumexp``, with infinities and NaN, without
    overflow. Other devices take two passes.
    """
    x = 30.0 * draw(7, 6, 5, 300)
    x[0, 0], x[0, 1] = -np.inf, 1e38
    x[1, 0, 7], x[1, 1, 7], x[1, 2, 7] = np.inf, -np.inf, np.nan
    x[2, 0, :299] = -np.inf
    expected = jax.nn.logsumexp(x, axis=-1)
    for function in (log_sum_exp, _log_sum_exp_in_one_pass):
        np.testing.assert_allclose(jax.jit(function)(x), expected, rtol=1e-6)
    lower = jax.jit(log_sum_exp).trace(x).lower
    exponentials = {
        platform: lower(lowering_platforms=(platform,)).as_text().count("exponential")
        for platform in ("cpu", "tpu", "cuda")
    }
    assert exponentials == {"cpu": 1, "tpu": 1, "cuda": 2}
