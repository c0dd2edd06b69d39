"""Attention of one new position to keys and values that are kept: what each step of decoding computes.

Keys and values lie as the products read them, heads before positions, so that no step turns them around. The hypotheses
of a sentence share one store. Each position has a place for each of them, and which of these places a hypothesis reads
is told by its ancestors: when hypotheses change places, small integers move, and keys and values stay where they are.

Translations are far shorter than the room that is kept for them. A CPU spends its time on fetching keys and values from
memory, so that there they lie in spans of positions, and attention reads those spans alone in which anything stands.
"""

from __future__ import annotations

import functools
import itertools
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from jaxformer.functional.attention import KeysValues, masked_softmax, project_keys_values
from jaxformer.functional.layers import linear
from jaxformer.functional.products import wide_dtype
from jaxformer.typing import Array, Bool, Float, Int, Parameters

NOBODY = -1
"""The ancestor at positions to come."""

_SPANS = (24, 96, 384)  # where one ends and another begins; each more is a case more to compile


class Store(NamedTuple):
    """Keys and values in M places, in the layout in which they are read."""

    keys: Float[Array, "B H K M"]
    values: Float[Array, "B H M K2"]


Spans: TypeAlias = tuple[Store, ...]
"""Keys and values of positions one behind the other, in arrays of their own: a part of one array would be copied before
a product reads it."""


def store_dtype(dtype: jnp.dtype) -> jnp.dtype:
    """Return the storage dtype of the KV cache: that of the computation, but at least float32 on a CPU.

    There, many small matmuls in half precision take several times as long.
    """
    narrow = jax.default_backend() == "cpu" and jnp.finfo(dtype).bits < 32
    return jnp.dtype(jnp.float32 if narrow else dtype)


def store(memory: KeysValues) -> Store:
    """Lay keys and values out for reading, [B, S, H, K] with a place for each position."""
    keys, values = (x.astype(store_dtype(x.dtype)) for x in memory)
    return Store(keys.transpose(0, 2, 3, 1), values.transpose(0, 2, 1, 3))


def project_to_store(params: Parameters, memory: Float[Array, "B S D"]) -> Store:
    """Project a memory once, for many calls of :func:`attend_to_store`."""
    return store(project_keys_values(params, memory))


def empty_spans(sentences: int, heads: int, d_k: int, d_v: int, *, width: int, length: int, dtype: jnp.dtype) -> Spans:
    """Make room for the keys and values of W hypotheses in each of ``length`` positions: several spans on a CPU, one
    elsewhere.
    """
    ends = [*(end for end in _SPANS if end < length), length] if jax.default_backend() == "cpu" else [length]
    places = [width * (end - begin) for begin, end in itertools.pairwise([0, *ends])]
    return tuple(
        Store(jnp.zeros((sentences, heads, d_k, size), dtype), jnp.zeros((sentences, heads, size, d_v), dtype))
        for size in places
    )


def extend(old: Spans, new: KeysValues, position: Int[Array, ""]) -> Spans:
    """Write the keys and values of W hypotheses, [B, W, H, K], into the places of a position: W of them, from W times
    the position on.
    """
    fresh = store(new)
    start, grown = position * fresh.values.shape[2], []
    for span in old:
        grown.append(Store(_write(span.keys, fresh.keys, start, 3), _write(span.values, fresh.values, start, 2)))
        start -= span.values.shape[2]
    return tuple(grown)


def _write(old: Array, new: Array, start: Int[Array, ""], axis: int) -> Array:
    """Replace a part of an array where it lies within; where it does not, write what is there already."""
    size, last = new.shape[axis], old.shape[axis] - new.shape[axis]
    place = jnp.clip(start, 0, last)
    there = lax.dynamic_slice_in_dim(old, place, size, axis)
    return lax.dynamic_update_slice_in_dim(old, jnp.where(place == start, new.astype(old.dtype), there), place, axis)


def readable(ancestors: Int[Array, "B W T"]) -> Bool[Array, "B 1 W M"]:
    """Tell which places each hypothesis reads: at each position that of its ancestor, none where there is nobody."""
    sentences, width, length = ancestors.shape
    seen = ancestors[..., None] == jnp.arange(width, dtype=ancestors.dtype)[None, None, None, :]
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
        The output in the type of ``x``, and the weights, float32 (float64 of float64).
    """
    weights = masked_softmax(_compare(_ask(params, x, memory), memory), mask)
    return _answer(params, x, _weigh(weights, memory)), weights


def attend_to_spans(
    params: Parameters,
    x: Float[Array, "B W D"],
    memory: Spans,
    mask: Bool[Array, "#B 1 #W M"],
    position: Int[Array, ""],
) -> Float[Array, "B W D"]:
    """Do as :func:`attend_to_store` with keys and values in spans, and read none that begins behind the position; give
    the output.

    Args:
        params: of multi-head attention.
        x: what W hypotheses ask.
        memory: keys and values, in W places for each position.
        mask: places that they may read, none behind ``position``.
        position: of ``x``, counted from 0.
    """
    ends = [*itertools.accumulate(span.values.shape[2] // x.shape[1] for span in memory)]
    branches = [functools.partial(_mix_spans, count) for count in range(1, len(memory) + 1)]
    branch = jnp.sum(jnp.array(ends[:-1], jnp.int32) <= position)
    heads = lax.switch(branch, branches, _ask(params, x, memory[0]), memory, mask)
    return _answer(params, x, heads)


def _mix_spans(
    count: int, query: Float[Array, "B H W K"], memory: Spans, mask: Bool[Array, "#B 1 #W M"]
) -> Float[Array, "B H W K2"]:
    """Mix the values of the first spans."""
    scores = jnp.concatenate([_compare(query, span) for span in memory[:count]], axis=-1)
    weights = masked_softmax(scores, mask[..., : scores.shape[-1]])
    mixed, begin = [], 0
    for span in memory[:count]:
        end = begin + span.values.shape[2]
        mixed.append(_weigh(weights[..., begin:end], span))
        begin = end
    return functools.reduce(jnp.add, mixed)


def _ask(params: Parameters, x: Float[Array, "B W D"], memory: Store) -> Float[Array, "B H W K"]:
    query = linear(x, params["query"]["kernel"], params["query"]["bias"])
    return (query * query.shape[-1] ** -0.5).astype(memory.keys.dtype).transpose(0, 2, 1, 3)


def _compare(query: Float[Array, "B H W K"], memory: Store) -> Float[Array, "B H W M"]:
    return jnp.einsum("BHWK,BHKM->BHWM", query, memory.keys, preferred_element_type=wide_dtype(memory.keys))


def _weigh(weights: Float[Array, "B H W M"], memory: Store) -> Float[Array, "B H W K2"]:
    mixing = weights.astype(memory.values.dtype)
    return jnp.einsum("BHWM,BHMK->BHWK", mixing, memory.values, preferred_element_type=wide_dtype(mixing))


def _answer(params: Parameters, x: Float[Array, "B W D"], heads: Float[Array, "B H W K2"]) -> Float[Array, "B W D"]:
    heads = heads.astype(x.dtype).transpose(0, 2, 1, 3)
    return linear(heads, params["output"]["kernel"], params["output"]["bias"], contract=2)
