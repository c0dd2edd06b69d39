"""Random logits for the tests of losses."""

import numpy as np


def draw(seed, batch=3, length=5, size=7, scale=2.0):
    """Draw logits, targets and weights with padding on the right of each row."""
    rng = np.random.default_rng(seed)
    logits = (scale * rng.normal(size=(batch, length, size))).astype(np.float32)
    targets = rng.integers(0, size, size=(batch, length)).astype(np.int32)
    real = np.arange(length)[None] < rng.integers(1, length + 1, size=(batch, 1))
    return logits, targets, real


def log_softmax(logits):
    """Compute log-probabilities in float64."""
    z = np.asarray(logits, np.float64)
    z = z - z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))
