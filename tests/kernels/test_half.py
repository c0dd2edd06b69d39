"""What accelerators multiply and keep in half precision, and what is refused there."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernels.inputs import draw

from jaxformer import InputError
from jaxformer import functional as F
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


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("linear", [F.linear, K.linear])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_axes_in_another_order_are_refused(linear, dtype):
    """Also where their products are equal, and a bias of one number."""
    x, one = jnp.ones((2, 3, 2, 8), dtype), jnp.ones(1)
    for kernel, bias in ((jnp.ones((8, 2, 16)), None), (jnp.ones((2, 8, 16)), one)):
        with pytest.raises(InputError, match=r"takes .* not x \[2, 3, 2, 8\]"):
            linear(x, kernel, bias, contract=2)


@pytest.mark.usefixtures("unchecked")
def test_targets_in_8_bits_count_a_larger_vocabulary_once():
    """Losses, gradients and hits are those of 32 bits; weights may be whole numbers."""
    x, table = jnp.asarray(draw(0, 2, 5, 4)), jnp.asarray(draw(1, 300, 4))
    tokens = np.arange(10).reshape(2, 5) * 25

    def run(targets, weights):
        loss = lambda x: K.cross_entropy(x @ table.T, targets, weights)[0]  # noqa: E731
        sums = K.output_losses(x, table, targets, weights)
        hits = F.correct(x @ table.T, targets, weights)
        return jax.value_and_grad(loss)(x), sums, hits

    ones = jnp.ones((2, 5))
    found = run(jnp.asarray(tokens, jnp.uint8), ones.astype(int))
    expected = run(jnp.asarray(tokens, jnp.int32), ones)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
