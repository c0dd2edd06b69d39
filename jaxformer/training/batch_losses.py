"""The losses of a batch by its objective, from logits or in chunks of positions."""

from __future__ import annotations

from typing import cast

import jax
import jax.numpy as jnp

from jaxformer.functional import losses
from jaxformer.kernels.chunked_losses import (
    OutputLosses,
    chunks_move_less,
    output_losses,
)
from jaxformer.kernels.losses import cross_entropy
from jaxformer.models.base import Model
from jaxformer.nn.sharding import count_row_shards
from jaxformer.runs.training import TrainingConfig
from jaxformer.training.objectives import Batch, Objective, Output
from jaxformer.typing import Array, Bool, Float, Int, Key, PyTree

MOST_LOGIT_BYTES = 2**29
"""The losses of a device whose float32 logits take more bytes are computed in chunks
of positions.

Half a gibibyte is 3,600 tokens of a vocabulary of 37,000. With fewer there is little
memory to save: a chunk on a GPU has up to 4,096.
"""


def sum_losses(
    model: Model,
    objective: Objective,
    config: TrainingConfig,
    params: PyTree,
    batch: Batch,
    key: Key | None = None,
) -> tuple[OutputLosses, dict[str, Float[Array, ""]]]:
    """Sum the losses of a batch, with dropout where there is a key for it. Also return
    the sums of a second term.
    """
    # Whether rows are packed is part of the batch's structure, as its shapes are: each
    # kind has its own compiled step.
    output = cast(
        Output,
        model.apply(
            {"params": params},
            batch,
            train=key is not None,
            rngs=None if key is None else {"dropout": key},
            method=objective.output,
        ),
    )
    target, real = objective.targets(batch)
    if objective.regression:
        return _losses_of_numbers(output.x, target, real), {}
    found = _losses_of_words(model, config, output, target, real)
    if objective.second is None or output.second is None:
        return found, {}
    labels, known = objective.second(batch)
    nll, texts = cross_entropy(output.second, labels, known)
    correct, _ = losses.correct(output.second, labels, known)
    # With R-Drop each row is there twice.
    share = batch["share"].mean() / (2 if config.r_drop else 1)
    more = {"next_nll": nll, "next_accuracy": correct, "texts": texts}
    return found._replace(loss=found.loss + share * nll), more


def _losses_of_words(
    model: Model,
    config: TrainingConfig,
    output: Output,
    target: Int[Array, "*B"],
    real: Bool[Array, "*B"],
) -> OutputLosses:
    # R-Drop compares all logits of two passes. In float16 the scale of the loss has to
    # reach the gradient of the logits before that is rounded.
    in_chunks = (
        not config.r_drop and model.config.dtype != "float16" and chunks_move_less()
    )
    shards = count_row_shards()
    size = 4 * target.size * model.config.vocabulary_size // shards
    if output.table is None or not in_chunks or size <= MOST_LOGIT_BYTES:
        return _losses_of_logits(output.logits(), target, real, config)
    return output_losses(
        *(output.x, output.table, target, real, output.bias),
        smoothing=config.label_smoothing,
        convention=config.smoothing_convention,
        z_loss=config.z_loss,
        groups=shards,
    )


def _losses_of_numbers(
    found: Float[Array, "B 1"], target: Int[Array, " B"], real: Bool[Array, " B"]
) -> OutputLosses:
    """Sum the squares of the errors of numbers, whose bits the targets are."""
    numbers = jax.lax.bitcast_convert_type(target, jnp.float32)
    errors = jnp.where(real, found[:, 0] - numbers, 0.0)
    loss, none = jnp.sum(errors**2), jnp.zeros(())
    return OutputLosses(loss, loss, none, none, jnp.sum(real, dtype=jnp.float32))


def _losses_of_logits(
    logits: Float[Array, "*B V"],
    target: Int[Array, "*B"],
    real: Bool[Array, "*B"],
    config: TrainingConfig,
) -> OutputLosses:
    loss, tokens = cross_entropy(
        *(logits, target, real),
        smoothing=config.label_smoothing,
        convention=config.smoothing_convention,
    )
    nll, _ = cross_entropy(logits, target, real)
    correct, _ = losses.correct(logits, target, real)
    z_loss, _ = losses.z_loss(logits, real)
    if config.z_loss:
        loss += config.z_loss * z_loss
    if not config.r_drop:
        return OutputLosses(loss, nll, correct, z_loss, tokens)
    divergence, _ = losses.symmetric_divergence(logits[::2], logits[1::2], real[::2])
    loss += config.r_drop * divergence
    # The mean of the two passes: half of Wu et al. (2021), equation 4, which adds them.
    return OutputLosses(*(each / 2 for each in (loss, nll, correct, z_loss, tokens)))
