"""Matmuls accumulate in float32 and multiply in the compute dtype, forward and
backward.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.functional.attention import dot_product_attention
from jaxformer.functional.layers import embed, linear, project_to_vocabulary

WIDTH, HEADS, VOCABULARY = 16, 2, 24


def loss(params, x):
    heads = linear(x, params["kernel"], params["bias"])
    mixed, _ = dot_product_attention(heads, heads, heads)
    x = linear(mixed, params["output"], contract=2)
    return jnp.sum(jnp.sin(project_to_vocabulary(params["table"], x)))


def arguments(dtype, seed=0):
    keys = jax.random.split(jax.random.key(seed), 4)
    params = {
        "kernel": 0.3 * jax.random.normal(keys[0], (WIDTH, HEADS, WIDTH // HEADS)),
        "bias": jnp.zeros((HEADS, WIDTH // HEADS)),
        "output": 0.3 * jax.random.normal(keys[1], (HEADS, WIDTH // HEADS, WIDTH)),
        "table": 0.3 * jax.random.normal(keys[2], (VOCABULARY, WIDTH)),
    }
    return params, jax.random.normal(keys[3], (3, 5, WIDTH)).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("platform", ["cuda", "tpu", "cpu"])
def test_every_product_of_a_gradient_has_operands_of_the_type_of_the_computation(
    dtype, platform
):
    """None is computed in float32 under half precision, whose units would stand
    idle.
    """
    lowered = (
        jax.jit(jax.grad(loss, argnums=(0, 1)))
        .trace(*arguments(dtype))
        .lower(lowering_platforms=(platform,))
    )
    operands = re.findall(
        r"dot_general.*: \(tensor<\S*x(\w+)>, tensor<\S*x(\w+)>\) ->", lowered.as_text()
    )
    assert len(operands) == 15  # five products, and two for the gradients of each
    short = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}[dtype]
    assert set(operands) == {(short, short)}


def compiled_operands(function, *arguments):
    """Return the types of both operands of each product in the program that JAX
    compiles for this machine.
    """
    found = []
    for computation in (
        jax.jit(function).lower(*arguments).compile().as_text().split("\n}\n")
    ):
        types = dict(re.findall(r"%([\w.-]+) = (\w+)\[", computation))
        found += [
            (types[x], types[y])
            for x, y in re.findall(r" dot\(%([\w.-]+), %([\w.-]+)\)", computation)
        ]
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_compiler_leaves_operands_what_they_are(dtype):
    """Gradients of linear maps and logits are of half precision where a CPU
    multiplies forwards in that.
    """

    def predict(params, x):
        return project_to_vocabulary(
            params["table"], jnp.sin(linear(x, params["kernel"])).astype(x.dtype)
        )

    draw = np.random.default_rng(8).standard_normal
    params = {
        "kernel": jnp.asarray(draw((64, 128)), jnp.float32),
        "table": jnp.asarray(draw((256, 128)), jnp.float32),
    }
    x = jnp.asarray(draw((32, 64)), dtype)
    forwards = compiled_operands(lambda x: linear(x, params["kernel"]), x)
    assert len(forwards) == 1
    both = compiled_operands(
        jax.grad(lambda *given: jnp.sum(jnp.sin(predict(*given))), argnums=(0, 1)),
        params,
        x,
    )
    assert len(both) == 6
    assert set(both) == set(forwards)


@pytest.mark.parametrize(
    ("dtype", "rounding"), [("bfloat16", 2**-8), ("float16", 2**-11)]
)
def test_gradients_in_half_precision_are_those_of_float32_up_to_rounding(
    dtype, rounding
):
    """They differ by some roundings of the largest entry, and those of parameters
    are float32.
    """
    exact = jax.grad(loss, argnums=(0, 1))(*arguments("float32"))
    found = jax.grad(loss, argnums=(0, 1))(*arguments(dtype))
    assert {leaf.dtype for leaf in jax.tree.leaves(found[0])} == {jnp.dtype("float32")}
    for near, right in zip(jax.tree.leaves(found), jax.tree.leaves(exact), strict=True):
        error = np.abs(np.asarray(near, np.float32) - np.asarray(right)).max()
        assert error < 12 * rounding * np.abs(np.asarray(right)).max()


def test_float32_can_be_differentiated_forward_too():
    """Forward and reverse mode agree on the directional derivative of all products
    together.
    """
    params, x = arguments("float32")
    _, slope = jax.jvp(lambda x: loss(params, x), (x,), (jnp.ones_like(x),))
    gradient = jax.grad(loss, argnums=1)(params, x)
    np.testing.assert_allclose(slope, gradient.sum(), rtol=1e-4)


@pytest.mark.parametrize(
    ("dtype", "rounding"), [("bfloat16", 2**-8), ("float16", 2**-11)]
)
def test_attention_in_half_precision_has_forward_mode_and_hessian_vector_products(
    dtype, rounding
):
    """Tangents, forward over reverse and reverse over forward are those of float32
    up to rounding.
    """

    def energy(x):
        return jnp.sum(jnp.sin(dot_product_attention(x, x, x)[0].astype(jnp.float32)))

    drawn = np.random.default_rng(3).standard_normal((2, 1, 4, 2, 8))
    x, direction = jnp.asarray(drawn, dtype)

    def tangent(x):
        return jax.jvp(energy, (x,), (direction.astype(x.dtype),))[1]

    def hessian_vector(x):
        return jax.jvp(jax.grad(energy), (x,), (direction.astype(x.dtype),))[1]

    for function in (tangent, hessian_vector, jax.grad(tangent)):
        found, exact = (
            np.asarray(jax.jit(function)(given), np.float32)
            for given in (x, x.astype(jnp.float32))
        )
        assert np.abs(found - exact).max() < 24 * rounding * np.abs(exact).max()
    batched = jax.vmap(lambda x: jax.jvp(energy, (x[None],), (x[None],))[1])
    assert np.isfinite(jax.jit(batched)(x)).all()
    assert jax.eval_shape(jax.jacfwd(energy), x).shape == x.shape


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_linear_in_half_precision_refuses_forward_mode_and_does_what_its_docstring_says(
    dtype,
):
    """jvp raises; in float32 it works; a Hessian-vector product is the gradient of a
    product with the gradient.
    """
    params, x = arguments(dtype)

    def energy(x):
        return jnp.sum(jnp.sin(linear(x, params["kernel"]).astype(jnp.float32)))

    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(energy, (x,), (x,))
    wide = x.astype(jnp.float32)
    exact = jax.jvp(jax.grad(energy), (wide,), (wide,))[1]
    twice = jax.grad(lambda y: jnp.vdot(jax.grad(energy)(y).astype(jnp.float32), wide))(
        x
    )
    assert (
        np.abs(np.asarray(twice, np.float32) - exact).max()
        < 2**-4 * np.abs(exact).max()
    )


@pytest.mark.parametrize("kept", ["bfloat16", "float32"])
def test_weights_have_gradients_of_their_own_type(kept):
    """Also a table that is looked up and multiplied, whose two gradients are added
    up.
    """

    def tied(table, tokens):
        return project_to_vocabulary(
            table, embed(table, tokens).astype(jnp.bfloat16)
        ).sum()

    table = jnp.ones((VOCABULARY, WIDTH), kept)
    gradient = jax.grad(tied)(table, jnp.array([[1, 2, 3]]))
    assert gradient.dtype == table.dtype
    assert (np.asarray(gradient, np.float32) > 0).all()
