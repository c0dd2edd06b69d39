"""Attention in few kernels: the softmax keeps only what its backward pass needs, and
devices have kernels that write no attention weights.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from jaxformer.errors import InputError
from jaxformer.functional.attention import (
    Mask,
    dot_product_attention,
    masked_softmax,
    share_heads,
)
from jaxformer.functional.layers import Elementwise
from jaxformer.functional.masks import SegmentMask
from jaxformer.functional.shapes import check_shapes
from jaxformer.kernels import backends
from jaxformer.kernels.fused_attention import run_kernel
from jaxformer.kernels.matmul import einsum, is_half
from jaxformer.typing import Array, Bool, Float


@check_shapes()
def attend(
    query: Float[Array, "B T H K"],
    key: Float[Array, "B S G K"],
    value: Float[Array, "B S G K2"],
    mask: Mask = None,
    *,
    bias: Float[Array, "#B #H #T #S"] | None = None,
    drop: Elementwise | None = None,
    backend: str = "plain",
) -> tuple[Float[Array, "B T H K2"], Float[Array, "B H T S"] | None]:
    """Replace :func:`jaxformer.functional.dot_product_attention`.

    Args:
        query: of each target position.
        key: of each source position.
        value: of each source position.
        mask: True = may attend, or segments, which the kernels of devices need.
        bias: added to the scaled scores.
        drop: dropout of the weights.
        backend: one of :data:`~jaxformer.kernels.backends.BACKENDS`. All but ``plain``
            return no weights.

    Raises:
        InputError: a backend that does not take the inputs, or without its device.
    """
    key, value = (share_heads(x, query.shape[2]) for x in (key, value))
    if backend != "plain":
        how = _choose(backend, query, key, value, mask, bias, drop is not None)
        if how != "plain":
            return _fused(how, query, key, value, mask), None
    if not is_half(query):
        return dot_product_attention(query, key, value, mask, bias=bias, drop=drop)
    if isinstance(mask, SegmentMask):
        mask = mask.dense(query.shape[1])
    scores = einsum("BTHK,BSHK->BHTS", query * query.shape[-1] ** -0.5, key)
    if bias is not None:
        scores = scores + bias.astype(scores.dtype)
    if drop is None:
        weights, mixing = _softmax_to_mix(scores, mask, value.dtype)
    else:
        weights = masked_softmax(scores, mask)
        mixing = drop(weights).astype(value.dtype)
    return einsum("BHTS,BSHK->BTHK", mixing, value).astype(value.dtype), weights


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _softmax_to_mix(
    scores: Float[Array, "*B T S"],
    mask: Bool[Array, "#*B #T #S"] | None,
    dtype: jnp.dtype,
) -> tuple[Float[Array, "*B T S"], Float[Array, "*B T S"]]:
    """Compute the masked softmax, and cast it to ``dtype`` for the matmul with the
    values.

    The backward pass keeps only the second, which the matmul keeps too. Autodiff would
    keep several float32 arrays of that size, and does on a CPU.
    """
    weights = masked_softmax(scores, mask)
    return weights, weights.astype(dtype)


@_softmax_to_mix.defjvp
def _softmax_to_mix_tangent(
    dtype: jnp.dtype,
    primals: tuple[Array, Array | None],
    tangents: tuple[Array, object],
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    (scores, mask), (change, _) = primals, tangents
    weights, derivative = jax.linearize(lambda x: masked_softmax(x, mask), scores)
    # Without the barrier the compiler would keep the scores instead.
    mixing = jax.lax.optimization_barrier(weights.astype(dtype))
    change = jax.lax.platform_dependent(
        derivative,
        mixing,
        change,
        cpu=lambda derivative, _, change: derivative(change),
        default=lambda _, mixing, change: _softmax_change(mixing, change),
    )
    return (weights, mixing), (change, change.astype(dtype))


# Without the checkpoint the backward pass would keep a cast of the weights.
@functools.partial(jax.checkpoint, prevent_cse=False)
def _softmax_change(weights: Array, change: Array) -> Array:
    """Compute w (c - sum(w c)) from weights w and the change c of the scores.

    The backward pass transposes this form: it adds to a value its negative sum, and
    the rest after that. Then the compiler for GPUs makes one kernel, else two.
    """
    weights = weights.astype(change.dtype)
    shares = weights * change
    rest = (1.0 - weights) * shares
    return rest + weights * (shares - shares.sum(axis=-1, keepdims=True))


def _choose(
    backend: str,
    query: Float[Array, "B T H K"],
    key: Float[Array, "B S H K"],
    value: Float[Array, "B S H K2"],
    mask: Mask,
    bias: Float[Array, "#B #H #T #S"] | None,
    dropped: bool,
) -> str:
    """Return ``plain`` or a kernel that takes the inputs."""
    device = jax.devices()[0]
    known = getattr(device, "compute_capability", None)
    attending = backends.Attending(
        platform=backends.PLATFORMS.get(backend, str(device.platform)),
        capability=known if backend == "auto" else backends.AMPERE,
        dtype=query.dtype,
        d_k=query.shape[-1],
        d_v=value.shape[-1],
        length=max(query.shape[1], key.shape[1]),
        dropout=dropped,
        bias=bias is not None,
        window=isinstance(mask, SegmentMask) and mask.window is not None,
    )
    chosen = backends.fit(backend, attending)
    # The kernel of JAX does not say over which axes of a shard_map its result varies.
    checked = chosen == "pallas" and bool(jax.typeof(query).mat.varying)
    if backend == "auto" and (checked or not isinstance(mask, SegmentMask | None)):
        return "plain"
    return chosen


def _fused(
    backend: str,
    query: Float[Array, "B T H K"],
    key: Float[Array, "B S H K"],
    value: Float[Array, "B S H K2"],
    mask: Mask,
) -> Float[Array, "B T H K2"]:
    if mask is None:
        mask = SegmentMask(jnp.ones(key.shape[:2], jnp.int32))
    if not isinstance(mask, SegmentMask):
        raise InputError(
            f"backend={backend} takes a mask of segments, not an array: give"
            " jaxformer.functional.SegmentMask, or set backend=auto"
        )
    return run_kernel(backend, query, key, value, mask)
