"""Weights in 8 bits, against NumPy in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.functional import layers
from jaxformer.functional.int8 import (
    multiply_int8,
    multiply_int8_rows,
    quantize,
)

multiply = jax.jit(multiply_int8, static_argnames="contract")
small = jax.jit(quantize, static_argnums=1)


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def rounded(x, axis):
    """Round each output so that its largest weight is 127, in float64."""
    scales = np.abs(x).max(axis=axis, keepdims=True).astype(np.float64) / 127
    return np.rint(x / scales) * scales


def rounded_rows(x):
    """Round each row to 255 steps from its least to its largest, 0 among them."""
    least = x.astype(np.float64).min(1, keepdims=True)
    largest = x.astype(np.float64).max(1, keepdims=True)
    steps = (largest - least) / 254
    first = np.rint((least + largest) / 2 / steps) - 128
    return np.clip(np.rint(x / steps), first, first + 255) * steps


@pytest.mark.parametrize("axes", [(0,), (0, 1)])
def test_weights_are_rounded_by_at_most_half_a_step(axes):
    """Each output's largest weight becomes 127 or -127."""
    weights = draw(1, 12, 7, 5) * np.geomspace(1e-3, 1e3, 5, dtype=np.float32)
    values, scales, sums = map(np.asarray, small(weights, axes))
    assert values.dtype == jnp.int8
    assert scales.shape == weights.shape[len(axes) :]
    assert (np.abs(values.astype(np.int32)).max(axis=axes) == 127).all()
    meant = values * np.expand_dims(scales, axes).astype(np.float64)
    least = 1e-6 * np.abs(meant).max()
    np.testing.assert_allclose(sums, meant.sum(axes), rtol=1e-6, atol=least)
    assert (np.abs(meant - weights) <= scales * (0.5 + 1e-5)).all()


def test_products_are_those_of_the_rounded_operands():
    """Whole numbers add up: the product is that of both rounded operands in float64,
    over one axis or two, and as a table's rows.
    """
    kernel = draw(3, 96, 6, 8)
    weights = small(kernel, (0,))
    for shift in (0, 3):
        x = draw(2, 3, 4, 96) + np.float32(shift)
        both = rounded_rows(x.reshape(12, 96)), rounded(kernel.reshape(96, 48), 0)
        found = multiply(x, weights)
        assert found.dtype == jnp.float32
        least = 2e-6 * np.abs(both[0]).max() * np.abs(kernel).sum(0).max()
        expected = (both[0] @ both[1]).reshape(3, 4, 6, 8)
        np.testing.assert_allclose(found, expected, rtol=2e-6, atol=least)
    x, kernel = draw(4, 5, 4, 8), draw(5, 4, 8, 6)
    flat = small(kernel.reshape(32, 6), (0,))
    expected = multiply(x.reshape(5, 32), flat)
    found = multiply(x, small(kernel, (0, 1)), contract=2)
    np.testing.assert_array_equal(found, expected)
    rows = small(kernel.reshape(32, 6).T, (1,))
    found = jax.jit(multiply_int8_rows)(x.reshape(5, 32), rows)
    np.testing.assert_array_equal(found, expected)


def test_rows_of_all_kinds():
    """After a ReLU rows are rounded half as coarsely as by their largest number. Zeros
    stay zeros, rows of one number are exact, and NaN stays in its row.
    """
    exact = small(np.eye(128, dtype=np.float32), (0,))
    x = np.maximum(draw(12, 64, 128), 0)
    errors = np.abs(multiply(x, exact) - x) / x.max(axis=1, keepdims=True)
    assert 0.4 / 254 < errors.max() <= 0.51 / 254
    assert errors[x == 0].max() < 1e-6

    x = np.zeros((64, 128), np.float32)
    x[0, :2], x[1, :2], x[2], x[3] = (-1, 3), (-0.17, 5), 2.3, 1.0
    found = np.asarray(multiply(x, exact))
    np.testing.assert_allclose(found[:2, 2:], 0, atol=1e-6)
    np.testing.assert_allclose(found[2:4], x[2:4], rtol=1e-6)
    assert not found[4:].any()
    ones = np.zeros((128, 3), np.float32)
    ones[:, 1] = 1.0
    found = np.asarray(multiply(x, small(ones, (0,))))
    assert np.abs(found[:2, 1] - x[:2].sum(1)).max() <= 1.5 * 6 / 254
    assert not found[:, [0, 2]].any()
    # Not compiled: the quicker compiler of the tests loses NaN in a minimum.
    x = jnp.ones((2, 8)).at[1, 3].set(jnp.nan)
    found = multiply_int8(x, small(np.ones((8, 3), np.float32), (0,)))
    np.testing.assert_array_equal(np.isnan(found), [[False] * 3, [True] * 3])


def test_a_linear_map_keeps_the_type_of_its_input():
    x = draw(8, 3, 64).astype(jnp.bfloat16)
    output = jax.eval_shape(layers.linear, x, small(draw(9, 64, 32), (0,)))
    assert output.dtype == jnp.bfloat16
