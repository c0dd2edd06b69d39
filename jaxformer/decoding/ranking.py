"""The largest of many values, the choice by index, and the writing at one place of every row."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from jaxformer.typing import Array, Float, Int


def largest(values: Float[Array, "B M"], count: int) -> tuple[Float[Array, "B k"], Int[Array, "B k"]]:
    """Give the largest values of each row and their indices as ``lax.top_k`` does, ties by the lower index, but faster.

    The k largest lie in the k blocks with the largest maxima: a value elsewhere has k others before it. So one pass
    finds the blocks, and only they are ranked. Long rows gain a factor of two to four on a CPU.
    """
    batch, size = values.shape
    block = 64
    if size <= 2 * count * block:
        return lax.top_k(values, count)
    end = size - size % block
    blocks = values[:, :end].reshape(batch, -1, block)
    # In the order of their indices, so that ties are found in that order; what does not fill a block comes last.
    chosen = jnp.sort(lax.top_k(jnp.max(blocks, axis=-1), count)[1], axis=-1)
    candidates = jnp.concatenate([take(blocks, chosen).reshape(batch, -1), values[:, end:]], axis=1)
    top, place = lax.top_k(candidates, count)
    in_block = take(chosen, jnp.minimum(place // block, count - 1)) * block + place % block
    return top, jnp.where(place < count * block, in_block, place - count * block + end)


def take(x: Array, index: Int[Array, "B k"]) -> Array:
    """Choose along the second axis in each row of the first."""
    return jax.vmap(lambda row, places: row.at[places].get(mode="promise_in_bounds"))(x, index)


def put(x: Array, values: Array, place: Int[Array, ""]) -> Array:
    """Write one value at a place of the last axis: a slice is updated at once, where a scatter goes value by value."""
    return lax.dynamic_update_index_in_dim(x, values.astype(x.dtype), place, axis=x.ndim - 1)
