"""Learning rates as functions of the number of updates that were made.

Every schedule rises linearly from the first update, whose rate is ``peak`` divided by
``warmup_steps``, to the peak at update number ``warmup_steps``. 0 and 1 both begin at
the peak. Those that fall to 0 take ``steps``, the updates of the whole training, at
least 1; the last of them still moves the parameters, and after them the rate stays 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxformer.runs.training import TrainingConfig
from jaxformer.typing import Array

Schedule: TypeAlias = Callable[[ArrayLike], Array]
"""The learning rate by the number of updates made before, as optax counts them: 0
gives that of the first update.
"""


def make_schedule(config: TrainingConfig, d_model: int) -> Schedule:
    """Build the schedule that the configuration names, with its warm-up and its
    cool-down. The peak is ``learning_rate``; with ``paper`` that is its factor.
    """
    peak, warmup, steps = config.learning_rate, config.warmup_steps, config.steps
    schedule = {
        "paper": lambda: paper_schedule(d_model, warmup, peak),
        "inverse_sqrt": lambda: inverse_sqrt_schedule(peak, warmup),
        "linear": lambda: linear_schedule(peak, warmup, steps),
        "cosine": lambda: cosine_schedule(peak, warmup, steps),
        "constant": lambda: constant_schedule(peak, warmup),
    }[config.schedule]()
    if not config.cooldown_steps:
        return schedule
    return cool_down(schedule, steps, config.cooldown_steps)


def paper_schedule(d_model: int, warmup_steps: int, factor: float = 1.0) -> Schedule:
    """Return factor * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5) (Vaswani
    et al. 2017, equation 3), where the first update is step 1. The paper's factor is 1.
    """
    return inverse_sqrt_schedule(
        factor * (d_model * float(max(warmup_steps, 1))) ** -0.5, warmup_steps
    )


def inverse_sqrt_schedule(peak: float, warmup_steps: int) -> Schedule:
    """Rise to the peak, then fall as peak * sqrt(warmup_steps / step): the paper's
    shape under a given peak.
    """
    warmup = float(max(warmup_steps, 1))
    return _rise(peak, warmup_steps, lambda count: jnp.sqrt(warmup / (count + 1.0)))


def linear_schedule(peak: float, warmup_steps: int, steps: int) -> Schedule:
    """Rise to the peak, then fall linearly to 0: peak * n / m with n updates left, this
    one included, of the m at the peak.
    """
    return _rise(peak, warmup_steps, _fall(steps, steps - max(warmup_steps, 1) + 1))


def cosine_schedule(peak: float, warmup_steps: int, steps: int) -> Schedule:
    """Rise to the peak, then fall to 0 along half a cosine: peak * (1 + cos(pi * x)) /
    2, with x the share of the updates after the peak that were made (Loshchilov and
    Hutter 2017, equation 5, without restarts).
    """
    left = _fall(steps, steps - max(warmup_steps, 1) + 1)
    # (1 + cos(pi * x)) / 2 = sin(pi / 2 * (1 - x))^2, which loses no digits as it
    # nears 0, and reaches it.
    return _rise(
        peak, warmup_steps, lambda count: jnp.sin(0.5 * math.pi * left(count)) ** 2
    )


def constant_schedule(peak: float, warmup_steps: int) -> Schedule:
    """Rise to the peak, then stay there."""
    return _rise(peak, warmup_steps, lambda _: 1.0)


def cool_down(schedule: Schedule, steps: int, cooldown_steps: int) -> Schedule:
    """Hold the rate of a schedule where the last ``cooldown_steps`` updates begin, and
    fall linearly to 0 from there (Zhai et al. 2022, section 3.5).
    """
    begin, left = max(steps - cooldown_steps, 0), _fall(steps, cooldown_steps)

    def cooled(count: ArrayLike) -> Array:
        count = jnp.asarray(count, jnp.float32)
        return schedule(jnp.minimum(count, begin)) * left(count)

    return cooled


def _rise(
    peak: float, warmup_steps: int, fall: Callable[[Array], ArrayLike]
) -> Schedule:
    """Rise linearly to the peak, then follow the share of it that ``fall`` computes
    from the updates made, which is at least 1 before.
    """

    def schedule(count: ArrayLike) -> Array:
        count = jnp.asarray(count, jnp.float32)
        return peak * jnp.minimum((count + 1.0) / max(warmup_steps, 1), fall(count))

    return schedule


def _fall(steps: int, length: int) -> Callable[[Array], Array]:
    """Return the share of the last ``length`` updates that is left; 1 before them."""
    return lambda count: jnp.clip((steps - count) / max(length, 1), 0.0, 1.0)
