"""What both projects are compared with: our own model and train step on the reversal
task.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jaxformer as jf

VOCABULARY, PAD, EOS, WARMUP, STEPS, ROWS, LONGEST = 9, 0, 3, 30, 30, 16, 5
CONFIG = jf.TransformerConfig(
    vocabulary_size=VOCABULARY,
    d_model=16,
    d_ff=32,
    num_heads=2,
    num_encoder_layers=2,
    num_decoder_layers=2,
    dropout_rate=0.0,
    # Smooth: where a number is next to the corner of a ReLU, rounding decides whether a
    # unit learns, and Adam makes of the least gradient a whole step.
    activation="gelu",
    max_length=64,
)


class Numbers(NamedTuple):
    """Of our model: its first parameters, logits and gradients there, and what
    training made of it.
    """

    params: Any
    logits: np.ndarray
    gradients: Any
    losses: list[float]
    trained: Any


def draw_batches() -> list[tuple[jax.Array, jax.Array]]:
    """Draw sequences of one to five letters and the same backwards, each behind
    padding of its own length.
    """
    random, batches = np.random.default_rng(7), []
    for _ in range(STEPS):
        source = np.full((ROWS, LONGEST + 1), PAD, np.int32)
        target = source.copy()
        for row, length in enumerate(random.integers(1, LONGEST + 1, ROWS)):
            letters = random.integers(EOS + 1, VOCABULARY, length)
            source[row, : length + 1], target[row, : length + 1] = (
                [*letters, EOS],
                [*letters[::-1], EOS],
            )
        batches.append((jnp.asarray(source), jnp.asarray(target)))
    return batches


@functools.cache
def our_numbers() -> Numbers:
    """Train our model by our own step."""
    model = jf.Transformer(CONFIG)
    recipe = jf.training.TrainingConfig(
        warmup_steps=WARMUP, label_smoothing=0.1, seed=3
    )
    state = jf.training.create_state(model, recipe)
    step, batches = jax.jit(jf.training.make_train_step(model, recipe)), draw_batches()

    def mean_loss(params: Any) -> tuple[jax.Array, jax.Array]:
        source, target = batches[0]
        logits = model.apply({"params": params}, source, target)
        total, count = jf.functional.cross_entropy(
            logits, target, target != PAD, smoothing=0.1
        )
        return total / count, logits

    params, losses = state.params, []
    gradients, logits = jax.jit(jax.grad(mean_loss, has_aux=True))(params)
    for source, target in batches:
        state, metrics = step(state, {"source": source, "target": target})
        losses.append(float(metrics["loss"] / metrics["tokens"]))
    return Numbers(params, np.asarray(logits), gradients, losses, state.params)
