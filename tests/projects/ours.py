"""Our own model and train step on the reversal task."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

import jaxformer as jf

VOCABULARY, PAD, EOS, WARMUP, STEPS, ROWS, LONGEST = 9, 0, 3, 30, 30, 16, 5
SIZES = {"d_model": 16, "d_ff": 32, "num_heads": 2, "max_length": 64}
SIZES |= {"num_encoder_layers": 1, "num_decoder_layers": 1}
# GELU is smooth: next to the corner of a ReLU rounding decides whether a unit learns,
# and Adam makes a whole step of the least gradient.
SIZES |= {"dropout_rate": 0.0, "activation": "gelu"}
CONFIG = jf.TransformerConfig(VOCABULARY, **SIZES)


def draw_batches() -> list[tuple[np.ndarray, np.ndarray]]:
    """Draw sequences of one to five letters and their reversals, padded."""
    random, batches = np.random.default_rng(7), []
    for _ in range(STEPS):
        source, target = np.full((2, ROWS, LONGEST + 1), PAD, np.int32)
        for row, length in enumerate(random.integers(1, LONGEST + 1, ROWS)):
            letters = random.integers(EOS + 1, VOCABULARY, length)
            source[row, : length + 1] = [*letters, EOS]
            target[row, : length + 1] = [*letters[::-1], EOS]
        batches.append((source, target))
    return batches


def train() -> tuple[Any, list[float], Any, tuple[Any, Any]]:
    """Train our model by our own step.

    Returns:
        The first parameters, then as the other projects: the losses, the trained
        parameters, and the first logits and gradients.
    """
    model = jf.Transformer(CONFIG)
    config = jf.training.TrainingConfig(
        warmup_steps=WARMUP, label_smoothing=0.1, seed=3
    )
    state = jf.training.create_state(model, config)
    step, batches = jax.jit(jf.training.make_train_step(model, config)), draw_batches()

    def mean_loss(params, source, target):
        logits, real = model.apply({"params": params}, source, target), target != PAD
        total, count = jf.functional.cross_entropy(logits, target, real, smoothing=0.1)
        return total / count, logits

    params, losses = state.params, []
    differentiate = jax.jit(jax.grad(mean_loss, has_aux=True))
    gradients, logits = differentiate(params, *batches[0])
    for source, target in batches:
        state, metrics = step(state, {"source": source, "target": target})
        losses.append(float(metrics["loss"] / metrics["tokens"]))
    return params, losses, state.params, (np.asarray(logits), gradients)
