"""Products add up in float32 and multiply in the type of the computation, forward and backward."""

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
def test_every_product_of_a_gradient_has_operands_of_the_type_of_the_computation(dtype, platform):
    """None is computed in float32 under half precision, whose units would stand idle."""
    lowered = jax.jit(jax.grad(loss, argnums=(0, 1))).trace(*arguments(dtype)).lower(lowering_platforms=(platform,))
    operands = re.findall(r"dot_general.*: \(tensor<\S*x(\w+)>, tensor<\S*x(\w+)>\) ->", lowered.as_text())
    assert len(operands) == 15  # five products, and two for the gradients of each
    short = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}[dtype]
    assert set(operands) == {(short, short)}


def compiled_operands(function, *arguments):
    """Give the types of both operands of each product in the program that JAX compiles for this machine."""
    found = []
    for computation in jax.jit(function).lower(*arguments).compile().as_text().split("\n}\n"):
        types = dict(re.findall(r"%([\w.-]+) = (\w+)\[", computation))
        found += [(types[x], types[y]) for x, y in re.findall(r" dot\(%([\w.-]+), %([\w.-]+)\)", computation)]
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_compiler_leaves_operands_what_they_are(dtype):
    """Gradients of linear maps and logits are of half precision where a CPU multiplies forwards in that."""

    def predict(params, x):
        return project_to_vocabulary(params["table"], jnp.sin(linear(x, params["kernel"])).astype(x.dtype))

    draw = np.random.default_rng(8).standard_normal
    params = {"kernel": jnp.asarray(draw((64, 128)), jnp.float32), "table": jnp.asarray(draw((256, 128)), jnp.float32)}
    x = jnp.asarray(draw((32, 64)), dtype)
    forwards = compiled_operands(lambda x: linear(x, params["kernel"]), x)
    assert len(forwards) == 1
    both = compiled_operands(jax.grad(lambda *given: jnp.sum(jnp.sin(predict(*given))), argnums=(0, 1)), params, x)
    assert len(both) == 6
    assert set(both) == set(forwards)


@pytest.mark.parametrize(("dtype", "rounding"), [("bfloat16", 2**-8), ("float16", 2**-11)])
def test_gradients_in_half_precision_are_those_of_float32_up_to_rounding(dtype, rounding):
    """They differ by some roundings of the largest entry, and those of parameters are float32."""
    exact = jax.grad(loss, argnums=(0, 1))(*arguments("float32"))
    found = jax.grad(loss, argnums=(0, 1))(*arguments(dtype))
    assert {leaf.dtype for leaf in jax.tree.leaves(found[0])} == {jnp.dtype("float32")}
    for near, right in zip(jax.tree.leaves(found), jax.tree.leaves(exact), strict=True):
        error = np.abs(np.asarray(near, np.float32) - np.asarray(right)).max()
        assert error < 12 * rounding * np.abs(np.asarray(right)).max()


def test_float32_can_be_differentiated_forward_too():
    """Only half precision has a rule of its own, which knows the backward direction alone."""
    params, x = arguments("float32")
    _, slope = jax.jvp(lambda x: loss(params, x), (x,), (jnp.ones_like(x),))
    gradient = jax.grad(loss, argnums=1)(params, x)
    np.testing.assert_allclose(slope, gradient.sum(), rtol=1e-4)


@pytest.mark.parametrize("kept", ["bfloat16", "float32"])
def test_weights_have_gradients_of_their_own_type(kept):
    """Also a table that is looked up and multiplied, whose two gradients are added up."""

    def tied(table, tokens):
        return project_to_vocabulary(table, embed(table, tokens).astype(jnp.bfloat16)).sum()

    table = jnp.ones((VOCABULARY, WIDTH), kept)
    gradient = jax.grad(tied)(table, jnp.array([[1, 2, 3]]))
    assert gradient.dtype == table.dtype
    assert (np.asarray(gradient, np.float32) > 0).all()
