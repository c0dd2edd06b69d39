"""Weights in 8 bits, against NumPy in float64."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.kernels.int8 import (
    multiply_int8,
    quantize,
)

multiply = jax.jit(multiply_int8, static_argnames="contract")
small = jax.jit(quantize, static_argnums=1)


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


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
