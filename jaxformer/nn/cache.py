"""Attention of one new position to cached keys and values, as each decoding step
computes it.

The cache has the layout of the matmuls that read it, heads before positions, so that no
step transposes it. All hypotheses of a sentence share one store, with one slot per
hypothesis at each position. The ancestors of a hypothesis say which slots it reads.
When the beam reorders hypotheses, only these small integers move.

Most translations are far shorter than the cache, and a CPU is limited by reading it
from memory. There the cache is cut into spans of positions, and attention reads only
those spans that have been written.
"""

from __future__ import annotations

import functools
import itertools
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from jaxformer.functional.attention import (
    KeysValues,
    Rotation,
    masked_softmax,
    project_heads,
    project_keys_values,
)
from jaxformer.functional.layers import wide_dtype
from jaxformer.kernels.matmul import joint_linear, linear
from jaxformer.typing import Array, Bool, Float, Int, Parameters

NO_ANCESTOR = -1
"""The ancestor at positions that are not decoded yet."""

_SPANS = (24, 96, 384)  # their ends; each span is one more branch to compile


class KeyValueStore(NamedTuple):
    """Keys and values in M slots, in the layout of the matmuls that read them. G heads
    of them serve H heads of queries.
    """

    keys: Float[Array, "B G K M"]
    values: Float[Array, "B G M K2"]


Spans: TypeAlias = tuple[KeyValueStore, ...]
"""Keys and values of consecutive ranges of positions. Each is an array: a slice of one
array would be copied before a matmul reads it.
"""


def cache_dtype(dtype: jnp.dtype) -> jnp.dtype:
    """Return the storage dtype of the KV cache: the compute dtype, but at least float32
    on a CPU.

    There, small matmuls in half precision take several times as long.
    """
    narrow = jax.default_backend() == "cpu" and jnp.finfo(dtype).bits < 32
    return jnp.dtype(jnp.float32 if narrow else dtype)


def store(memory: KeysValues) -> KeyValueStore:
    """Transpose keys and values to the layout of a store, with one slot per
    position.
    """
    keys, values = (x.astype(cache_dtype(x.dtype)) for x in memory)
    return KeyValueStore(keys.transpose(0, 2, 3, 1), values.transpose(0, 2, 1, 3))


def project_to_store(
    params: Parameters, memory: Float[Array, "B S D"], rotate: Rotation | None = None
) -> KeyValueStore:
    """Project a memory once, for many calls of :func:`attend_to_store`."""
    joint = joint_linear(memory, params["key"], params["value"])
    return store(project_keys_values(params, memory, rotate=rotate, linear=joint))


def empty_spans(
    sentences: int,
    heads: int,
    d_k: int,
    d_v: int,
    *,
    width: int,
    length: int,
    dtype: jnp.dtype,
) -> Spans:
    """Allocate slots for W hypotheses at each of ``length`` positions: in several
    spans on a CPU, else in one.
    """
    ends = (
        [*(end for end in _SPANS if end < length), length]
        if jax.default_backend() == "cpu"
        else [length]
    )
    slots = [width * (end - begin) for begin, end in itertools.pairwise([0, *ends])]
    return tuple(
        KeyValueStore(
            jnp.zeros((sentences, heads, d_k, size), dtype),
            jnp.zeros((sentences, heads, size, d_v), dtype),
        )
        for size in slots
    )


def extend(old: Spans, fresh: KeyValueStore, position: Int[Array, ""]) -> Spans:
    """Write the keys and values of W hypotheses into the W slots of a position."""
    start, grown = position * fresh.values.shape[2], []
    for span in old:
        grown.append(
            KeyValueStore(
                _write(span.keys, fresh.keys, start, 3),
                _write(span.values, fresh.values, start, 2),
            )
        )
        start -= span.values.shape[2]
    return tuple(grown)


def _write(old: Array, new: Array, start: Int[Array, ""], axis: int) -> Array:
    """Write ``new`` from index ``start`` if it is within the array; otherwise
    rewrite what is there.
    """
    size, last = new.shape[axis], old.shape[axis] - new.shape[axis]
    index = jnp.clip(start, 0, last)
    present = lax.dynamic_slice_in_dim(old, index, size, axis)
    return lax.dynamic_update_slice_in_dim(
        old, jnp.where(index == start, new.astype(old.dtype), present), index, axis
    )


def readable(ancestors: Int[Array, "B W T"]) -> Bool[Array, "B 1 W M"]:
    """Build the mask of slots: at each position a hypothesis reads the slot of its
    ancestor, if it has one.
    """
    sentences, width, length = ancestors.shape
    seen = (
        ancestors[..., None]
        == jnp.arange(width, dtype=ancestors.dtype)[None, None, None, :]
    )
    return seen.reshape(sentences, 1, width, length * width)


