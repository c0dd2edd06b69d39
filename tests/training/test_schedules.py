"""The paper's learning rate, against its golden values."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.training.schedules import paper_schedule


@pytest.mark.parametrize(
    ("d_model", "step", "expected"),
    [
        (512, 1, 1.7469281e-7),
        (512, 1_000, 1.7469281e-4),
        (512, 4_000, 6.9877124e-4),
        (512, 8_000, 4.9410588e-4),
        (512, 16_000, 3.4938562e-4),
        (512, 100_000, 1.3975425e-4),
        (1024, 4_000, 4.9410588e-4),
        (1024, 300_000, 5.7054433e-5),
    ],
)
def test_golden_values(d_model, step, expected):
    """The rate of update number ``step`` is equation 3 of the paper (statement 51)."""
    assert float(paper_schedule(d_model, 4_000)(step - 1)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("d_model", "expected"), [(512, 9.8821177e-4), (1024, 6.9877124e-4)])
def test_a_factor_scales_the_rate(d_model, expected):
    """The peak of tensor2tensor's later settings: twice the paper's rate, 8000 steps of warm-up (statement 51)."""
    assert float(paper_schedule(d_model, 8_000, factor=2.0)(7_999)) == pytest.approx(expected, rel=1e-6)


def test_equals_the_formula_everywhere():
    """Equation 3 in float64 at many steps, some of them drawn (statement 51)."""
    steps = np.unique(np.concatenate([np.arange(1, 200), np.random.default_rng(0).integers(1, 1_000_000, 200)]))
    found = paper_schedule(96, 300, 0.5)(jnp.asarray(steps - 1))
    expected = 0.5 * 96**-0.5 * np.minimum(steps**-0.5, steps * 300**-1.5)
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-6)


def test_the_first_update_has_a_rate():
    """Counting starts at update 1: after no update the rate is above 0 (statement 52)."""
    assert float(paper_schedule(512, 4_000)(0)) > 0.0


@pytest.mark.parametrize("warmup", [0, 1])
@pytest.mark.parametrize("count", [0, jnp.zeros((), jnp.int32), np.int32(0)])
def test_finite_without_warmup(warmup, count):
    """Warm-up of 0 and 1 begin at the peak, for a Python, a NumPy and a JAX zero alike (statement 53)."""
    assert float(paper_schedule(512, warmup)(count)) == pytest.approx(512**-0.5, rel=1e-6)


def test_the_peak_is_the_last_step_of_warmup():
    """The rate rises strictly to step ``warmup``, falls strictly behind it, and jumps nowhere (statement 54)."""
    warmup = 400
    rates = np.asarray(paper_schedule(512, warmup)(jnp.arange(3 * warmup)))  # rates[i] belongs to step i + 1
    assert rates.argmax() == warmup - 1
    assert (np.diff(rates[:warmup]) > 0.0).all()
    assert (np.diff(rates[warmup - 1 :]) < 0.0).all()
    assert np.abs(np.diff(rates)).max() <= rates[0] * 1.001  # the rise of one step of the warm-up
