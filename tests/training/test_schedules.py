"""Learning rates: the paper's against its golden values, and every schedule against
its definition in float64.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.errors import InputError
from jaxformer.runs.training import SCHEDULES, TrainingConfig
from jaxformer.training.schedules import (
    constant_schedule,
    cool_down,
    cosine_schedule,
    linear_schedule,
    make_schedule,
    paper_schedule,
)

# Every shape of the rate, by the keys that ask for it.
SHAPES = [{"schedule": name} for name in SCHEDULES]
SHAPES += [
    {"schedule": name, "cooldown_steps": 60}
    for name in ("paper", "inverse_sqrt", "constant")
]


def schedule_of(steps=200, warmup_steps=40, learning_rate=0.3, d_model=64, **changes):
    values = {
        "steps": steps,
        "warmup_steps": warmup_steps,
        "learning_rate": learning_rate,
        **changes,
    }
    return make_schedule(TrainingConfig(**values), d_model)


def rate_of_update(number, steps, warmup, peak, d_model, schedule, cooldown=0):
    """Return the rate of one update, numbered from 1, case by case in Python's
    float64.
    """
    warmup = max(warmup, 1)
    if schedule == "paper":
        peak *= (d_model * warmup) ** -0.5
    # the first update of the cool-down still has the whole rate
    last_of_schedule = steps - cooldown + 1
    if cooldown and number > last_of_schedule:
        whole = rate_of_update(
            last_of_schedule, steps, warmup, 1.0, 1.0 / warmup, schedule
        )
        return peak * whole * max(steps + 1 - number, 0) / cooldown
    if number <= warmup:
        return peak * number / warmup
    if schedule in ("paper", "inverse_sqrt"):
        return peak * warmup**0.5 / number**0.5
    if schedule == "constant":
        return peak
    if number > steps:
        return 0.0
    made = (number - warmup) / (steps + 1 - warmup)
    return peak * (
        1.0 - made if schedule == "linear" else 0.5 + 0.5 * np.cos(np.pi * made)
    )


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
    """The rate of update number ``step`` is equation 3 of the paper."""
    assert float(paper_schedule(d_model, 4_000)(step - 1)) == pytest.approx(
        expected, rel=1e-6
    )


@pytest.mark.parametrize(
    ("d_model", "expected"), [(512, 9.8821177e-4), (1024, 6.9877124e-4)]
)
def test_a_factor_scales_the_rate(d_model, expected):
    """The peak of tensor2tensor's later settings: twice the paper's rate, 8000 steps
    of warm-up.
    """
    assert float(paper_schedule(d_model, 8_000, factor=2.0)(7_999)) == pytest.approx(
        expected, rel=1e-6
    )


def test_equals_the_formula_everywhere():
    """Equation 3 in float64 at many steps, some of them drawn."""
    steps = np.unique(
        np.concatenate(
            [np.arange(1, 200), np.random.default_rng(0).integers(1, 1_000_000, 200)]
        )
    )
    found = paper_schedule(96, 300, 0.5)(jnp.asarray(steps - 1))
    expected = 0.5 * 96**-0.5 * np.minimum(steps**-0.5, steps * 300**-1.5)
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-6)


def test_the_first_update_has_a_rate():
    """Counting starts at update 1: after no update the rate is above 0."""
    assert float(paper_schedule(512, 4_000)(0)) > 0.0


@pytest.mark.parametrize("warmup", [0, 1])
@pytest.mark.parametrize("count", [0, jnp.zeros((), jnp.int32), np.int32(0)])
def test_finite_without_warmup(warmup, count):
    """Warm-up of 0 and 1 begin at the peak, for a Python, a NumPy and a JAX zero
    alike.
    """
    assert float(paper_schedule(512, warmup)(count)) == pytest.approx(
        512**-0.5, rel=1e-6
    )


def test_the_peak_is_the_last_step_of_warmup():
    """The rate rises strictly to step ``warmup``, falls strictly behind it, and
    jumps nowhere.
    """
    warmup = 400
    # rates[i] belongs to step i + 1
    rates = np.asarray(paper_schedule(512, warmup)(jnp.arange(3 * warmup)))
    assert rates.argmax() == warmup - 1
    assert (np.diff(rates[:warmup]) > 0.0).all()
    assert (np.diff(rates[warmup - 1 :]) < 0.0).all()
    # the rise of one step of the warm-up
    assert np.abs(np.diff(rates)).max() <= rates[0] * 1.001


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("warmup", [0, 1, 40])
def test_every_schedule_equals_its_definition(shape, warmup):
    """The rate of each update, also of those behind the last, is that of the
    definition in float64.
    """
    found = schedule_of(warmup_steps=warmup, **shape)(jnp.arange(250))
    cooldown = shape.get("cooldown_steps", 0)
    expected = [
        rate_of_update(n, 200, warmup, 0.3, 64, shape["schedule"], cooldown)
        for n in range(1, 251)
    ]
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(np.asarray(found), expected, rtol=2e-6, atol=1e-12)


def test_the_default_is_the_papers_schedule():
    """The configuration's defaults give equation 3, bit for bit."""
    counts = jnp.arange(0, 100_000, 37)
    found, expected = (
        make_schedule(TrainingConfig(), 512)(counts),
        paper_schedule(512, 4_000)(counts),
    )
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_schedule_rises_from_the_first_update(shape):
    """The first update has the peak over the warm-up's length, and every one up to
    the last moves.
    """
    rates = np.asarray(schedule_of(**shape)(jnp.arange(200)), np.float64)
    np.testing.assert_allclose(rates[0], rates.max() / 40, rtol=1e-6)
    assert (rates > 0.0).all()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("warmup", [0, 1])
