"""One update and one evaluation of a batch: pure functions that know of devices no more than an axis name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxformer.functional import losses
from jaxformer.models.seq2seq import Transformer
from jaxformer.training.state import TrainState
from jaxformer.typing import Array, Float, Int, Key, PyTree

Batch: TypeAlias = Mapping[str, Int[Array | np.ndarray, "B T"]]
"""``source`` [B, S] and ``target`` [B, T], padded on the right; a row of padding alone weighs nothing.

With packed rows also ``source_segments`` [B, S] and ``target_segments`` [B, T]: see :class:`jaxformer.Transformer`.
"""

SEGMENTS = ("source_segments", "target_segments")
"""What a batch has if its rows are packed."""

Metrics: TypeAlias = dict[str, Float[Array, ""]]
"""Sums over the target tokens of a batch, and what they are to be divided by."""

TrainStep: TypeAlias = Callable[[TrainState, Batch], tuple[TrainState, Metrics]]
EvalStep: TypeAlias = Callable[[PyTree, Batch], Metrics]


def make_train_step(
    model: Transformer,
    optimizer: optax.GradientTransformation,
    *,
    smoothing: float,
    convention: str,
    axis_name: str | None = None,
) -> TrainStep:
    """Build ``train_step(state, batch) -> (state, metrics)``.

    The loss is the sum over all target tokens of the global batch divided by their number: with an axis name, sums and
    counts are added over the axis before the one division, so that a device with fewer tokens weighs less and one with
    padding alone weighs nothing. A batch without any token leaves loss and gradient 0.

    The metrics are sums: ``loss`` (smoothed) and ``nll`` (not smoothed) in nats, ``tokens``; and ``gradient_norm``,
    the global norm of the gradient of the mean loss.
    """
    pad_id = model.config.pad_id

    def total_loss(params: PyTree, batch: Batch, key: Key) -> tuple[Array, Metrics]:
        target = jnp.asarray(batch["target"])
        logits = _logits(model, params, batch, key)
        real = target != pad_id
        loss, tokens = losses.cross_entropy(logits, target, real, smoothing=smoothing, convention=convention)
        nll, _ = losses.cross_entropy(logits, target, real)
        return loss, {"loss": loss, "nll": jax.lax.stop_gradient(nll), "tokens": tokens}

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)
        if axis_name is not None:
            key = jax.random.fold_in(key, jax.lax.axis_index(axis_name))
        gradients, sums = jax.grad(total_loss, has_aux=True)(state.params, batch, key)
        if axis_name is not None:
            gradients, sums = jax.lax.psum((gradients, sums), axis_name)
        count = jnp.maximum(sums["tokens"], 1.0)
        gradients = jax.tree.map(lambda gradient: gradient / count, gradients)
        updates, optimizer_state = optimizer.update(gradients, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
        new = TrainState(step=state.step + 1, params=params, optimizer=optimizer_state, key=state.key)
        return new, {**sums, "gradient_norm": optax.tree.norm(gradients)}

    return train_step


def make_eval_step(model: Transformer, *, smoothing: float, convention: str, axis_name: str | None = None) -> EvalStep:
    """Build ``eval_step(params, batch) -> metrics``: sums of ``loss``, ``nll``, ``correct`` and ``tokens``."""
    pad_id = model.config.pad_id

    def eval_step(params: PyTree, batch: Batch) -> Metrics:
        target = jnp.asarray(batch["target"])
        logits = _logits(model, params, batch)
        real = target != pad_id
        loss, tokens = losses.cross_entropy(logits, target, real, smoothing=smoothing, convention=convention)
        nll, _ = losses.cross_entropy(logits, target, real)
        correct, _ = losses.correct(logits, target, real)
        sums = {"loss": loss, "nll": nll, "correct": correct, "tokens": tokens}
        return sums if axis_name is None else jax.lax.psum(sums, axis_name)

    return eval_step


def _logits(model: Transformer, params: PyTree, batch: Batch, key: Key | None = None) -> Float[Array, "B T V"]:
    """Predict the targets of a batch, with dropout where there is a key for it."""
    # Whether rows are packed is part of the batch's structure, as its shapes are: each kind has its own compiled step.
    segments = {name: jnp.asarray(batch[name]) for name in SEGMENTS if name in batch}
    logits = model.apply(
        {"params": params},
        jnp.asarray(batch["source"]),
        jnp.asarray(batch["target"]),
        source_segments=segments.get("source_segments"),
        target_segments=segments.get("target_segments"),
        train=key is not None,
        rngs=None if key is None else {"dropout": key},
    )
    return cast(Array, logits)
