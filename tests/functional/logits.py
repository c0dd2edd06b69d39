"""Random logits for the tests of losses."""

import jax.numpy as jnp
import numpy as np


def draw(seed, batch=3, length=5, size=7, scale=2.0):
    """Draw logits, targets and weights with padding on the right of each row."""
    rng = np.random.default_rng(seed)
    logits = (scale * rng.normal(size=(batch, length, size))).astype(np.float32)
    targets = rng.integers(0, size, size=(batch, length)).astype(np.int32)
    real = np.arange(length)[None] < rng.integers(1, length + 1, size=(batch, 1))
    return jnp.asarray(logits), jnp.asarray(targets), jnp.asarray(real)
