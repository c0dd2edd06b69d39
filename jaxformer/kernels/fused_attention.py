"""Attention in one kernel, which writes no attention weights: cuDNN on GPUs, and a
Pallas kernel on TPUs.

Both compute what :func:`~jaxformer.functional.attention.dot_product_attention` does,
but return no weights, and keep only queries, keys and values for the backward pass.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import PartitionSpec

from jaxformer.errors import InputError
from jaxformer.functional.attention import LOWEST
from jaxformer.functional.masks import SegmentMask
from jaxformer.kernels.backends import LONGEST
from jaxformer.kernels.mesh import (
    ROW_AXES,
    TENSOR_AXIS,
    automatic_axes,
    match_varying,
)
from jaxformer.typing import Array, Bool, Float, Int

# How JAX's errors begin where it does not have the device of a kernel.
_ABSENT = ("cuDNN is not detected", "Only interpret mode is supported")

# Lengths of the Pallas kernel are padded to the lanes of a TPU.
_LANES = 128


def run_kernel(
    backend: str,
    query: Float[Array, "B T H K"],
    key: Float[Array, "B S H K"],
    value: Float[Array, "B S H K2"],
    mask: SegmentMask,
) -> Float[Array, "B T H K2"]:
    """Compute attention by ``cudnn`` or ``pallas``.

    Raises:
        InputError: JAX finds that the device is missing. For ``pallas`` inside ``jit``
            the compiler finds it, with an error of its own.
    """
    on_gpu = backend == "cudnn"
    kernel = cudnn_attention if on_gpu else pallas_attention
    try:
        return kernel(query, key, value, mask)
    except (RuntimeError, ValueError) as error:
        if not str(error).startswith(_ABSENT):
            raise
        raise InputError(
            f"backend={backend} needs a {'GPU' if on_gpu else 'TPU'}: use auto or plain"
        ) from error


def cudnn_attention(
    query: Float[Array, "B T H K"],
    key: Float[Array, "B S H K"],
    value: Float[Array, "B S H K"],
    mask: SegmentMask,
) -> Float[Array, "B T H K"]:
    """Compute attention by cuDNN.

    Without segments of queries the mask is a length of each row and a rule, and the
    keys of a row are padded on the right. With segments it is an array [B, 1, T, S].

    Raises:
        InputError: a key after padding, without segments of queries. Inside ``jit``,
            where values are unknown, the output of such a row is NaN.
    """
    length = query.shape[1]
    allowed: Array | None = None
    if mask.queries is None:
        value, lengths = _check_keys(value, mask.keys)
        rule: dict[str, Any] = {
            "is_causal": mask.causal,
            "key_value_seq_lengths": lengths,
        }
    else:
        allowed = mask.dense(length)
        rule = {"mask": _pad(allowed, 2, 2, 3)}
    # JAX lets cuDNN differentiate even lengths only.
    even = [_pad(x, 2, 1) for x in (query, key, value)]
    output = jax.nn.dot_product_attention(*even, implementation="cudnn", **rule)
    output = output[:, :length]
    if allowed is None:
        return output
    # A query without any allowed key gives zeros, as the plain definition does.
    attends = allowed.any(axis=-1)[:, 0, :, None, None]
    return jnp.where(attends, output, jnp.zeros((), output.dtype))


def _check_keys(
    value: Float[Array, "B S H K"], keys: Int[Array, "B S"] | Bool[Array, "B S"]
) -> tuple[Float[Array, "B S H K"], Int[Array, " B"]]:
    """Return values and the number of keys of each row, at least 1.

    A row without keys attends to its first, so its values become 0. Those of a row with
    a key after padding become NaN. The compiler changes values where it computes them;
    the output it would read and write again.
    """
    real = keys.astype(bool)
    lengths = real.sum(axis=1, dtype=jnp.int32)
    wrong = (real[:, 1:] & ~real[:, :-1]).any(axis=1)
    if not isinstance(wrong, Tracer) and wrong.any():
        raise InputError(
            f"backend=cudnn takes keys that are padded on the right: row"
            f" {int(wrong.argmax())} has a key after padding"
        )
    usable = (lengths > 0) & ~wrong
    instead = jnp.where(wrong, jnp.nan, 0.0).astype(value.dtype)
    usable, instead = (x[:, None, None, None] for x in (usable, instead))
    return jnp.where(usable, value, instead), jnp.maximum(lengths, 1)


def pallas_attention(
    query: Float[Array, "B T H K"],
    key: Float[Array, "B S H K"],
    value: Float[Array, "B S H K2"],
    mask: SegmentMask,
) -> Float[Array, "B T H K2"]:
    """Compute attention by a kernel that holds whole rows of scores in the fast memory
    of a TPU.

    The backward kernel computes the weights again. Under a mesh each device computes
    its own rows and heads.
    """
    length = query.shape[1]
    queries, keys = mask.queries, mask.keys
    if queries is None:  # every key but padding is in the one segment
        queries, keys = jnp.ones(query.shape[:2], jnp.int32), keys.astype(bool)

    def attention(
        query: Array, key: Array, value: Array, queries: Array, keys: Array
    ) -> Array:
        # Positions last: heads of 64 would fill half of the lanes.
        heads = [_pad(x.transpose(0, 2, 3, 1), _LANES, 3) for x in (query, key, value)]
        # Segment 0 is never attended.
        queries, keys = (x.astype(jnp.int32)[:, None] for x in (queries, keys))
        segments = [_pad(x, _LANES, 2) for x in (queries, keys)]
        output: Array = _attend(mask.causal, *match_varying((*heads, *segments)))
        return output[..., :length].transpose(0, 3, 1, 2)

    return _over_mesh(attention)(query, key, value, queries, keys)


def _pad(x: Array, multiple: int, *axes: int) -> Array:
    """Fill axes up to a multiple with zeros."""
    missing = [
        -size % multiple if axis in axes else 0 for axis, size in enumerate(x.shape)
    ]
    return jnp.pad(x, [(0, count) for count in missing])


def _over_mesh(attention: Any) -> Any:
    """Run a function on each device's own rows and heads, where a mesh shares them out;
    the compiler cannot divide a kernel by itself.
    """
    automatic = set(automatic_axes())
    if not automatic:
        return attention
    rows = tuple(axis for axis in ROW_AXES if axis in automatic)
    heads = TENSOR_AXIS if TENSOR_AXIS in automatic else None
    arrays, segments = PartitionSpec(rows, None, heads), PartitionSpec(rows)
    return jax.shard_map(
        attention,
        in_specs=(arrays, arrays, arrays, segments, segments),
        out_specs=arrays,
        axis_names=automatic,
        check_vma=False,
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
    causal: bool,
    query: Float[Array, "B H K T"],
    key: Float[Array, "B H K S"],
    value: Float[Array, "B H K2 S"],
    queries: Int[Array, "B 1 T"],
    keys: Int[Array, "B 1 S"],
) -> Float[Array, "B H K2 T"]:
    # Unlike a shape, it says over which axes of shard_map the result varies.
    shape = (*value.shape[:3], query.shape[3])
    output = jax.eval_shape(lambda: jnp.zeros_like(value, shape=shape))
    (result,) = _call(_forward, causal, (query, key, value, queries, keys), (output,))
    return result


def _attend_forward(causal: bool, *operands: Array) -> tuple[Array, tuple[Array, ...]]:
    return _attend(causal, *operands), operands


def _attend_backward(
    causal: bool, operands: tuple[Array, ...], cotangent: Array
) -> tuple[Array | None, ...]:
    gradients = jax.eval_shape(lambda: operands[:3])
    return *_call(_backward, causal, (*operands, cotangent), gradients), None, None


_attend.defvjp(_attend_forward, _attend_backward)


def _call(
    kernel: Any,
    causal: bool,
    operands: tuple[Array, ...],
    results: tuple[jax.ShapeDtypeStruct, ...],
) -> tuple[Array, ...]:
    """Run a kernel for each row and some of its heads."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    rows, heads, *_ = operands[0].shape
    longest = max(x.shape[-1] for x in operands)
    # A step of the grid costs as much as a small head: take several together, of up to
    # 768 KiB an array, which the 16 MiB of a TPU v4 hold too.
    largest = max(math.prod(x.shape[2:]) * x.dtype.itemsize for x in operands[:3])
    most = max(1, 3 * 2**18 // largest)
    together = max(n for n in range(1, heads + 1) if heads % n == 0 and n <= most)

    def block(x: Any) -> pl.BlockSpec:
        if x.ndim == 3:
            return pl.BlockSpec((None, *x.shape[1:]), lambda row, head: (row, 0, 0))
        return pl.BlockSpec(
            (None, together, *x.shape[2:]), lambda row, head: (row, head, 0, 0)
        )

    return pl.pallas_call(
        functools.partial(kernel, causal),
        grid=(rows, heads // together),
        in_specs=[block(x) for x in operands],
        out_specs=[block(x) for x in results],
        out_shape=results,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel"),
            vmem_limit_bytes=max(16, 64 * longest**2 // LONGEST**2) * 2**20,
        ),
    )(*operands)


def _forward(
    causal: bool, query: Any, key: Any, value: Any, queries: Any, keys: Any, out: Any
) -> None:
    allowed = _allowed(causal, queries, keys)

    def attend(head: Array, _: None) -> None:
        weights = _weights(query[head], key[head], allowed)
        mixed = _dot(value[head], weights.astype(value.dtype), 1, 1)
        out[head] = mixed.astype(out.dtype)

    # A loop: unrolled, the program would grow by every head.
    jax.lax.fori_loop(0, query.shape[0], attend, None)


def _backward(
    causal: bool,
    query: Any,
    key: Any,
    value: Any,
    queries: Any,
    keys: Any,
    cotangent: Any,
    to_query: Any,
    to_key: Any,
    to_value: Any,
) -> None:
    allowed = _allowed(causal, queries, keys)

    def differentiate(head: Array, _: None) -> None:
        q, k, v, change = query[head], key[head], value[head], cotangent[head]
        weights = _weights(q, k, allowed)
        to_value[head] = _dot(change, weights.astype(v.dtype), 1, 0).astype(v.dtype)
        to_weights = _dot(change, v, 0, 0)
        centred = to_weights - (weights * to_weights).sum(axis=1, keepdims=True)
        to_scores = (weights * centred * _scale(q)).astype(q.dtype)
        to_query[head] = _dot(k, to_scores, 1, 1).astype(q.dtype)
        to_key[head] = _dot(q, to_scores, 1, 0).astype(k.dtype)

    jax.lax.fori_loop(0, query.shape[0], differentiate, None)


def _allowed(causal: bool, queries: Any, keys: Any) -> Array:
    """Return which keys each query may attend to [T, S]."""
    shape = queries.shape[1], keys.shape[1]
    # A row becomes a column by a transpose in registers.
    of_query = jax.lax.broadcast_in_dim(queries[0], shape[::-1], (1,)).T
    of_key = jax.lax.broadcast_in_dim(keys[0], shape, (1,))
    allowed = (of_query == of_key) & (of_key != 0)
    if causal:
        position = [jax.lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (0, 1)]
        allowed &= position[0] >= position[1]
    return allowed


def _weights(query: Array, key: Array, allowed: Array) -> Array:
    """Return softmax(Q^T K / sqrt(d_k)) in float32 [T, S] for [K, T] and [K, S]; a row
    without any allowed key is 0.
    """
    scores = jnp.where(allowed, _dot(query, key, 0, 0) * _scale(query), LOWEST)
    exponentials = jnp.exp(scores - scores.max(axis=1, keepdims=True))
    exponentials = jnp.where(allowed, exponentials, 0.0)
    total = exponentials.sum(axis=1, keepdims=True)
    return exponentials / jnp.where(total == 0.0, 1.0, total)


def _scale(query: Array) -> float:
    return 1.0 / math.sqrt(query.shape[0])


def _dot(x: Array, y: Array, of_x: int, of_y: int) -> Array:
    return jax.lax.dot_general(
        x, y, (((of_x,), (of_y,)), ((), ())), preferred_element_type=jnp.float32
    )
