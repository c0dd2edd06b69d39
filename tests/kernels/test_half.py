"""What accelerators multiply and keep in half precision, and what is refused there."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernels.inputs import draw

from jaxformer import InputError
from jaxformer import kernels as K

WIDTH, HEADS, VOCABULARY = 16, 2, 24
NAMES = ("key", "value", "query")


def three_maps():
    shape = HEADS, WIDTH // HEADS
    return {
        name: {"kernel": 0.3 * draw(i, WIDTH, *shape), "bias": draw(10 + i, *shape)}
        for i, name in enumerate(NAMES)
    }


def apply(params, x):
    maps = [params[name] for name in NAMES]
    linear = K.joint_linear(x, *maps)
    return [linear(x, **each) for each in maps]


def loss(params, x):
    heads = K.linear(x, params["kernel"], params["bias"])
    mixed, _ = K.attend(heads, heads, heads)
    x = K.linear(mixed, params["output"], contract=2)
    return jnp.sum(jnp.sin(K.project_to_vocabulary(params["table"], x)))


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
    params = three_maps()["key"] | {
        "output": draw(1, HEADS, WIDTH // HEADS, WIDTH),
        "table": draw(2, VOCABULARY, WIDTH),
    }
    gradient = jax.jit(jax.grad(loss, argnums=(0, 1)))
    traced = gradient.trace(params, draw(3, 3, 5, WIDTH).astype(dtype))
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    pattern = r"dot_general.*: \(tensor<\S*x(\w+)>, tensor<\S*x(\w+)>\) ->"
    operands = re.findall(pattern, text)
    assert len(operands) == 15  # five matmuls, and two for the gradients of each
    assert set(operands) == {(short, short)}


def test_linear_in_half_precision_refuses_forward_mode():
    """As its docstring says: jvp raises but in float32, and a Hessian-vector product is
    the gradient of a product with the gradient.
    """
    x = jnp.asarray(draw(3, 3, 5, WIDTH), jnp.bfloat16)
    kernel = jnp.asarray(three_maps()["key"]["kernel"])

    def energy(x):
        return jnp.sum(jnp.sin(K.linear(x, kernel).astype(jnp.float32)))

    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(energy, (x,), (x,))
    wide = x.astype(jnp.float32)
    exact = jax.jit(lambda x: jax.jvp(jax.grad(energy), (x,), (x,))[1])(wide)
    along = lambda y: jnp.vdot(jax.grad(energy)(y).astype(jnp.float32), wide)  # noqa: E731
    twice = np.asarray(jax.jit(jax.grad(along))(x), np.float32)
    assert np.abs(twice - exact).max() < 2**-4 * np.abs(exact).max()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_maps_of_other_widths_are_computed_apart(dtype):
    """Kernels that differ are applied one by one. Integers are refused in one line."""
    params, x = three_maps(), jnp.asarray(draw(80, 2, 3, WIDTH), dtype)
    params["value"] = {"kernel": draw(81, WIDTH, HEADS, 5), "bias": None}
    for name, output in zip(NAMES, jax.jit(apply)(params, x), strict=True):
        assert output.shape[2:] == params[name]["kernel"].shape[1:]
    with pytest.raises(InputError, match=r"linear takes x: Float.*, not int32"):
        K.linear(x.astype(int), params["key"]["kernel"])
