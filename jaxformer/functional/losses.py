"""Losses and counts over target tokens (Vaswani et al. 2017, section 5.4). Each
function returns a sum and the sum of the weights; the caller divides once.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxformer.errors import InputError
from jaxformer.functional.layers import wide_dtype, widen
from jaxformer.functional.shapes import check_shapes
from jaxformer.typing import Array, Bool, Float, Int

Weights: TypeAlias = Bool[Array, "*B"] | Int[Array, "*B"] | Float[Array, "*B"] | None
"""0 or False at padding, which contributes exactly 0 to sums and gradients, even where
logits are infinite. None: all 1. A negative weight is refused, or NaN under ``jit``.
"""

Sums: TypeAlias = tuple[Float[Array, ""], Float[Array, ""]]

SMOOTHING_CONVENTIONS = ("others", "all")


def smoothed_probabilities(
    size: int, smoothing: float, convention: str = "others"
) -> tuple[float, float]:
    """Return the target probabilities of the true token and of each other token.

    Args:
        size: V, at least 2.
        smoothing: epsilon, in [0, 1).
        convention: ``others`` shares epsilon among the V - 1 other tokens
            (tensor2tensor); ``all`` among all V (Szegedy et al. 2016, PyTorch, optax).

    Raises:
        InputError: a value out of range.
    """
    known = convention in SMOOTHING_CONVENTIONS
    if size < 2 or not 0.0 <= smoothing < 1.0 or not known:
        raise InputError(
            "label smoothing is in [0, 1), by others or all, of at least 2 tokens: not"
            f" {smoothing}, {convention!r}, {size}"
        )
    if convention == "others":
        return 1.0 - smoothing, smoothing / (size - 1)
    return 1.0 - smoothing + smoothing / size, smoothing / size


def smoothing_floor(size: int, smoothing: float, convention: str = "others") -> float:
    """Return the lowest smoothed loss in nats: the entropy of the smoothed targets."""
    on, off = smoothed_probabilities(size, smoothing, convention)
    return -sum(n * p * math.log(p) for p, n in ((on, 1), (off, size - 1)) if p > 0.0)


@check_shapes()
def cross_entropy(
    logits: Float[Array, "*B V"],
    targets: Int[Array, "*B"],
    weights: Weights = None,
    *,
    smoothing: float = 0.0,
    convention: str = "others",
) -> Sums:
    """Sum -sum_v q(v) log p(v) = log sum_v exp(z_v) - sum_v q(v) z_v in nats, where q
    is the smoothed target distribution.

    Args:
        logits: z; used in the wider of float32 and their dtype.
        targets: the true tokens. One outside 0 to V - 1 is refused, or NaN under
            ``jit``; at padding it may be any number.
        weights: of each position.
        smoothing: epsilon; 0.1 in the paper.
        convention: see :func:`smoothed_probabilities`.
    """
    size = logits.shape[-1]
    on, off = smoothed_probabilities(size, smoothing, convention)
    targets, weights = check_targets(logits.shape, targets, weights)
    z = _zero_padding(logits, weights)
    columns = jax.lax.broadcasted_iota(targets.dtype, z.shape, z.ndim - 1)
    is_target = columns == targets[..., None]
    expected = jnp.where(is_target, on * z, off * z if off else 0.0).sum(axis=-1)
    losses = jax.nn.logsumexp(z, axis=-1) - expected
    # A factor: the gradient of a target out of range is then NaN too.
    factor = jnp.where(inside(targets, size), 1.0, jnp.nan).astype(z.dtype)
    return weigh(losses * factor, weights)


@check_shapes()
def z_loss(logits: Float[Array, "*B V"], weights: Weights = None) -> Sums:
    """Sum (log Z)^2, Z = sum_v exp(z_v), which keeps log Z near 0 (Chowdhery et al.
    2022, section 5).
    """
    _, weights = check_targets(logits.shape, None, weights)
    log_z = jax.nn.logsumexp(_zero_padding(logits, weights), axis=-1)
    return weigh(log_z**2, weights)


@check_shapes()
def symmetric_divergence(
    logits_a: Float[Array, "*B V"],
    logits_b: Float[Array, "*B V"],
    weights: Weights = None,
) -> Sums:
    """Sum (KL(p || q) + KL(q || p)) / 2 of two passes over a batch, in nats (R-Drop;
    Wu et al. 2021, equation 2).
    """
    _, weights = check_targets(logits_a.shape, None, weights)
    log_p, log_q = (
        jax.nn.log_softmax(_zero_padding(logits, weights))
        for logits in (logits_a, logits_b)
    )
    terms = (jnp.exp(log_p) - jnp.exp(log_q)) * (log_p - log_q)
    return weigh(0.5 * terms.sum(axis=-1), weights)


@check_shapes()
def correct(
    logits: Float[Array, "*B V"], targets: Int[Array, "*B"], weights: Weights = None
) -> Sums:
    """Count the targets that have the highest logit."""
    targets, weights = check_targets(logits.shape, targets, weights)
    hits = (logits.argmax(axis=-1) == targets).astype(wide_dtype(logits))
    known = inside(targets, logits.shape[-1])
    return weigh(jnp.where(known, hits, jnp.nan), weights)


def inside(targets: Int[Array, "*B"], size: int) -> Bool[Array, "*B"]:
    """Return which targets are in a vocabulary."""
    return (targets >= 0) & (targets < size)


def check_targets(
    logits: tuple[int, ...], targets: Int[Array, "..."] | None, weights: Weights
) -> tuple[Any, Float[Array, "..."]]:
    """Return the targets in at least 32 bits, and the weights as numbers, for logits of
    this shape. A weight below 0 that is not known becomes NaN.

    Raises:
        InputError: a known weight or target is out of range.
    """
    *shape, size = logits
    if weights is None:
        weights = jnp.ones(shape, bool)
    if not isinstance(weights, Tracer):
        known = np.asarray(weights)
        if known.min(initial=0) < 0:
            raise InputError(f"a weight is at least 0, not {known.min():g}")
        if targets is not None and not isinstance(targets, Tracer):
            wrong = np.asarray(targets)[known > 0]
            wrong = wrong[(wrong < 0) | (wrong >= size)]
            if wrong.size:
                raise InputError(
                    f"target {wrong[0]} is not in 0 to {size - 1}: encode with the"
                    " vocabulary of the logits, or give it the weight 0"
                )
    wide = widen(jnp.asarray(weights))
    if targets is not None and targets.dtype.itemsize < 4:
        targets = targets.astype(jnp.int32)  # 8 bits would wrap around
    return targets, jnp.where(wide < 0, jnp.nan, wide)


def _zero_padding(
    logits: Float[Array, "*B V"], weights: Float[Array, "*B"]
) -> Float[Array, "*B V"]:
    """Widen logits, and replace those of padding by 0: 0 times inf would be NaN in the
    gradient.
    """
    return jnp.where(weights[..., None] == 0, 0.0, widen(logits))


def weigh(losses: Float[Array, "*B"], weights: Float[Array, "*B"]) -> Sums:
    """Sum the weighted losses, and the weights."""
    wide = wide_dtype(losses, weights)
    losses, weights = jnp.where(weights == 0, 0.0, losses), weights.astype(wide)
    return (losses.astype(wide) * weights).sum(), weights.sum()
