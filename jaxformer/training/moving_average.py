"""The exponential moving average of parameters."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxformer.typing import Array, Int, PyTree


def update_average(
    average: PyTree, params: PyTree, decay: float, updates: Int[Array, ""] | int
) -> PyTree:
    """Move the average of the parameters towards their new values.

    average <- d * average + (1 - d) * params, where d = min(decay, (1 + updates) / (10
    + updates)): young averages forget faster, so that the random parameters which a run
    begins with are soon gone. After the first update they have a share of 1/10, after
    ten 1e-5. This start is that of TensorFlow's ``tf.train.ExponentialMovingAverage``
    with ``num_updates``; averages of parameters go back to Polyak and Juditsky 1992.

    Args:
        average: float32, as many leaves as ``params``; the parameters themselves where
            the run begins.
        params: the parameters after the update.
        decay: at least 0 and below 1; 0.999 looks back over about a thousand updates.
        updates: how many updates were made before this one.

    Example:
        >>> float(update_average(jnp.zeros(()), jnp.ones(()), decay=0.999, updates=0))  # 1/10 of the old
        0.8999999761581421
    """
    # 1 - d and not d: 1 - 0.9999 has no more than three right digits once 0.9999 is
    # float32.
    share = jnp.maximum(1.0 - decay, 9.0 / (10.0 + jnp.asarray(updates, jnp.float32)))
    return jax.tree.map(lambda old, new: old + share * (new - old), average, params)
