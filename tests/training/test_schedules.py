"""Learning rates: the paper's against its golden values, and every schedule against
its definition in float64.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.runs.training import TrainingConfig
from jaxformer.training.schedules import (
    make_schedule,
    paper_schedule,
)

# Every shape of the rate: schedule and cool-down.
SHAPES = [("paper", 0), ("inverse_sqrt", 60), ("constant", 0), ("constant", 60)]
SHAPES += [("linear", 0), ("cosine", 0)]


def rate_of_update(number, steps, warmup, peak, d_model, schedule, cooldown=0):
    """Return the rate of one update, numbered from 1, case by case in Python's
    float64.
    """
    warmup = max(warmup, 1)
    if schedule == "paper":
        peak *= (d_model * warmup) ** -0.5
    # the first update of the cool-down still has the whole rate
    last = steps - cooldown + 1
    if cooldown and number > last:
        whole = rate_of_update(last, steps, warmup, 1.0, 1.0 / warmup, schedule)
        return peak * whole * max(steps + 1 - number, 0) / cooldown
    if schedule in ("linear", "cosine") and number > steps:
        return 0.0
    if number <= warmup:
        return peak * number / warmup
    if schedule in ("paper", "inverse_sqrt"):
        return peak * warmup**0.5 / number**0.5
    if schedule == "constant":
        return peak
    made = (number - warmup) / (steps + 1 - warmup)
    falling = 1.0 - made if schedule == "linear" else 0.5 + 0.5 * np.cos(np.pi * made)
    return peak * falling


def test_golden_values():
    """The rates of the defaults are equation 3 of the paper; tensor2tensor's later
    settings have twice that rate and 8,000 steps of warm-up.
    """
    for d_model, step, expected in (
        (512, 1, 1.7469281e-7),
        (512, 4_000, 6.9877124e-4),
        (512, 100_000, 1.3975425e-4),
        (1024, 300_000, 5.7054433e-5),
    ):
        schedule = make_schedule(TrainingConfig(), d_model)
        assert float(schedule(step - 1)) == pytest.approx(expected, rel=1e-6)
    later = float(paper_schedule(512, 8_000, factor=2.0)(7_999))
    assert later == pytest.approx(9.8821177e-4, rel=1e-6)


@pytest.mark.parametrize(("schedule", "cooldown"), SHAPES)
@pytest.mark.parametrize(
    ("warmup", "steps"), [(0, 1), (1, 100), (40, 100), (40, 40), (90, 40)]
)
def test_every_schedule_equals_its_definition(schedule, cooldown, warmup, steps):
    """The rate of each update, also of those after the last, is that of the definition
    in float64, whatever kind of number counts the updates. Every update moves, and what
    falls to 0 stays there. A warm-up may be the whole training, and longer.
    """
    if cooldown and warmup + cooldown > steps:
        return
    named = {"schedule": schedule, "cooldown_steps": cooldown, "learning_rate": 0.3}
    config = TrainingConfig(**named, warmup_steps=warmup, steps=steps)
    rate = make_schedule(config, 64)
    found = jax.jit(rate)(np.arange(120))
    expected = [
        rate_of_update(n, steps, warmup, 0.3, 64, schedule, cooldown)
        for n in range(1, 121)
    ]
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-12)
    assert (found[:steps] > 0.0).all()
    falls = schedule in ("linear", "cosine") or cooldown
    assert (np.asarray(found[steps:]) == 0.0).all() == bool(falls)
    with jax.numpy_dtype_promotion("strict"):
        for count in (0, np.int32(0), jnp.zeros((), jnp.int32)):
            assert float(rate(count)) == pytest.approx(expected[0], rel=1e-6)
    if falls:
        assert float(rate(2**31 - 1)) == 0.0
