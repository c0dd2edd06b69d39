"""Attention in one kernel, which writes no attention weights: cuDNN on GPUs, and JAX's
Pallas kernel on TPUs.

Both compute what :func:`~jaxformer.functional.attention.dot_product_attention` does,
but return no weights, and keep only queries, keys and values for the backward pass.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import PartitionSpec

from jaxformer.errors import InputError
from jaxformer.functional.masks import SegmentMask
from jaxformer.kernels.mesh import ROW_AXES, TENSOR_AXIS, automatic_axes
from jaxformer.typing import Array, Bool, Float, Int

# How JAX's errors begin where it does not have the device of a kernel.
_ABSENT = ("cuDNN is not detected", "Only interpret mode is supported")

# Lengths of the Pallas kernel are padded to the lanes of a TPU, and cut into blocks.
_LANES, _BLOCK = 128, 512


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
    return output if allowed is None else _zero_without_keys(output, allowed)


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
    """Compute attention by JAX's splash attention, block by block.

    The backward kernel computes the weights again. Under a mesh each device computes
    its own rows and heads.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_kernel as splash,
    )
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_mask as masks,
    )

    length, width = query.shape[1], query.shape[3]
    queries, keys = mask.queries, mask.keys
    if queries is None:  # every key but padding is in the one segment
        queries, keys = jnp.ones(query.shape[:2], jnp.int32), keys.astype(bool)
    queries, keys = (x.astype(jnp.int32) for x in (queries, keys))
    # No query is in the segment of padding.
    keys = jnp.where(keys == 0, -1, keys)
    # Positions last: heads of 64 would fill half of the lanes.
    layout = splash.QKVLayout.SEQ_MINOR

    def attention(
        query: Array, key: Array, value: Array, queries: Array, keys: Array
    ) -> Array:
        heads = [_pad(x.transpose(0, 2, 1, 3), _LANES, 2) for x in (query, key, value)]
        segments = splash.SegmentIds(*(_pad(x, _LANES, 1) for x in (queries, keys)))
        shape = heads[0].shape[2], heads[1].shape[2]
        rule = masks.CausalMask(shape) if mask.causal else masks.FullMask(shape)
        rows, columns = (math.gcd(size, _BLOCK) for size in shape)
        kernel = splash.make_splash_mha_single_device(
            masks.MultiHeadMask([rule] * query.shape[2]),
            block_sizes=splash.BlockSizes(
                block_q=rows,
                block_kv=columns,
                block_q_dkv=rows,
                block_kv_dkv=columns,
                use_fused_bwd_kernel=True,
                q_layout=layout,
                k_layout=layout,
                v_layout=layout,
            ),
        )
        output: Any = jax.vmap(kernel)(*heads, segments)
        return output[:, :, :length].transpose(0, 2, 1, 3)

    scaled = query * jnp.asarray(width**-0.5, query.dtype)
    output = _over_mesh(attention)(scaled, key, value, queries, keys)
    return _zero_without_keys(output, mask.dense(length))


def _zero_without_keys(
    output: Float[Array, "B T H K"], allowed: Bool[Array, "B 1 T S"]
) -> Float[Array, "B T H K"]:
    """Let a query without any allowed key give zeros, as the equation does."""
    attends = allowed.any(axis=-1)[:, 0, :, None, None]
    return jnp.where(attends, output, jnp.zeros((), output.dtype))


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
