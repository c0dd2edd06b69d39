"""How parameters begin."""

import math

import jax
import numpy as np
import pytest

import jaxformer.functional as F


@pytest.mark.parametrize(
    ("shape", "contract", "fans"),
    [((64, 4, 16), 1, (64, 64)), ((4, 16, 64), 2, (64, 64)), ((32, 96), 1, (32, 96))],
)
def test_projections_are_glorot_uniform_over_the_whole_matrix(shape, contract, fans):
    """Kernels fill +-sqrt(6 / (fan_in + fan_out)) evenly, all heads as one matrix;
    biases are 0.
    """
    drawn = F.init_linear(jax.random.key(0), shape, contract)
    kernel = np.asarray(drawn["kernel"], np.float64)
    limit = math.sqrt(6 / sum(fans))
    assert kernel.shape == shape
    assert 0.99 * limit < np.abs(kernel).max() <= limit
    # The estimate of a deviation from n numbers is off by about 1 / sqrt(n) of it.
    spread = pytest.approx(limit / math.sqrt(3), rel=5 / math.sqrt(kernel.size))
    assert kernel.std() == spread
    assert abs(kernel.mean()) < 5 * limit / math.sqrt(3 * kernel.size)
    assert drawn["bias"].shape == shape[contract:]
    assert not drawn["bias"].any()


def test_tables_have_deviation_one_over_root_d():
    table = F.init_embedding(jax.random.key(2), (300, 64))
    table = np.asarray(table, np.float64)
    assert table.std() == pytest.approx(1 / 8, rel=0.02)
    assert abs(table.mean()) < 5 / 8 / math.sqrt(table.size)
