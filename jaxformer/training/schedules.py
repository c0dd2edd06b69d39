"""Learning rates as functions of the number of updates that were made."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxformer.typing import Array


def paper_schedule(d_model: int, warmup_steps: int, factor: float = 1.0) -> Callable[[ArrayLike], Array]:
    """Rise linearly over the warm-up, then fall with the inverse square root of the step.

    lrate = factor * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5) (Vaswani et al. 2017, equation 3), where
    the first update is step 1.

    Args:
        d_model: width of the model.
        warmup_steps: length of the rise; 0 and 1 both begin at the peak.
        factor: 1 in the paper.

    Returns:
        A function of the number of updates made before, as optax counts them: 0 gives the rate of the first update.
    """
    warmup = float(max(warmup_steps, 1))
    peak = factor * (d_model * warmup) ** -0.5

    def schedule(count: ArrayLike) -> Array:
        step = jnp.asarray(count, jnp.float32) + 1.0
        return peak * jnp.minimum(step / warmup, jnp.sqrt(warmup / step))

    return schedule
