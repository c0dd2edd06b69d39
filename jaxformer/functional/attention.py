"""Scaled dot-product and multi-head attention (Vaswani et al. 2017, section 3.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from jaxformer.errors import InputError
from jaxformer.functional.layers import (
    Elementwise,
    Linear,
    linear,
    rms_norm,
    wide_dtype,
    widen,
)
from jaxformer.functional.masks import SegmentMask
from jaxformer.functional.shapes import check_shapes
from jaxformer.typing import Array, Bool, Float, Parameters

LOWEST = -1e30
"""The score of a key that is not allowed. It is finite: a row without any allowed key
gives zeros, not NaN.
"""

Mask: TypeAlias = Bool[Array, "#B #H #T #S"] | SegmentMask | None
"""Which keys each query may attend to: True = may attend, segments, or all."""

Rotation: TypeAlias = Callable[[Float[Array, "B T H K"]], Float[Array, "B T H K"]]
"""Rotary positions, such as :func:`~jaxformer.functional.rotary` with positions."""

Attention: TypeAlias = Callable[..., tuple[Array, Array | None]]
"""A function with the arguments of :func:`dot_product_attention`."""


PARAMETERS = {
    "query": {"kernel": "D H K", "bias": "H K"},
    "key": {"kernel": "D G K", "bias": "G K"},
    "value": {"kernel": "D G K2", "bias": "G K2"},
    "output": {"kernel": "H K2 D", "bias": "D"},
    "query_norm?": {"scale": "K"},
    "key_norm?": {"scale": "K"},
}
"""The parameters of multi-head attention and their axes. Biases may be absent. Keys and
values may have fewer heads, G. With norms, queries and keys are normalized.
"""


class KeysValues(NamedTuple):
    """The projected memory: keys and values of each position, in G heads."""

    keys: Float[Array, "B S G K"]
    values: Float[Array, "B S G K2"]


@check_shapes()
def masked_softmax(
    scores: Float[Array, "*B T S"], mask: Bool[Array, "#*B #T #S"] | None = None
) -> Float[Array, "*B T S"]:
    """Return the softmax over the last axis, in the wider of float32 and the dtype of
    the scores. Masked entries are 0, and so is a row without any key.
    """
    scores = widen(scores)
    if mask is None:
        return jax.nn.softmax(scores)
    return jnp.where(mask, jax.nn.softmax(jnp.where(mask, scores, LOWEST)), 0.0)


@check_shapes()
def dot_product_attention(
    query: Float[Array, "B T H K"],
    key: Float[Array, "B S G K"],
    value: Float[Array, "B S G K2"],
    mask: Mask = None,
    *,
    bias: Float[Array, "#B #H #T #S"] | None = None,
    drop: Elementwise | None = None,
) -> tuple[Float[Array, "B T H K2"], Float[Array, "B H T S"]]:
    """Return softmax(Q K^T / sqrt(d_k)) V (equation 1), and the weights.

    Args:
        query: of each target position.
        key: of each source position; each of its G heads serves H / G heads of queries
            (Ainslie et al. 2023).
        value: of each source position.
        mask: True = may attend; axes of size 1 broadcast. Rows without any True give
            zeros. Or segments.
        bias: added to the scaled scores.
        drop: dropout of the weights, such as ``lambda x: dropout(x, 0.1, key)``; none
            in the paper.

    Raises:
        InputError: heads of keys that do not divide those of queries.
    """
    key, value = (share_heads(x, query.shape[2]) for x in (key, value))
    if isinstance(mask, SegmentMask):
        mask = mask.dense(query.shape[1])
    wide = wide_dtype(query)
    scaled = query * query.shape[-1] ** -0.5
    scores = jnp.einsum("BTHK,BSHK->BHTS", scaled, key, preferred_element_type=wide)
    if bias is not None:
        scores = scores + bias.astype(wide)
    weights = masked_softmax(scores, mask)
    mixing = (weights if drop is None else drop(weights)).astype(value.dtype)
    output = jnp.einsum("BHTS,BSHK->BTHK", mixing, value, preferred_element_type=wide)
    return output.astype(value.dtype), weights


def share_heads(x: Float[Array, "B S G K"], heads: int) -> Float[Array, "B S H K"]:
    """Repeat each head of keys or values for the heads of queries that it serves.

    Raises:
        InputError: the heads do not divide those of queries.
    """
    if heads % x.shape[2]:
        raise InputError(f"{heads} heads of queries cannot share {x.shape[2]} of keys")
    return jnp.repeat(x, heads // x.shape[2], axis=2)


def project_heads(
    params: Parameters,
    name: str,
    x: Float[Array, "B T D"],
    rotate: Rotation | None = None,
    linear: Linear = linear,
) -> Float[Array, "B T H K"]:
    """Project x to the heads of ``query`` or ``key``. Normalize them where ``params``
    has a norm (Henry et al. 2020, here RMSNorm), then rotate them.
    """
    heads = linear(x, **params[name])
    if f"{name}_norm" in params:
        heads = rms_norm(heads, **params[f"{name}_norm"])
    return heads if rotate is None else rotate(heads)


def project_keys_values(
    params: Parameters,
    memory: Float[Array, "B S D"],
    *,
    rotate: Rotation | None = None,
    linear: Linear = linear,
) -> KeysValues:
    """Return M W^K and M W^V of a memory (section 3.2.2)."""
    keys = project_heads(params, "key", memory, rotate, linear)
    return KeysValues(keys, linear(memory, **params["value"]))


@check_shapes(params=PARAMETERS)
def multi_head_attention(
    params: Parameters,
    x: Float[Array, "B T D"],
    memory: Float[Array, "B S D"],
    mask: Mask = None,
    *,
    rotate: Rotation | None = None,
    linear: Linear = linear,
    attend: Attention = dot_product_attention,
    **options: Any,
) -> tuple[Float[Array, "B T D"], Float[Array, "B H T S"] | None]:
    """Return Concat(head_1, ..., head_h) W^O and the weights of every head, where
    head_i = Attention(x W_i^Q, memory W_i^K, memory W_i^V) (section 3.2.2).

    Args:
        params: see :data:`PARAMETERS`.
        x: the vectors that queries are projected from.
        memory: the vectors that keys and values are projected from; x for
            self-attention.
        mask: True = may attend, or segments.
        rotate: applied to queries and keys.
        linear: computes x W + b.
        attend: computes equation 1.
        options: of ``attend``.
    """
    keys, values = project_keys_values(params, memory, rotate=rotate, linear=linear)
    query = project_heads(params, "query", x, rotate, linear)
    heads, weights = attend(query, keys, values, mask, **options)
    return linear(heads, **params["output"], contract=2), weights
