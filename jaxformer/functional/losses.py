"""Losses and counts over target tokens. Every function returns (sum, count); the
caller divides once.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.errors import InputError
from jaxformer.functional.checks import (
    SMOOTHING_CONVENTIONS,
    check_positions,
    check_targets,
    check_weights,
)
from jaxformer.functional.kernels import wide_dtype
from jaxformer.typing import Array, Bool, Float, Int


def smoothing_floor(
    vocabulary_size: int, smoothing: float, convention: str = "others"
) -> float:
    """Compute the lowest reachable smoothed loss in nats: the entropy of the
    smoothed target distribution.
    """
    on, off = smoothed_probabilities(vocabulary_size, smoothing, convention)
    entropy = 0.0
    for probability, times in ((on, 1), (off, vocabulary_size - 1)):
        if probability > 0.0:
            entropy -= times * probability * math.log(probability)
    return entropy


def smoothed_probabilities(
    vocabulary_size: int, smoothing: float, convention: str
) -> tuple[float, float]:
    """Return the target probability of the true token and of each other token (Vaswani
    et al. 2017, section 5.4).

    Args:
        vocabulary_size: V, at least 2.
        smoothing: epsilon, at least 0 and below 1.
        convention: ``others`` shares epsilon among the V - 1 other tokens
            (tensor2tensor, flax); ``all`` shares it among all V, the true one included
            (Szegedy et al. 2016; PyTorch, optax).

    Raises:
        InputError: an unknown convention, an epsilon out of range or a vocabulary
            without another token.
    """
    if vocabulary_size < 2:
        raise InputError(
            f"a loss needs a vocabulary of at least 2 tokens, not {vocabulary_size}"
        )
    if not 0.0 <= smoothing < 1.0:
        raise InputError(
            f"label smoothing must be at least 0 and below 1, not {smoothing}"
        )
    if convention == "others":
        return 1.0 - smoothing, smoothing / (vocabulary_size - 1)
    if convention == "all":
        return (
            1.0 - smoothing + smoothing / vocabulary_size,
            smoothing / vocabulary_size,
        )
    raise InputError(
        f"the smoothing convention is one of {', '.join(SMOOTHING_CONVENTIONS)}, not"
        f" {convention!r}"
    )


def cross_entropy(
    logits: Float[Array, "*B V"],
    targets: Int[Array, "*B"],
    weights: Bool[Array, "*B"] | Float[Array, "*B"],
    *,
    smoothing: float = 0.0,
    convention: str = "others",
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Sum the label-smoothed cross-entropy over the weighted targets, in nats.

    With q the smoothed target distribution, -sum_v q(v) log p(v) = log sum_v exp(z_v) -
    sum_v q(v) z_v, which needs no array of log-probabilities. The constant entropy of q
    is not subtracted, see :func:`smoothing_floor`. Padding columns of the vocabulary
    are smoothed like any other token.

    Vaswani et al. 2017, section 5.4; Szegedy et al. 2016, section 7.

    Args:
        logits: of any float dtype; used in float32, or in float64 for float64 logits.
        targets: the true tokens. With weight 0 they may be any number, such as -100.
            Otherwise a target outside 0 to V - 1 makes loss and gradient NaN under
            ``jit``, and is refused where values are known.
        weights: 0 or False at padding, which contributes exactly 0 to the loss and to
            the gradient. One below 0 makes both NaN under ``jit``, and is refused where
            values are known.
        smoothing: epsilon; 0.1 in the paper. 0 gives the plain cross-entropy.
        convention: see :func:`smoothed_probabilities`.

    Returns:
        The sum of the losses, and the sum of the weights to divide it by.

    Raises:
        InputError: shapes that do not match, a target out of range, a weight below 0,
            or invalid smoothing.

    Example:
        >>> targets, weights = jnp.array([[1, 0]]), jnp.array([[True, False]])
        >>> total, count = cross_entropy(jnp.zeros((1, 2, 4)), targets, weights)
        >>> round(float(total / count), 4)  # log 4
        1.3863
    """
    check_positions(logits.shape, targets.shape, weights.shape)
    on, off = smoothed_probabilities(logits.shape[-1], smoothing, convention)
    targets, weights = (
        check_targets(targets, weights, logits.shape[-1]),
        check_weights(weights, logits),
    )
    return (
        _losses(on, off, logits, targets, weights != 0.0) * weights
    ).sum(), weights.sum()


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
    others = jnp.where(_inside(targets, logits.shape[-1]), off, jnp.nan)[..., None]
    slope = jnp.where(
        real[..., None],
        softmax - jnp.where(columns == targets[..., None], on, others),
        0.0,
    )
    return _losses(on, off, logits, targets, real), (
        slope * change.astype(wide.dtype)
    ).sum(axis=-1)


