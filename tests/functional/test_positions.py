"""Position encodings against the formulas of the paper and golden values."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import InputError
from jaxformer import functional as F


def test_golden_values_of_the_paper_s_layout():
    """PE(0), PE(1) and PE(2) at width 8, sines and cosines interleaved."""
    table = F.sinusoidal(jnp.arange(3), 8)
    golden = [
        [0, 1, 0, 1, 0, 1, 0, 1],
        [0.841471, 0.540302, 0.099833, 0.995004, 0.01, 0.99995, 0.001, 1],
        [0.909297, -0.416147, 0.198669, 0.980067, 0.019999, 0.9998, 0.002, 0.999998],
    ]
    assert table.dtype == jnp.float32
    np.testing.assert_allclose(table, golden, atol=1e-6)


def test_golden_values_of_the_layout_in_halves():
    """PE(1) at width 8 as in tensor2tensor: sines, then cosines, d/2 - 1 in the
    exponent.
    """
    golden = [0.841471, 0.046399, 0.002154, 0.0001, 0.540302, 0.998923, 0.999998, 1]
    np.testing.assert_allclose(
        F.sinusoidal(jnp.array([1]), 8, layout="halves")[0], golden, atol=1e-6
    )
    np.testing.assert_allclose(
        F.sinusoidal(jnp.array([1]), 2, layout="halves")[0], golden[::4], atol=1e-6
    )


def test_golden_values_of_the_concatenated_layout():
    """PE(1) at width 8 as Marian's models have it: the paper's numbers, sines before
    cosines.
    """
    golden = [0.841471, 0.099833, 0.01, 0.001, 0.540302, 0.995004, 0.99995, 1]
    np.testing.assert_allclose(
        F.sinusoidal(jnp.array([1]), 8, layout="concatenated")[0], golden, atol=1e-6
    )
    place = jnp.arange(30)
    paper, found = F.sinusoidal(place, 8), F.sinusoidal(place, 8, layout="concatenated")
    np.testing.assert_array_equal(
        found, jnp.concatenate([paper[:, 0::2], paper[:, 1::2]], 1)
    )


@pytest.mark.parametrize("layout", ["interleaved", "halves", "concatenated"])
@pytest.mark.parametrize("width", [2, 6, 64])
def test_equals_the_formula_in_float64(layout, width):
    """Each number is the sine or cosine of the formula, for any shape of positions."""
    places = np.random.default_rng(0).integers(0, 300, size=(3, 5))
    table = np.asarray(F.sinusoidal(jnp.asarray(places), width, layout=layout))
    half = width // 2
    for b, t, i in np.ndindex(3, 5, half):
        exponent = i / max(half - 1, 1) if layout == "halves" else i / half
        angle = places[b, t] / 10_000.0**exponent
        sine, cosine = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, half + i)
        # the angle, up to 300, is rounded to float32: half a unit in the last place of
        # 300 is 1.5e-5, its power as much
        np.testing.assert_allclose(
            table[b, t, [sine, cosine]], [math.sin(angle), math.cos(angle)], atol=5e-5
        )


def test_longest_wavelength_at_width_512():
    """The slowest wave of the base model is 60,611.5 positions long."""
    slowest = float(F.sinusoidal(jnp.array([1]), 512)[0, 510])  # sin(2 pi / wavelength)
    assert 2 * math.pi / math.asin(slowest) == pytest.approx(60_611.5, rel=1e-5)


@pytest.mark.parametrize("shift", [1, 7])
def test_a_shift_is_a_rotation(shift):
    """PE(p + k) is PE(p) turned by an angle that depends on k alone, in each pair of
    columns.
    """
    width = 16
    here, there = (
        np.asarray(F.sinusoidal(jnp.arange(20) + k, width), np.float64)
        for k in (0, shift)
    )
    for i in range(width // 2):
        angle = shift / 10_000.0 ** (2 * i / width)
        turn = np.array(
            [[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]]
        )
        np.testing.assert_allclose(
            here[:, 2 * i : 2 * i + 2] @ turn.T, there[:, 2 * i : 2 * i + 2], atol=1e-5
        )


def test_bad_width_and_layout_are_refused():
    """An odd width and an unknown layout each get one line."""
    with pytest.raises(InputError, match=r"even d_model, not 7; try 8"):
        F.sinusoidal(jnp.arange(3), 7)
    with pytest.raises(
        InputError, match=r"interleaved, halves or concatenated, not 'spiral'"
    ):
        F.sinusoidal(jnp.arange(3), 8, layout="spiral")


def test_learned_positions_never_repeat_the_last_row():
    """A position beyond the table is NaN, not the last row again; gradients go to
    the rows used.
    """
    table = jnp.asarray(np.random.default_rng(1).normal(size=(4, 6)).astype(np.float32))
    rows = F.learned(table, jnp.array([[0, 3], [2, 2]]))
    np.testing.assert_array_equal(rows, np.asarray(table)[[[0, 3], [2, 2]]])
    assert np.isnan(F.learned(table, jnp.array([4]))).all()
    counts = jax.grad(lambda table: F.learned(table, jnp.array([0, 2, 2])).sum())(
        table
    )[:, 0]
    np.testing.assert_array_equal(counts, [1, 0, 2, 0])


def test_learned_positions_outside_the_table_are_nan():
    """On either side: a negative position is none from the end."""
    found = F.learned(jnp.ones((3, 2)), jnp.array([-4, -1, 0, 2, 3]))
    assert jnp.isnan(found).all(axis=1).tolist() == [True, True, False, False, True]
