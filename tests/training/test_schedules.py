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
        (512, 4_000, 6.9877124e-4),
        (512, 100_000, 1.3975425e-4),
        (1024, 300_000, 5.7054433e-5),
    ],
)
def test_golden_values(d_model, step, expected):
    """The rate of update number ``step`` is equation 3 of the paper, and that of the
    defaults; tensor2tensor's later settings have twice that rate and 8,000 steps of
    warm-up.
    """
    schedule = make_schedule(TrainingConfig(), d_model)
    assert float(schedule(step - 1)) == pytest.approx(expected, rel=1e-6)
    later = float(paper_schedule(512, 8_000, factor=2.0)(7_999))
    assert later == pytest.approx(9.8821177e-4, rel=1e-6)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("warmup", [0, 1, 40])
def test_every_schedule_equals_its_definition(shape, warmup):
    """The rate of each update, also of those after the last, is that of the definition
    in float64, whatever kind of number counts the updates. Every update moves, and what
    falls to 0 stays there.
    """
    schedule = schedule_of(warmup_steps=warmup, **shape)
    found = jax.jit(schedule)(np.arange(250))
    cooldown = shape.get("cooldown_steps", 0)
    expected = [
        rate_of_update(n, 200, warmup, 0.3, 64, shape["schedule"], cooldown)
        for n in range(1, 251)
    ]
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-12)
    assert (found[:200] > 0.0).all()
    falls = shape["schedule"] in ("linear", "cosine") or cooldown
    assert (np.asarray(found[200:]) == 0.0).all() == bool(falls)
    with jax.numpy_dtype_promotion("strict"):
        for count in (0, np.int32(0), jnp.zeros((), jnp.int32)):
            assert float(schedule(count)) == pytest.approx(expected[0], rel=1e-6)
    if falls:
        assert float(schedule(2**31 - 1)) == 0.0


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
    """A warm-up of all updates is only a rise, and a training of one update makes
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
        (lambda: linear_schedule(1e-3, 100, 50), "100 do not fit into 50 steps"),
        (lambda: cosine_schedule(1e-3, 100, 50), "100 do not fit into 50 steps"),
        (lambda: linear_schedule(1e-3, 0, 0), "0 do not fit into 0 steps"),
        (lambda: constant_schedule(1e-3, -1), "must be at least 0, not -1"),
        (lambda: cool_down(abs, 10, 0), "a cool-down takes at least 1 step, not 0"),
        (lambda: paper_schedule(0, 10), "the d_model of a model, at least 1, not 0"),
    ],
)
def test_a_schedule_that_cannot_be(make, line):
    """Its rates would be negative, or no numbers."""
    with pytest.raises(InputError, match=line):
        make()