def z_loss(
    logits: Float[Array, "*B V"], weights: Bool[Array, "*B"] | Float[Array, "*B"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Sum (log Z)^2 over the weighted positions, where Z = sum_v exp(z_v) is the
    denominator of the softmax.

    Added to the cross-entropy with a small weight, it keeps log Z near 0. Without it
    all logits may drift together, which no softmax shows and which costs precision in
    bfloat16. Chowdhery et al. 2022, section 5 (weight 1e-4).

    Args:
        logits: of any float dtype; used in float32, or in float64 for float64 logits.
        weights: 0 or False at padding, which contributes exactly 0 to the loss and to
            the gradient. One below 0 makes both NaN under ``jit``, and is refused where
            values are known.

    Returns:
        The sum, in squared nats, and the sum of the weights to divide it by.

    Example:
        >>> total, count = z_loss(jnp.zeros((1, 2, 4)), jnp.array([[True, False]]))
        >>> round(float(total / count), 4)  # (log 4)^2
        1.9218
    """
    check_positions(logits.shape, weights.shape)
    weights = check_weights(weights, logits)
    normaliser = jax.nn.logsumexp(_without_padding(logits, weights), axis=-1)
    return _sum(normaliser**2, weights)


def symmetric_divergence(
    logits_a: Float[Array, "*B V"],
    logits_b: Float[Array, "*B V"],
    weights: Bool[Array, "*B"] | Float[Array, "*B"],
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Sum (KL(p || q) + KL(q || p)) / 2 over the weighted positions, in nats: the
    divergence of R-Drop.

    With p and q the softmax of the two logits, each term is
    sum_v (p_v - q_v) (log p_v - log q_v) / 2. Gradients flow into both. Wu et al. 2021
    minimize, per token, the sum of the cross-entropies of both passes (equation 3) plus
    alpha times this (equations 2 and 4). With their mean instead, its weight is alpha /
    2.

    Args:
        logits_a: of one pass, of any float dtype; used in float32, or in float64 for
            float64 logits.
        logits_b: of a second pass over the same batch, with other dropout.
        weights: 0 or False at padding, which contributes exactly 0 to the loss and to
            the gradient. One below 0 makes both NaN under ``jit``, and is refused where
            values are known.

    Returns:
        The sum of the divergences, and the sum of the weights to divide it by.

    Example:
        >>> logits = jnp.log(jnp.array([[[0.75, 0.25]], [[0.25, 0.75]]]))
        >>> total, count = symmetric_divergence(logits[0], logits[1], jnp.array([True]))
        >>> round(float(total / count), 4)  # log(3) / 2
        0.5493
    """
    check_positions(logits_a.shape, logits_b.shape[:-1], weights.shape)
    weights = check_weights(weights, logits_a, logits_b)
    log_p, log_q = (
        jax.nn.log_softmax(_without_padding(logits, weights), axis=-1)
        for logits in (logits_a, logits_b)
    )
    return _sum(
        0.5 * ((jnp.exp(log_p) - jnp.exp(log_q)) * (log_p - log_q)).sum(axis=-1),
        weights,
    )


def correct(
    logits: Float[Array, "*B V"],
    targets: Int[Array, "*B"],
    weights: Bool[Array, "*B"] | Float[Array, "*B"],
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Count the weighted targets, end of sentence included, that have the highest
    logit; return (sum, count).

    A target out of range is NaN or refused, as in :func:`cross_entropy`.
    """
    check_positions(logits.shape, targets.shape, weights.shape)
    targets, weights = (
        check_targets(targets, weights, logits.shape[-1]),
        check_weights(weights, logits),
    )
    hits = (logits.argmax(axis=-1) == targets).astype(weights.dtype)
    usable = jnp.where(
        weights > 0.0, _inside(targets, logits.shape[-1]), weights == 0.0
    )
    hits = jnp.where(usable, hits, jnp.nan)
    return (hits * weights).sum(), weights.sum()


def _inside(targets: Int[Array, "*B"], vocabulary_size: int) -> Bool[Array, "*B"]:
    return (targets >= 0) & (targets < vocabulary_size)


def _without_padding(
    logits: Float[Array, "*B V"], weights: Float[Array, "*B"]
) -> Float[Array, "*B V"]:
    """Cast logits to float32 (float64 stays), and set those of padded positions to 0.

    A padded position may hold inf, and 0 * inf is NaN. This replacement serves the
    gradient, that in the sum the value.
    """
    return jnp.where(weights[..., None] != 0.0, logits.astype(wide_dtype(logits)), 0.0)


def _sum(
    losses: Float[Array, "*B"], weights: Float[Array, "*B"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    return jnp.where(weights != 0.0, losses * weights, 0.0).sum(), weights.sum()
