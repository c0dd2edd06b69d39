"""One update and one evaluation of a batch: pure functions that know of devices only an
axis name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxformer.kernels.mesh import match_varying
from jaxformer.models.base import Model
from jaxformer.models.lora import Adapted, merged
from jaxformer.runs.training import TrainingConfig
from jaxformer.training.batch_losses import sum_losses
from jaxformer.training.objectives import Batch, Objective, make_objective
from jaxformer.training.optimizer import (
    fill,
    keep,
    make_optimizer,
    trained_part,
    update_average,
)
from jaxformer.training.schedules import make_schedule
from jaxformer.training.state import LossScale, TrainState
from jaxformer.typing import Array, Bool, Float, Int, Key, PyTree

SEGMENTS = ("source_segments", "target_segments")
"""Further arrays of a batch with packed rows."""

Metrics: TypeAlias = dict[str, Float[Array, ""]]
"""Sums over the targets of a batch, and what they are to be divided by.

Those of training are ``loss`` (what is minimised) and ``nll`` (neither smoothed nor
regularised) in nats, ``tokens`` of the target, ``source_tokens`` and ``slots`` (of both
sides, padding included); and of the step ``gradient_norm``, the global norm of the
gradient of the mean loss before it is clipped, ``learning_rate``, ``skipped`` (1 or 0),
and under float16 ``loss_scale``.
"""

TrainStep: TypeAlias = Callable[[TrainState, Batch], tuple[TrainState, Metrics]]
EvalStep: TypeAlias = Callable[[PyTree, Batch], Metrics]

# Under float16 the scale of the loss is doubled after so many good steps, and halved
# after a bad one (Micikevicius et al. 2018, section 3.2).
_SCALE_GROWS_AFTER = 2000


# The number of the key of `Objective.prepare`; parts of a batch have 0, 1 and so on.
_PREPARING = 2**32 - 1

Place: TypeAlias = Callable[[PyTree], PyTree]
"""Sets the sharding of parameters for their use; it changes no value."""


def make_train_step(
    model: Model,
    config: TrainingConfig,
    *,
    axis_name: str | None = None,
    place: Place = lambda params: params,
) -> TrainStep:
    """Build ``train_step(state, batch) -> (state, metrics)``.

    The loss is the sum over all target tokens of the global batch divided by their
    number: with an axis name, of ``pmap`` or ``shard_map``, sums and counts are added
    over the axis before the one division, so that a device with fewer tokens weighs
    less and one with only padding weighs nothing. So do the parts of
    ``accumulation_steps``. A batch without any token leaves loss and gradient 0.
    Dropout depends on the device and on the part. With an axis name the masked words of
    ``masked`` and ``masked_and_next`` depend on the device too. Without dropout and
    masked words, updates are equal, up to rounding, however a batch is divided.

    A step whose loss or gradient is not finite changes only ``state.step`` and, under
    float16, ``state.loss_scale``.
    """
    optimizer = make_optimizer(config, model.config.d_model)
    schedule = make_schedule(config, model.config.d_model)
    objective = make_objective(model.config, config)
    total_loss = make_loss(model, config, place)

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)
        if axis_name is not None:
            key = jax.random.fold_in(key, jax.lax.axis_index(axis_name))
        scale: Float[Array, ""] | float = 1.0
        if state.loss_scale is not None:
            # Gradients of a sum would not fit. The scale adapts to what is left.
            scale = state.loss_scale.scale / batch["target"].size
        # A key of its own: parts of the batch fold their numbers into the other.
        batch = objective.prepare(batch, jax.random.fold_in(key, _PREPARING))
        batch = _balance(objective, batch, axis_name)

        def scaled_loss(
            trained: PyTree, batch: Batch, key: Key
        ) -> tuple[Float[Array, ""], Metrics]:
            params = state.on_base(fill(trained, state.params))
            loss, sums = total_loss(params, batch, key)
            return loss * scale, sums

        differentiate = jax.grad(scaled_loss, has_aux=True)
        # Under shard_map JAX would sum the gradient of parameters that are equal on all
        # devices by itself, and psum would do so again.
        trained = match_varying(trained_part(state.params, config.frozen), key)
        gradients, sums = _accumulate(
            differentiate, trained, batch, key, config.accumulation_steps
        )
        if axis_name is not None:
            gradients, sums = jax.lax.psum((gradients, sums), axis_name)
        count = jnp.maximum(sums["tokens"], 1.0) * scale
        gradients = jax.tree.map(lambda gradient: gradient / count, gradients)
        norm = optax.tree.norm(gradients)
        good = jnp.isfinite(sums["loss"]) & jnp.isfinite(norm)
        metrics = {"gradient_norm": norm, "learning_rate": schedule(state.updates)}
        metrics = {**sums, **metrics, "skipped": 1.0 - good.astype(jnp.float32)}
        if state.loss_scale is not None:
            metrics["loss_scale"] = state.loss_scale.scale
        if config.frozen is not None:
            gradients = fill(gradients, jax.tree.map(jnp.zeros_like, state.params))
        return _update(state, gradients, good, optimizer, config.ema_decay), metrics

    return train_step


def _update(
    state: TrainState,
    gradients: PyTree,
    good: Bool[Array, ""],
    optimizer: optax.GradientTransformationExtraArgs,
    ema_decay: float | None,
) -> TrainState:
    """Apply the mean gradient. A bad step changes only ``step`` and the
    scale of the loss.
    """
    # Each stage selects what a bad step keeps, and the next is computed from that: then
    # the new state can reuse the memory of the old.
    updates, optimizer_state = optimizer.update(
        gradients, state.optimizer, state.params, good=good
    )
    params = keep(good, optax.apply_updates(state.params, updates), state.params)
    average = state.average
    if ema_decay is not None:
        moved = update_average(average, params, ema_decay, state.updates)
        average = keep(good, moved, average)
    return dataclasses.replace(
        state,
        step=state.step + 1,
        updates=jnp.where(good, state.updates + 1, state.updates),
        params=params,
        optimizer=optimizer_state,
        average=average,
        loss_scale=_rescale(state.loss_scale, good),
    )


def make_eval_step(
    model: Model,
    config: TrainingConfig,
    *,
    axis_name: str | None = None,
    place: Place = lambda params: params,
) -> EvalStep:
    """Build ``eval_step(params, batch) -> metrics``: sums of ``loss``, ``nll``,
    ``correct`` and ``tokens``, and with a second term of ``next_nll``,
    ``next_accuracy`` and ``texts``. A batch with ``row`` has the same masked words
    however it is divided.
    """
    config = dataclasses.replace(config, z_loss=0.0, r_drop=0.0)
    objective = make_objective(model.config, config)

    def eval_step(params: PyTree, batch: Batch) -> Metrics:
        batch = objective.prepare(batch, jax.random.key(0))
        batch = _balance(objective, batch, axis_name)
        batch = {name: jnp.asarray(rows) for name, rows in batch.items()}
        found, more = sum_losses(model, objective, config, place(merged(params)), batch)
        sums = {**found._asdict(), **more}
        del sums["z_loss"]
        return sums if axis_name is None else jax.lax.psum(sums, axis_name)

    return eval_step


def make_loss(
    model: Model, config: TrainingConfig, place: Place
) -> Callable[[PyTree, Batch, Key], tuple[Float[Array, ""], Metrics]]:
    """Build ``total_loss(params, batch, key)``: what is minimised, summed over a
    batch, and sums for the metrics.
    """
    pad_id, objective = model.config.pad_id, make_objective(model.config, config)

    def total_loss(
        params: PyTree, batch: Batch, key: Key
    ) -> tuple[Float[Array, ""], Metrics]:
        batch = {name: jnp.asarray(rows) for name, rows in batch.items()}
        read = batch.get("source", batch["target"])
        source_tokens = jnp.sum(read != pad_id, dtype=jnp.float32)
        slots = jnp.float32(batch["target"].size)
        if "source" in batch:
            slots += batch["source"].size
        if config.r_drop:
            # Each row next to its copy, so that one device computes both.
            batch = {name: jnp.repeat(rows, 2, axis=0) for name, rows in batch.items()}
        if isinstance(params, Adapted):
            # A key of its own: flax folds the paths of modules into the other.
            params = params.merge(config.lora_dropout, jax.random.fold_in(key, 1))
        sums, _ = sum_losses(model, objective, config, place(params), batch, key)
        if "source" not in batch or config.masks:  # what is read and not predicted
            source_tokens -= sums.tokens
        return sums.loss, {
            "source_tokens": source_tokens,
            "slots": slots,
            "loss": sums.loss,
            "nll": jax.lax.stop_gradient(sums.nll),
            "tokens": sums.tokens,
        }

    return total_loss


def _accumulate(
    differentiate: Callable[[PyTree, Batch, Key], tuple[PyTree, Metrics]],
    params: PyTree,
    batch: Batch,
    key: Key,
    parts: int,
) -> tuple[PyTree, Metrics]:
    """Sum gradients and metrics over parts of a batch, one after another, each with
    dropout of its own.
    """
    if parts == 1:
        return differentiate(params, batch, key)

    def split(rows: Array | np.ndarray) -> Array:
        # Row r goes to part r modulo parts: the rows of a device stay there.
        return jnp.asarray(rows).reshape(-1, parts, *rows.shape[1:]).swapaxes(0, 1)

    def add(total: PyTree, part: tuple[Int[Array, ""], Batch]) -> tuple[PyTree, None]:
        number, rows = part
        more = differentiate(params, rows, jax.random.fold_in(key, number))
        return jax.tree.map(jnp.add, total, more), None

    micro = {name: split(rows) for name, rows in batch.items()}
    shapes = jax.eval_shape(
        differentiate, params, {name: rows[0] for name, rows in micro.items()}, key
    )
    zeros = jax.tree.map(jnp.zeros_like, shapes)
    total, _ = jax.lax.scan(add, zeros, (jnp.arange(parts), micro))
    return total


def _balance(objective: Objective, batch: Batch, axis_name: str | None) -> Batch:
    """Add ``share`` = n1 / n2, the counts of the first and the second loss over the
    whole batch: loss1 + share * loss2, divided by n1, is the sum of the two means.
    """
    if objective.second is None:
        return batch
    weights = objective.targets(batch)[1], objective.second(batch)[1]
    counts = jnp.stack([jnp.sum(each, dtype=jnp.float32) for each in weights])
    if axis_name is not None:
        counts = jax.lax.psum(counts, axis_name)
    share = counts[0] / jnp.maximum(counts[1], 1.0)
    return {**batch, "share": jnp.full((len(batch["target"]), 1), share)}


def _rescale(loss_scale: LossScale | None, good: Bool[Array, ""]) -> LossScale | None:
    if loss_scale is None:
        return None
    good_steps = jnp.where(good, loss_scale.good_steps + 1, 0)
    grows = good_steps >= _SCALE_GROWS_AFTER
    factor = jnp.where(good, jnp.where(grows, 2.0, 1.0), 0.5)
    return LossScale(loss_scale.scale * factor, jnp.where(grows, 0, good_steps))
