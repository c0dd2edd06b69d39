"""Position encodings against the formulas of the paper and golden values."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import InputError
from jaxformer import functional as F

GOLDEN = {
    "interleaved": [0.841471, 0.540302, 0.099833, 0.995004, 0.01, 0.99995, 0.001, 1],
    "halves": [0.841471, 0.046399, 0.002154, 0.0001, 0.540302, 0.998923, 0.999998, 1],
    "concatenated": [0.841471, 0.099833, 0.01, 0.001, 0.540302, 0.995004, 0.99995, 1],
}


@pytest.mark.parametrize("layout", GOLDEN)
@pytest.mark.parametrize("width", [2, 8])
def test_equals_the_formula_in_float64(layout, width):
    """For any shape of positions; PE(1) at width 8 has its golden values."""
    places = np.random.default_rng(0).integers(0, 300, size=(3, 5))
    places[0, 0] = 1
    encode = jax.jit(lambda places: F.sinusoidal(places, width, layout=layout))
    table, half = np.asarray(encode(places)), width // 2
    assert table.dtype == np.float32
    if width == 8:
        np.testing.assert_allclose(table[0, 0], GOLDEN[layout], atol=1e-6)
    for b, t, i in np.ndindex(3, 5, half):
        exponent = i / max(half - 1, 1) if layout == "halves" else i / half
        angle = places[b, t] / 10_000.0**exponent
        columns = [2 * i, 2 * i + 1] if layout == "interleaved" else [i, half + i]
        # The angle, up to 300, is rounded to float32: by 1.5e-5, its power by as much.
        wave = [math.sin(angle), math.cos(angle)]
        np.testing.assert_allclose(table[b, t, columns], wave, atol=5e-5)


def test_impossible_widths_and_layouts_are_refused():
    with pytest.raises(InputError, match=r"even d_model, not 7; try 8"):
        F.sinusoidal(jnp.arange(3), 7)
    line = r"interleaved or halves or concatenated, not 'spiral'"
    with pytest.raises(InputError, match=line):
        F.sinusoidal(jnp.arange(3), 8, layout="spiral")


def test_learned_positions_outside_the_table_are_nan():
    """On either side; gradients go to the rows used."""
    table = np.random.default_rng(1).normal(size=(4, 6)).astype(np.float32)
    places = np.array([[0, 3, 3], [-1, 4, -5]])
    rows = np.asarray(jax.jit(F.learned)(table, places))
    np.testing.assert_array_equal(rows[0], table[[0, 3, 3]])
    assert np.isnan(rows[1]).all()
    slope = jax.jit(jax.grad(lambda table, place: F.learned(table, place).sum()))
    np.testing.assert_array_equal(slope(table, places[0])[:, 0], [1, 0, 0, 2])
