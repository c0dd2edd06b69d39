"""The smoothed cross-entropy with its gradient in one piece."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.functional.layers import wide_dtype
from jaxformer.functional.losses import (
    Sums,
    Weights,
    check_targets,
    inside,
    smoothed_probabilities,
    weigh,
)
from jaxformer.functional.shapes import check_shapes
from jaxformer.typing import Array, Bool, Float, Int


@check_shapes()
def cross_entropy(
    logits: Float[Array, "*B V"],
    targets: Int[Array, "*B"],
    weights: Weights = None,
    *,
    smoothing: float = 0.0,
    convention: str = "others",
) -> Sums:
    """Replace :func:`jaxformer.functional.cross_entropy`."""
    on, off = smoothed_probabilities(logits.shape[-1], smoothing, convention)
    targets, weights = check_targets(logits.shape, targets, weights)
    return weigh(_losses(on, off, logits, targets, weights != 0.0), weights)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _losses(
    on: float,
    off: float,
    logits: Float[Array, "*B V"],
    targets: Int[Array, "*B"],
    real: Bool[Array, "*B"],
) -> Float[Array, "*B"]:
    """Return the cross-entropy of each position, whose target has probability ``on``
    and each other token ``off``.
    """
    logits = logits.astype(wide_dtype(logits))
    # NaN out of range; a negative index would count from the end.
    index = jnp.where(targets < 0, logits.shape[-1], targets)[..., None]
    true = jnp.take_along_axis(logits, index, axis=-1, mode="fill", fill_value=jnp.nan)[
        ..., 0
    ]
    losses = jax.nn.logsumexp(logits, axis=-1) - (on - off) * true
    if off > 0.0:
        losses = losses - off * logits.sum(axis=-1)
    # a padded position may hold inf, and 0 * inf is NaN
    return jnp.where(real, losses, 0.0)


@_losses.defjvp
def _losses_jvp(
    on: float,
    off: float,
    primals: tuple[Array, Array, Array],
    tangents: tuple[Array, Any, Any],
) -> tuple[Array, Array]:
    """Compute the gradient, softmax minus q, at once; autodiff would scatter into
    zeros for the true token.
    """
    (logits, targets, real), (change, _, _) = primals, tangents
    wide = logits.astype(wide_dtype(logits))
    # With keepdims this would be another sum than that of the losses.
    softmax = jnp.exp(wide - jax.nn.logsumexp(wide, axis=-1)[..., None])
    columns = jax.lax.broadcasted_iota(targets.dtype, logits.shape, logits.ndim - 1)
    others = jnp.where(inside(targets, logits.shape[-1]), off, jnp.nan)[..., None]
    slope = jnp.where(
        real[..., None],
        softmax - jnp.where(columns == targets[..., None], on, others),
        0.0,
    )
    return _losses(on, off, logits, targets, real), (
        slope * change.astype(wide.dtype)
    ).sum(axis=-1)
