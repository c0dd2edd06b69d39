"""How parameters begin."""

import math

import jax
import numpy as np
import pytest

from jaxformer.nn import initializers


@pytest.mark.parametrize(
    ("shape", "contract", "fans"),
    [((64, 4, 16), 1, (64, 64)), ((4, 16, 64), 2, (64, 64)), ((32, 96), 1, (32, 96))],
)
def test_projections_are_glorot_uniform_over_the_whole_matrix(shape, contract, fans):
    """Kernels fill +-sqrt(6 / (fan_in + fan_out)) evenly, all heads counted as one
    matrix; biases are 0.
    """
    drawn = initializers.projection(jax.random.key(0), shape, contract)
    kernel = np.asarray(drawn["kernel"], np.float64)
    limit = math.sqrt(6 / sum(fans))
    assert kernel.shape == shape
    assert 0.99 * limit < np.abs(kernel).max() <= limit
    # a uniform draw of n numbers: deviation limit / sqrt(3), its estimate off by about
    # 1 / sqrt(n) of it
    assert kernel.std() == pytest.approx(
        limit / math.sqrt(3), rel=5 / math.sqrt(kernel.size)
    )
    assert abs(kernel.mean()) < 5 * limit / math.sqrt(3 * kernel.size)
    assert drawn["bias"].shape == shape[contract:]
    assert not drawn["bias"].any()


def test_the_split_into_heads_changes_no_number():
    """One head of width 16 and four of width 4 begin with the same matrix."""
    key = jax.random.key(1)
    whole, split = (
        initializers.projection(key, shape)["kernel"]
        for shape in ((8, 1, 16), (8, 4, 4))
    )
    np.testing.assert_allclose(whole.reshape(8, 16), split.reshape(8, 16), rtol=1e-6)


def test_tables_have_deviation_one_over_root_d():
    """Embeddings begin with deviation d_model^-0.5, so that the scaled ones have 1."""
    table = np.asarray(initializers.embedding(jax.random.key(2), (300, 64)), np.float64)
    assert table.std() == pytest.approx(1 / 8, rel=0.02)
    assert abs(table.mean()) < 5 / 8 / math.sqrt(table.size)
