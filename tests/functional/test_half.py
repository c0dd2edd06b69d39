"""Linear maps, norms and ReLU as accelerators compute them, against float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import InputError
from jaxformer import functional as F
from jaxformer.functional.layers import ACTIVATIONS, linear_maps

ULP = {"float32": 2**-20, "bfloat16": 2**-8, "float16": 2**-11}
NAMES = ("key", "value", "query")
WIDTH, HEADS = 8, 2

platforms = pytest.mark.usefixtures("platform")
dtypes = pytest.mark.parametrize("dtype", ULP)


def draw(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def wide(x):
    return np.asarray(x, np.float64)


def near(found, exact, roundings, dtype):
    """A number of roundings of the largest entry."""
    assert found.shape == exact.shape
    error = np.abs(wide(found) - exact).max()
    assert error <= roundings * ULP[dtype] * np.abs(exact).max()


def three_maps():
    return {
        name: {
            "kernel": draw(i, WIDTH, HEADS, WIDTH // HEADS),
            "bias": draw(10 + i, HEADS, WIDTH // HEADS),
        }
        for i, name in enumerate(NAMES)
    }


def apply(params, x):
    return linear_maps(x, *(params[name] for name in NAMES))


@functools.partial(jax.jit, static_argnums=0)
def derive(function, cotangent, *arguments):
    output, pull = jax.vjp(function, *arguments)
    return output, pull(cotangent)


@platforms
@dtypes
def test_several_maps_of_one_input_equal_their_formula(dtype):
    """Outputs and every gradient, against float64; those of parameters are float32."""
    params, x = three_maps(), draw(3, 2, 5, WIDTH).astype(dtype)
    cotangents = tuple(
        draw(20 + i, 2, 5, HEADS, WIDTH // HEADS).astype(dtype) for i in range(3)
    )
    outputs, (to_params, to_x) = derive(apply, cotangents, params, x)
    exact_to_x = 0.0
    for name, output, cotangent in zip(NAMES, outputs, cotangents, strict=True):
        kernel, bias = wide(params[name]["kernel"].astype(dtype)), params[name]["bias"]
        assert output.dtype == x.dtype
        near(output, np.einsum("btd,dhk->bthk", wide(x), kernel) + bias, 2, dtype)
        exact_to_x += np.einsum("bthk,dhk->btd", wide(cotangent), kernel)
        found = to_params[name]
        assert {leaf.dtype for leaf in found.values()} == {jnp.dtype("float32")}
        exact = np.einsum("btd,bthk->dhk", wide(x), wide(cotangent))
        near(found["kernel"], exact, 1, "float32")
        near(found["bias"], wide(cotangent).sum((0, 1)), 1, "float32")
    assert to_x.dtype == x.dtype
    near(to_x, exact_to_x, 3, dtype)


@platforms
@dtypes
@pytest.mark.parametrize("bias", [True, False])
def test_a_map_of_several_axes_equals_its_formula(dtype, bias):
    """Also without a bias, and with parameters of the dtype of the input."""
    x = draw(4, 3, 5, HEADS, WIDTH).astype(dtype)
    kernel, cotangent = (
        draw(seed, *shape).astype(dtype)
        for seed, shape in ((5, (HEADS, WIDTH, 6)), (6, (3, 5, 6)))
    )
    added = draw(7, 6).astype(dtype) if bias else None
    function = functools.partial(F.linear, contract=2)
    output, found = derive(function, cotangent, x, kernel, added)
    exact = np.einsum("bthk,hkd->btd", wide(x), wide(kernel))
    near(output, exact + (wide(added) if bias else 0), 2, dtype)
    near(found[0], np.einsum("btd,hkd->bthk", wide(cotangent), wide(kernel)), 1, dtype)
    near(found[1], np.einsum("bthk,btd->hkd", wide(x), wide(cotangent)), 1, dtype)
    if bias:
        near(found[2], wide(cotangent).sum((0, 1)), 1, dtype)
    assert [leaf.dtype for leaf in jax.tree.leaves(found)] == [x.dtype] * (2 + bias)


@platforms
@dtypes
@pytest.mark.parametrize("centre", [0.0, 30.0])
def test_gradients_of_a_norm_are_those_of_its_formula(dtype, centre):
    """Against float64, also far from zero; a constant row has finite gradients."""
    x = (draw(30, 2, 3, 16) + centre).astype(dtype)
    scale, bias = draw(31, 16), draw(32, 16).astype(dtype)
    cotangent = draw(33, 2, 3, 16).astype(dtype)
    output, found = derive(F.layer_norm, cotangent, x, scale, bias)
    centred = wide(x) - wide(x).mean(-1, keepdims=True)
    factor = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
    normal, to_normal = centred * factor, wide(cotangent) * scale
    part = (normal * to_normal).mean(-1, keepdims=True)
    to_x = factor * (to_normal - to_normal.mean(-1, keepdims=True) - normal * part)
    # float32 itself rounds x less its mean
    slack = 16 if dtype == "float32" and centre else 1.01
    near(output, normal * scale + wide(bias), slack, dtype)
    near(found[0], to_x, slack, dtype)
    near(found[1], (wide(cotangent) * normal).sum((0, 1)), 16, "float32")
    near(found[2], wide(cotangent).sum((0, 1)), 1, dtype)
    assert [leaf.dtype for leaf in found] == [x.dtype, scale.dtype, bias.dtype]
    constant = derive(F.layer_norm, cotangent, np.full_like(x, 3), scale, bias)
    assert all(np.isfinite(wide(leaf)).all() for leaf in jax.tree.leaves(constant))


@dtypes
def test_relu_and_its_slope_are_those_of_jax(dtype):
    """Also at both zeros, in forward mode and of second order."""
    x = jnp.array([-3, -0.0, 0.0, 2**-14, 2, np.inf, -np.inf], dtype)
    change = jnp.arange(1, 8).astype(dtype)
    for relu in (ACTIVATIONS["relu"], jax.jit(ACTIVATIONS["relu"])):
        for ours, theirs in zip(
            jax.jvp(relu, (x,), (change,)),
            jax.jvp(jax.nn.relu, (x,), (change,)),
            strict=True,
        ):
            np.testing.assert_array_equal(wide(ours), wide(theirs))
    (slope,) = jax.vjp(ACTIVATIONS["relu"], x)[1](change)
    np.testing.assert_array_equal(wide(slope), wide(change) * (wide(x) > 0))


@pytest.mark.parametrize(("platform", "matmuls"), [("cpu", 9), ("tpu", 5), ("cuda", 5)])
def test_accelerators_compute_gradients_of_several_maps_in_two_matmuls(
    platform, matmuls
):
    """One for the input and one for all kernels, where a CPU takes two for each map."""
    loss = lambda *given: sum(map(jnp.sum, apply(*given)))  # noqa: E731
    x = draw(70, 2, 3, WIDTH).astype(jnp.bfloat16)
    gradient = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    traced = gradient.trace(three_maps(), x)
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert text.count("stablehlo.dot_general") == matmuls


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_maps_of_other_widths_are_refused_or_computed_apart(dtype):
    """Kernels that differ are applied one by one; an input that none takes and integers
    are errors of one line.
    """
    params, x = three_maps(), jnp.asarray(draw(80, 2, 3, WIDTH), dtype)
    params["value"] = {"kernel": draw(81, WIDTH, HEADS, 5), "bias": None}
    for name, output in zip(NAMES, jax.jit(apply)(params, x), strict=True):
        assert output.shape[2:] == params[name]["kernel"].shape[1:]
    for maps in (params, three_maps()):
        with pytest.raises(InputError, match=str(WIDTH)):
            jax.eval_shape(apply, maps, x[..., 1:])
        with pytest.raises(InputError, match="int32"):
            jax.eval_shape(apply, maps, jnp.ones((2, WIDTH), jnp.int32))
