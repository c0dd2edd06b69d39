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


def project_to_store(
    params: Parameters, memory: Float[Array, "B S D"], rotate: Rotation | None = None
) -> KeyValueStore:
    """Project a memory once, for many calls of :func:`attend_to_spans`."""
    joint = joint_linear(memory, params["key"], params["value"])
    both = project_keys_values(params, memory, rotate=rotate, linear=joint)
    keys, values = (x.astype(cache_dtype(x.dtype)) for x in both)
    return KeyValueStore(keys.transpose(0, 2, 3, 1), values.transpose(0, 2, 1, 3))


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
    several = jax.default_backend() == "cpu"
    ends = [end for end in _SPANS if several and end < length]
    return tuple(
        KeyValueStore(
            jnp.zeros((sentences, heads, d_k, width * (end - begin)), dtype),
            jnp.zeros((sentences, heads, width * (end - begin), d_v), dtype),
        )
        for begin, end in itertools.pairwise([0, *ends, length])
    )


def extend(old: Spans, fresh: KeyValueStore, position: Int[Array, ""]) -> Spans:
    """Write the keys and values of W hypotheses into the W slots of a position."""
    start, grown = position * fresh.values.shape[2], []
    for span in old:
        keys = _write(span.keys, fresh.keys, start, 3)
        values = _write(span.values, fresh.values, start, 2)
        grown.append(KeyValueStore(keys, values))
        start -= values.shape[2]
    return tuple(grown)


def _write(old: Array, new: Array, start: Array, axis: int) -> Array:
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


def attend_to_spans(
    params: Parameters,
    x: Float[Array, "..."],
    memory: Spans,
    mask: Bool[Array, "#B 1 #W M"] | None,
    position: Int[Array, ""] | None = None,
    *,
    bias: Float[Array, "1 H 1 M"] | None = None,
    rotate: Rotation | None = None,
) -> tuple[Float[Array, "..."], Float[Array, "B H W M"] | None]:
    """Attend to stored keys and values, as
    :func:`~jaxformer.functional.attention.multi_head_attention` does.

    Args:
        params: of multi-head attention.
        x: the new position of W hypotheses, [B, W, D] or [B * W, 1, D].
        memory: keys and values, of a cache in W slots for each position.
        mask: slots that they may read; None: all.
        position: of ``x`` in a cache, counted from 0: only spans that begin at or
            before it are read. None: all are.
        bias: added to the scaled scores.
        rotate: applied to the projected queries; stored keys are rotated.

    Returns:
        The output in the dtype of ``x``, and without ``position`` the weights, float32
        (float64 for float64 inputs).
    """
    beams = x.reshape(memory[0].keys.shape[0], -1, x.shape[-1])
    query = project_heads(params, "query", beams, rotate, linear)
    query = (query * query.shape[-1] ** -0.5).astype(memory[0].keys.dtype)
    query, weights = query.transpose(0, 2, 1, 3), None
    if position is None:
        heads, weights = _attend(query, memory, mask, bias)
    else:
        slots = itertools.accumulate(span.values.shape[2] for span in memory)
        begun = [end // beams.shape[1] <= position for end in slots][:-1]
        branches = [
            lambda query, memory, *how, n=n: _attend(query, memory[:n], *how)[0]
            for n in range(1, len(memory) + 1)
        ]
        branch = sum(map(jnp.int32, begun))
        heads = lax.switch(branch, branches, query, memory, mask, bias)
    heads = heads.astype(x.dtype).transpose(0, 2, 1, 3)
    return linear(heads, **params["output"], contract=2).reshape(x.shape), weights


def _attend(
    query: Array, memory: Spans, mask: Array | None, bias: Array | None
) -> tuple[Array, Array]:
    """Attend to all of these spans; return the heads [B, H, W, K2], and the weights [B,
    H, W, M].
    """
    scores = jnp.concatenate([_matmul(query, span.keys) for span in memory], axis=-1)
    slots = scores.shape[-1]
    if bias is not None:
        scores = scores + bias[..., :slots].astype(scores.dtype)
    seen = None if mask is None else mask[..., :slots]
    weights = masked_softmax(scores, seen)
    ends = itertools.accumulate(span.values.shape[2] for span in memory)
    parts = jnp.split(weights, [*ends][:-1], axis=-1)
    mixed = [
        _matmul(part.astype(span.values.dtype), span.values)
        for part, span in zip(parts, memory, strict=True)
    ]
    return functools.reduce(jnp.add, mixed), weights


def _matmul(x: Array, stored: Array) -> Array:
    """Multiply [B, H, W, .] by keys or values. The heads of queries that share a head
    of keys are more rows of one matmul.
    """
    rows = x.reshape(x.shape[0], stored.shape[1], -1, x.shape[-1])
    result = jnp.matmul(rows, stored, preferred_element_type=wide_dtype(rows))
    return result.reshape(*x.shape[:-1], -1)
