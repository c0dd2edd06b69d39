"""Why attention divides by the square root of d_k: what the softmax lets through of
a gradient, with it and without.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.errors import InputError
from jaxformer.functional.attention import dot_product_attention
from jaxformer.typing import Array, Float, Key


@dataclass(frozen=True)
class JacobianStatistics:
    """Describe the Jacobians of many softmaxes of the same length.

    The rows of a Jacobian add up to 0, and so does the mean of its entries: what is
    averaged is their size.

    Attributes:
        length: scores of each softmax.
        size: mean of the absolute values of all entries.
        deviation: standard deviation of all entries.
        least: the smallest entry of all.
        greatest: the greatest; a half times a half, divided by the scale, is the most
            that there can be.
        traces: one number a softmax, the sum of its diagonal: (1 - sum_i w_i^2) /
            scale. With scale 1 it is 0 for a softmax that has chosen one score and ``1
            - 1 / length`` for one with equal weights.
    """

    length: int
    size: float
    deviation: float
    least: float
    greatest: float
    traces: np.ndarray


def softmax_jacobian(
    weights: Float[Array, "*B S"], scale: float = 1.0
) -> Float[Array, "*B S S"]:
    """Compute the Jacobian of ``w = softmax(s / scale)`` by s: (diag(w) - w w^T) /
    scale, by the chain rule.

    With scale 1 it is the derivative by the scores that the softmax receives. In scaled
    attention those are already divided: with scale ``d_k ** 0.5`` it is the derivative
    by the products of query and keys before the division.

    Args:
        weights: softmax weights w.
        scale: divisor of the scores that it differentiates by, above 0.

    Raises:
        InputError: the scale is not a finite number above 0.

    Example:
        >>> softmax_jacobian(jnp.array([0.5, 0.5])).tolist()
        [[0.25, -0.25], [-0.25, 0.25]]
    """
    if not 0 < scale < float("inf"):
        raise InputError(
            f"scale must be a finite number above 0, not {scale}; without a division it"
            " is 1"
        )
    identity = jnp.eye(weights.shape[-1]).reshape(
        (1,) * (weights.ndim - 1) + (weights.shape[-1],) * 2
    )
    return weights[..., :, None] * (identity - weights[..., None, :]) / scale


def draw_weights(
    key: Key, *, draws: int, length: int, d_k: int, scaled: bool
) -> Float[Array, "N S"]:
    """Draw attention weights of one query over ``length`` keys, both with components of
    mean 0 and variance 1.

    That is the assumption of Vaswani et al. 2017, section 3.2.1, under which a product
    of query and key has mean 0 and variance d_k.

    Args:
        key: random key; with another ``scaled`` it draws the same queries and keys.
        draws: how many, N.
        length: keys of each.
        d_k: width of query and keys.
        scaled: whether products are divided by the square root of d_k.
    """
    query_key, key_key = jax.random.split(key)
    query = jax.random.normal(query_key, (draws, 1, 1, d_k))
    keys = jax.random.normal(key_key, (draws, length, 1, d_k))
    # The function divides: a query that is longer by as much undoes it.
    _, weights = dot_product_attention(
        query if scaled else query * d_k**0.5, keys, keys
    )
    return weights[:, 0, 0]


def measure_jacobians(
    weights: Float[Array, "N S"], scale: float = 1.0
) -> JacobianStatistics:
    """Compute mean size, deviation and range of the entries of :func:`softmax_jacobian`
    at these weights, in float64.

    Raises:
        InputError: the scale is not a finite number above 0.
    """
    entries = np.asarray(softmax_jacobian(weights, scale), np.float64)
    return JacobianStatistics(
        length=entries.shape[-1],
        size=float(np.abs(entries).mean()),
        deviation=float(entries.std()),
        least=float(entries.min()),
        greatest=float(entries.max()),
        traces=np.trace(entries, axis1=-2, axis2=-1),
    )
