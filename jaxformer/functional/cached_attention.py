"""Attention of one new position to keys and values that are kept: what each step of decoding computes.

Keys and values lie as the products read them, heads before positions, so that no step turns them around. The hypotheses
of a sentence share one store. Each position has a place for each of them, and which of these places a hypothesis reads
is told by its ancestors: when hypotheses change places, small integers move, and keys and values stay where they are.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxformer.functional.attention import KeysValues, masked_softmax, project_keys_values
from jaxformer.functional.layers import linear
from jaxformer.typing import Array, Bool, Float, Int, Parameters

NOBODY = -1
"""The ancestor at positions to come."""


class Store(NamedTuple):
    """Keys and values in M places, in the layout in which they are read."""

    keys: Float[Array, "B H K M"]
    values: Float[Array, "B H M K2"]


def store_dtype(dtype: jnp.dtype) -> jnp.dtype:
    """Give the type in which a computation of some type keeps its keys and values.

    That is the same type, but float32 on a CPU, where many small products of half precision take several times as long.
    """
    return jnp.dtype(jnp.float32) if jax.default_backend() == "cpu" else jnp.dtype(dtype)


def store(memory: KeysValues) -> Store:
    """Lay keys and values out for reading, [B, S, H, K] with a place for each position."""
    keys, values = (x.astype(store_dtype(x.dtype)) for x in memory)
    return Store(keys.transpose(0, 2, 3, 1), values.transpose(0, 2, 1, 3))


def project_to_store(params: Parameters, memory: Float[Array, "B S D"]) -> Store:
    """Project a memory once, for many calls of :func:`attend_to_store`."""
    return store(project_keys_values(params, memory))


def extend(old: Store, new: KeysValues, position: Int[Array, ""]) -> Store:
    """Write the keys and values of W hypotheses, [B, W, H, K], into the places of a position: W of them, from W times
    the position on.
    """
    fresh = store(new)
    start = position * fresh.values.shape[2]
    return Store(
        lax.dynamic_update_slice_in_dim(old.keys, fresh.keys.astype(old.keys.dtype), start, axis=3),
        lax.dynamic_update_slice_in_dim(old.values, fresh.values.astype(old.values.dtype), start, axis=2),
    )


def readable(ancestors: Int[Array, "B W T"]) -> Bool[Array, "B 1 W M"]:
    """Tell which places each hypothesis reads: at each position that of its ancestor, none where there is nobody."""
    sentences, width, length = ancestors.shape
    seen = ancestors[..., None] == jnp.arange(width)[None, None, None, :]
    return seen.reshape(sentences, 1, width, length * width)


def attend_to_store(
    params: Parameters, x: Float[Array, "B W D"], memory: Store, mask: Bool[Array, "#B 1 #W M"]
) -> tuple[Float[Array, "B W D"], Float[Array, "B H W M"]]:
    """Let ``x`` attend to what is stored; what :func:`~jaxformer.functional.attention.attend` gives for the same keys.

    Args:
        params: of multi-head attention.
        x: what W hypotheses ask.
        memory: keys and values.
        mask: places that they may read.

    Returns:
        The output in the type of ``x``, and the weights, float32.
    """
    query = linear(x, params["query"]["kernel"], params["query"]["bias"])
    query = (query * query.shape[-1] ** -0.5).astype(memory.keys.dtype).transpose(0, 2, 1, 3)
    scores = jnp.einsum("BHWK,BHKM->BHWM", query, memory.keys, preferred_element_type=jnp.float32)
    weights = masked_softmax(scores, mask)
    mixing = weights.astype(memory.values.dtype)
    heads = jnp.einsum("BHWM,BHMK->BHWK", mixing, memory.values, preferred_element_type=jnp.float32)
    heads = heads.astype(x.dtype).transpose(0, 2, 1, 3)
    return linear(heads, params["output"]["kernel"], params["output"]["bias"], contract=2), weights
