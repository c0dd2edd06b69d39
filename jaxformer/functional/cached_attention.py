"""Attention of one new position to keys and values that are kept: what each step of decoding computes.

Keys and values lie as the products read them, heads before positions, so that no step turns them around. The hypotheses
of a sentence share one store. Each position has a place for each of them, and which of these places a hypothesis reads
is told by its ancestors: when hypotheses change places, small integers move, and keys and values stay where they are.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxformer.functional.attention import KeysValues, masked_softmax, project_keys_values
from jaxformer.functional.layers import linear
from jaxformer.typing import Array, Bool, Float, Int, Parameters

NOBODY = -1
"""The ancestor at positions to come."""


# Numbers of a store that a core's own cache does not hold.
_WORTH_A_BRANCH = 2**18


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
    heads, weights = _mix(_ask(params, x, memory), memory, mask)
    return _answer(params, x, heads), weights


def attend_to_begin(
    params: Parameters,
    x: Float[Array, "B W D"],
    memory: Store,
    mask: Bool[Array, "#B 1 #W M"],
    position: Int[Array, ""],
) -> Float[Array, "B W D"]:
    """Do as :func:`attend_to_store` where nothing is stored behind a position, for the output alone.

    Translations are far shorter than the room that is kept for them. A CPU, which spends its time on fetching keys and
    values from memory, reads the first 16 positions only, or 32, or 64, ..., as many as hold those that are there.

    Args:
        params: of multi-head attention.
        x: what W hypotheses ask.
        memory: keys and values, in W places for each position.
        mask: places that they may read, none behind ``position``.
        position: of ``x``, counted from 0.
    """
    width, places = x.shape[1], memory.values.shape[2]
    sizes = [width * length for length in _lengths(memory.keys.size, places // width)]
    branches = [functools.partial(_mix_begin, size) for size in sizes]
    branch = jnp.sum(jnp.array(sizes[:-1], jnp.int32) <= width * position)
    heads = lax.switch(branch, branches, _ask(params, x, memory), memory, mask)
    return _answer(params, x, heads)


def _lengths(size: int, longest: int) -> list[int]:
    """Give the numbers of positions of which one is read, where a branch costs less than reading all."""
    if jax.default_backend() != "cpu" or size < _WORTH_A_BRANCH:
        return [longest]
    return [length for length in (16, 32, 64, 128, 256) if length < longest] + [longest]


def _mix_begin(
    size: int, query: Float[Array, "B H W K"], memory: Store, mask: Bool[Array, "#B 1 #W M"]
) -> Float[Array, "B H W K2"]:
    begin = Store(memory.keys[..., :size], memory.values[:, :, :size])
    return _mix(query, begin, mask[..., :size])[0]


def _ask(params: Parameters, x: Float[Array, "B W D"], memory: Store) -> Float[Array, "B H W K"]:
    query = linear(x, params["query"]["kernel"], params["query"]["bias"])
    return (query * query.shape[-1] ** -0.5).astype(memory.keys.dtype).transpose(0, 2, 1, 3)


def _mix(
    query: Float[Array, "B H W K"], memory: Store, mask: Bool[Array, "#B 1 #W M"]
) -> tuple[Float[Array, "B H W K2"], Float[Array, "B H W M"]]:
    scores = jnp.einsum("BHWK,BHKM->BHWM", query, memory.keys, preferred_element_type=jnp.float32)
    weights = masked_softmax(scores, mask)
    mixing = weights.astype(memory.values.dtype)
    return jnp.einsum("BHWM,BHMK->BHWK", mixing, memory.values, preferred_element_type=jnp.float32), weights


def _answer(params: Parameters, x: Float[Array, "B W D"], heads: Float[Array, "B H W K2"]) -> Float[Array, "B W D"]:
    heads = heads.astype(x.dtype).transpose(0, 2, 1, 3)
    return linear(heads, params["output"]["kernel"], params["output"]["bias"], contract=2)