@pytest.mark.parametrize("count", [0, jnp.zeros((), jnp.int32), np.int32(0)])
def test_every_schedule_is_finite_without_warmup(shape, warmup, count):
    """Warm-up of 0 and 1 begin at the peak, for a Python, a NumPy and a JAX zero,
    also in jit.
    """
    schedule = schedule_of(warmup_steps=warmup, **shape)
    expected = 0.3 * (64**-0.5 if shape["schedule"] == "paper" else 1.0)
    with jax.numpy_dtype_promotion("strict"):
        for rate in (schedule(count), jax.jit(schedule)(count)):
            assert rate.dtype == jnp.float32
            assert float(rate) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_peak_is_the_last_step_of_warmup(shape):
    """The peak is that of update ``warmup``, no rate before it is used twice, and
    none jumps.
    """
    rates = np.asarray(schedule_of(**shape)(jnp.arange(200)), np.float64)
    peak = 0.3 * ((64 * 40) ** -0.5 if shape["schedule"] == "paper" else 1.0)
    assert rates[39] == rates.max() == pytest.approx(peak, rel=1e-6)
    assert (np.diff(rates[:40]) > 0.0).all()
    assert (np.diff(rates[39:]) <= 0.0).all()
    # the rise of one step of the warm-up
    assert np.abs(np.diff(rates)).max() <= rates[0] * 1.001


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_rate_behind_the_last_update(shape):
    """When all updates were made, what falls to 0 is exactly 0 and stays there; the
    rest stays finite and above 0.
    """
    rates = np.asarray(schedule_of(**shape)(jnp.asarray([200, 201, 1_000, 2**31 - 1])))
    if shape["schedule"] in ("linear", "cosine") or "cooldown_steps" in shape:
        assert (rates == 0.0).all()
    else:
        assert np.isfinite(rates).all()
        assert (rates > 0.0).all()


@pytest.mark.parametrize("schedule", ["paper", "inverse_sqrt", "constant"])
def test_a_cooldown_is_a_straight_line(schedule):
    """Up to its first update the rate is that without cool-down, and from there
    falls by equal parts.
    """
    plain, cooled = (
        np.asarray(
            schedule_of(schedule=schedule, cooldown_steps=steps)(jnp.arange(201)),
            np.float64,
        )
        for steps in (0, 60)
    )
    # the first of the last 60 updates has count 140
    np.testing.assert_array_equal(cooled[:141], plain[:141])
    np.testing.assert_allclose(np.diff(cooled[140:]), -plain[140] / 60, rtol=1e-4)
    assert cooled[200] == 0.0


def test_a_cooldown_longer_than_the_training():
    """A training shorter than warm-up and cool-down has finite rates too, none of
    them negative.
    """
    rates = np.asarray(cool_down(paper_schedule(64, 4_000), 10, 30)(jnp.arange(20)))
    assert np.isfinite(rates).all()
    assert (rates[:10] > 0.0).all()
    assert (rates[10:] == 0.0).all()


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_warmup_as_long_as_the_training(schedule):
    """A warm-up of all updates is a rise alone, and a training of one update makes
    it at the peak.
    """
    rates = np.asarray(schedule_of(steps=40, schedule=schedule)(jnp.arange(41)))
    np.testing.assert_allclose(rates[:40], 0.3 * np.arange(1, 41) / 40, rtol=1e-6)
    assert rates[40] == 0.0
    assert float(
        schedule_of(steps=1, warmup_steps=1, schedule=schedule)(0)
    ) == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (
            lambda: linear_schedule(1e-3, 100, 50),
            "warmup_steps 100 do not fit into 50 steps",
        ),
        (
            lambda: cosine_schedule(1e-3, 100, 50),
            "warmup_steps 100 do not fit into 50 steps",
        ),
        (lambda: linear_schedule(1e-3, 0, 0), "warmup_steps 0 do not fit into 0 steps"),
        (
            lambda: constant_schedule(1e-3, -1),
            "warmup_steps must be at least 0, not -1",
        ),
        (
            lambda: cool_down(constant_schedule(1e-3, 1), 10, 0),
            "a cool-down takes at least 1 step, not 0",
        ),
        (lambda: paper_schedule(0, 10), "the d_model of a model, at least 1, not 0"),
    ],
)
def test_a_schedule_that_cannot_be(make, line):
    """Its rates would be negative, or no numbers."""
    with pytest.raises(InputError, match=line):
        make()