def slot_positions(slots: int, width: int) -> Int[Array, " M"]:
    """Return the position of each slot, W a position."""
    return jnp.arange(slots, dtype=jnp.int32) // width


def attend_to_store(
    params: Parameters,
    x: Float[Array, "B W D"],
    memory: KeyValueStore,
    mask: Bool[Array, "#B 1 #W M"],
) -> tuple[Float[Array, "B W D"], Float[Array, "B H W M"]]:
    """Attend to stored keys and values, as
    :func:`~jaxformer.functional.attention.multi_head_attention` does.

    Args:
        params: of multi-head attention.
        x: the new position of W hypotheses.
        memory: keys and values.
        mask: slots that they may read.

    Returns:
        The output in the dtype of ``x``, and the weights, float32 (float64 for float64
        inputs).
    """
    query = _project_query(params, x, memory)
    weights = masked_softmax(_scores(query, memory), mask)
    return _project_output(params, x, _mix(weights, memory)), weights


def attend_to_spans(
    params: Parameters,
    x: Float[Array, "B W D"],
    memory: Spans,
    mask: Bool[Array, "#B 1 #W M"],
    position: Int[Array, ""],
    *,
    bias: Float[Array, "1 H 1 M"] | None = None,
    rotate: Rotation | None = None,
) -> Float[Array, "B W D"]:
    """Attend as :func:`attend_to_store` does, but read only the spans that begin at or
    before the position.

    Args:
        params: of multi-head attention.
        x: the new position of W hypotheses.
        memory: keys and values, in W slots for each position.
        mask: slots that they may read, none after ``position``.
        position: of ``x``, counted from 0.
        bias: added to the scaled scores.
        rotate: applied to the projected queries; stored keys are rotated.
    """
    ends = [
        *itertools.accumulate(span.values.shape[2] // x.shape[1] for span in memory)
    ]
    branches = [
        functools.partial(_attend_to_first, count)
        for count in range(1, len(memory) + 1)
    ]
    branch = sum(jnp.int32(end <= position) for end in ends[:-1])
    query = _project_query(params, x, memory[0], rotate)
    heads = lax.switch(branch, branches, query, memory, mask, bias)
    return _project_output(params, x, heads)


def _attend_to_first(
    count: int,
    query: Float[Array, "B H W K"],
    memory: Spans,
    mask: Bool[Array, "#B 1 #W M"],
    bias: Float[Array, "1 H 1 M"] | None,
) -> Float[Array, "B H W K2"]:
    """Attend to the first ``count`` spans."""
    scores = jnp.concatenate([_scores(query, span) for span in memory[:count]], axis=-1)
    if bias is not None:
        scores = scores + bias[..., : scores.shape[-1]].astype(scores.dtype)
    weights = masked_softmax(scores, mask[..., : scores.shape[-1]])
    mixed, begin = [], 0
    for span in memory[:count]:
        end = begin + span.values.shape[2]
        mixed.append(_mix(weights[..., begin:end], span))
        begin = end
    return functools.reduce(jnp.add, mixed)


def _project_query(
    params: Parameters,
    x: Float[Array, "B W D"],
    memory: KeyValueStore,
    rotate: Rotation | None = None,
) -> Float[Array, "B H W K"]:
    query = project_heads(params, "query", x, rotate, linear)
    return (
        (query * query.shape[-1] ** -0.5)
        .astype(memory.keys.dtype)
        .transpose(0, 2, 1, 3)
    )


def _scores(
    query: Float[Array, "B H W K"], memory: KeyValueStore
) -> Float[Array, "B H W M"]:
    batch, heads, width, size = query.shape
    # The heads of queries that share a head of keys are more rows of one matmul.
    scores = jnp.einsum(
        "BGWK,BGKM->BGWM",
        query.reshape(batch, memory.keys.shape[1], -1, size),
        memory.keys,
        preferred_element_type=wide_dtype(memory.keys),
    )
    return scores.reshape(batch, heads, width, -1)


def _mix(
    weights: Float[Array, "B H W M"], memory: KeyValueStore
) -> Float[Array, "B H W K2"]:
    batch, heads, width, slots = weights.shape
    mixing = weights.astype(memory.values.dtype)
    mixed = jnp.einsum(
        "BGWM,BGMK->BGWK",
        mixing.reshape(batch, memory.values.shape[1], -1, slots),
        memory.values,
        preferred_element_type=wide_dtype(mixing),
    )
    return mixed.reshape(batch, heads, width, -1)


def _project_output(
    params: Parameters, x: Float[Array, "B W D"], heads: Float[Array, "B H W K2"]
) -> Float[Array, "B W D"]:
    heads = heads.astype(x.dtype).transpose(0, 2, 1, 3)
    return linear(heads, **params["output"], contract=2)
