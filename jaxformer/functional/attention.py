"""Scaled dot-product and multi-head attention (Vaswani et al. 2017, section 3.2)."""

from __future__ import annotations

import functools
import re
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from jaxformer.errors import InputError
from jaxformer.functional.checks import check_floats, check_rate
from jaxformer.functional.kernels import einsum, wide_dtype
from jaxformer.functional.layers import dropout, linear, linear_maps
from jaxformer.functional.masks import SegmentMask
from jaxformer.typing import Array, Bool, Float, Key, Parameters

# Finite in float32: a row without any allowed key gives zeros instead of NaN.
_LOWEST = -1e30

BACKENDS = ("auto", "plain", "cudnn", "pallas")
"""How attention is computed: chosen by machine and shape, by plain matmuls and a
softmax, by cuDNN, or by a Pallas kernel.
"""

_PLATFORMS = {"cudnn": "gpu", "pallas": "tpu"}

# NVIDIA's documentation of cuDNN: attention needs Ampere (A100) or newer.
_AMPERE = "8.0"
_CUDNN_CAPABILITY = re.compile(r"([89]|[1-9]\d)\.\d+")

LONGEST = 1024
"""The most queries and keys of the Pallas kernel, which holds a whole row of scores in
the fast memory of a TPU.
"""


Mask: TypeAlias = Bool[Array, "#B #H #T #S"] | SegmentMask | None
"""Which keys each query may attend to: True = may attend, segments, or every one."""


class Attending(NamedTuple):
    """What the choice of a backend depends on.

    Attributes:
        platform: ``cpu``, ``gpu`` or ``tpu``.
        capability: compute capability of a GPU, such as ``8.0``; None: it has none.
        dtype: of queries, keys and values.
        d_k, d_v: width of a head's queries and keys, and of its values.
        length: the longer of queries and keys.
        dropout: whether attention weights are dropped.
    """

    platform: str
    capability: str | None
    dtype: jnp.dtype
    d_k: int
    d_v: int
    length: int
    dropout: bool


def choose_backend(backend: str, attending: Attending) -> str:
    """Return ``plain``, ``cudnn`` or ``pallas``.

    ``auto`` is the kernel of the device where it takes the type, the widths and the
    length, and ``plain`` elsewhere. cuDNN needs compute capability 8.0 or higher.

    Raises:
        InputError: an unknown backend, or one that does not fit.
    """
    if backend not in BACKENDS:
        raise InputError(
            f"the attention backend is one of {', '.join(BACKENDS)}, not {backend!r}"
        )
    if backend == "auto":
        fitting = (own for own in _PLATFORMS if _refusal(own, attending) is None)
        return next(fitting, "plain")
    refusal = None if backend == "plain" else _refusal(backend, attending)
    if refusal is not None:
        raise InputError(
            f"model.attention_backend={backend} {refusal}: set"
            " model.attention_backend=auto"
        )
    return backend


def _refusal(backend: str, attending: Attending) -> str | None:
    platform, capability, dtype, d_k, d_v, length, dropout = attending
    needed = _PLATFORMS[backend]
    if platform != needed:
        return f"is for a {needed.upper()}, and this is a {platform.upper()}"
    if backend == "cudnn" and not _CUDNN_CAPABILITY.fullmatch(capability or ""):
        return (
            f"needs a GPU of compute capability {_AMPERE} or higher, and this has"
            f" {capability or 'none'}"
        )
    if dropout:
        return "has no dropout of attention weights"
    if backend == "pallas":
        if dtype not in ("bfloat16", "float32"):
            return f"computes in bfloat16 or float32, not in {dtype}"
        if length > LONGEST:
            return f"takes at most {LONGEST} positions, not {length}"
        return None
    if dtype not in ("bfloat16", "float16"):
        return f"computes in bfloat16 or float16, not in {dtype}"
    if d_k != d_v or d_k > 128 or d_k % 8:
        return (
            "takes heads with queries and values of one width, a multiple of 8 up to"
            f" 128, not d_k={d_k} and d_v={d_v}"
        )
    return None


class KeysValues(NamedTuple):
    """The projected memory of attention: one key and one value per position and
    head.
    """

    keys: Float[Array, "B S H K"]
    values: Float[Array, "B S H K2"]


def masked_softmax(
    scores: Float[Array, "*B T S"], mask: Bool[Array, "#*B #T #S"] | None = None
) -> Float[Array, "*B T S"]:
    """Compute the softmax over the last axis, in float32 (float64 for float64 inputs).

    Masked entries are exactly 0. A row in which every entry is masked is all 0, where a
    plain softmax would give the mean. It contributes nothing to the output and to the
    gradients.

    Args:
        scores: of any float type.
        mask: True = may attend.

    Raises:
        InputError: a mask of numbers.
    """
    if mask is not None and mask.dtype != bool:
        raise InputError(
            f"a mask is boolean, True = may attend, not {mask.dtype}; convert an"
            " additive mask by `mask == 0`"
        )
    scores = scores.astype(wide_dtype(scores))
    if mask is not None:
        scores = jnp.where(mask, scores, _LOWEST)
    exponentials = jnp.exp(
        scores - jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True))
    )
    if mask is None:
        return exponentials / exponentials.sum(axis=-1, keepdims=True)
    exponentials = jnp.where(mask, exponentials, 0.0)
    total = exponentials.sum(axis=-1, keepdims=True)
    return exponentials / jnp.where(total == 0.0, 1.0, total)


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


def dot_product_attention(
    query: Float[Array, "B T H K"],
    key: Float[Array, "B S H K"],
    value: Float[Array, "B S H K2"],
    mask: Mask = None,
    *,
    dropout_rate: float = 0.0,
    dropout_key: Key | None = None,
    backend: str = "plain",
) -> tuple[Float[Array, "B T H K2"], Float[Array, "B H T S"] | None]:
    """Compute softmax(Q K^T / sqrt(d_k)) V.

    Vaswani et al. 2017, equation 1. Scores and softmax are float32, or float64 for
    float64 inputs.

    Args:
        query: of each target position.
        key: of each source position.
        value: of each source position.
        mask: boolean, True = may attend; axes of size 1 broadcast. Or segments, which
            the kernels need.
        dropout_rate: of the weights; 0 in the paper.
        dropout_key: random key; without it there is no dropout.
        backend: ``plain``, or a kernel: ``cudnn`` on GPUs in half precision, ``pallas``
            on TPUs. ``auto``: the kernel of JAX's first device where it takes the
            inputs, with segments or no mask, else ``plain``.

    Returns:
        The output in the dtype of ``value``, and the weights in the dtype of the
        scores, before dropout. ``jit`` prunes weights that are not used, and kernels
        return None. Rows of the mask without any True give zeros in both.

    Raises:
        InputError: a mask of numbers or with other than four axes, inputs of integers,
            a dropout rate outside [0, 1), or a kernel with dropout, a mask other than
            segments, a type, widths or a length that it does not take, or without its
            device.

    Example:
        >>> x = jnp.ones((2, 5, 8, 64))
        >>> output, weights = dot_product_attention(x, x, x)
        >>> output.shape, weights.shape
        ((2, 5, 8, 64), (2, 8, 5, 5))
    """
    check_rate(dropout_rate)
    if backend != "plain":
        device = jax.devices()[0]
        known = getattr(device, "compute_capability", None)
        attending = Attending(
            platform=_PLATFORMS.get(backend, str(device.platform)),
            capability=known if backend == "auto" else _AMPERE,
            dtype=query.dtype,
            d_k=query.shape[-1],
            d_v=value.shape[-1],
            length=max(query.shape[1], key.shape[1]),
            dropout=dropout_rate > 0.0 and dropout_key is not None,
        )
        if backend == "auto":
            fits = mask is None or isinstance(mask, SegmentMask)
            backend = choose_backend("auto" if fits else "plain", attending)
        if backend != "plain":
            return _fused(backend, attending, query, key, value, mask), None
    if isinstance(mask, SegmentMask):
        mask = mask.dense(query.shape[1])
    if mask is not None and mask.ndim != 4:
        raise InputError(
            "a mask has the four axes [B, H, T, S], 1 where nothing varies, not the"
            f" shape {mask.shape}"
        )
    for x in (query, key, value):
        check_floats(x)
    scale = query.shape[-1] ** -0.5
    scores = einsum("BTHK,BSHK->BHTS", query * scale, key)
    if dropout_key is None or dropout_rate == 0.0:
        weights, mixing = _softmax_to_mix(scores, mask, value.dtype)
    else:
        weights = masked_softmax(scores, mask)
        mixing = dropout(weights, dropout_rate, dropout_key).astype(value.dtype)
    output = einsum("BHTS,BSHK->BTHK", mixing, value)
    return output.astype(value.dtype), weights


def _fused(
    backend: str,
    attending: Attending,
    query: Float[Array, "B T H K"],
    key: Float[Array, "B S H K"],
    value: Float[Array, "B S H K2"],
    mask: Mask,
) -> Float[Array, "B T H K2"]:
    if backend not in _PLATFORMS:
        raise InputError(
            f"the backend of attention is {', '.join(BACKENDS)}, not {backend!r}"
        )
    refusal = _refusal(backend, attending)
    if refusal is not None:
        raise InputError(f"backend={backend} {refusal}: use plain")
    if mask is None:
        mask = SegmentMask(jnp.ones(key.shape[:2], jnp.int32))
    if not isinstance(mask, SegmentMask):
        raise InputError(
            f"backend={backend} takes a mask of segments, not an array: give"
            " jaxformer.functional.SegmentMask, or use plain"
        )
    from jaxformer.functional import fused_attention as fused

    return fused.run_kernel(backend, query, key, value, mask)


def project_keys_values(
    params: Parameters, memory: Float[Array, "B S D"]
) -> KeysValues:
    """Project a memory to the keys and values of all heads: K W^K and V W^V of
    section 3.2.2.
    """
    return KeysValues(*linear_maps(memory, params["key"], params["value"]))


def attend(
    params: Parameters,
    x: Float[Array, "B T D"],
    memory: KeysValues,
    mask: Mask = None,
    *,
    dropout_rate: float = 0.0,
    dropout_key: Key | None = None,
    backend: str = "plain",
) -> tuple[Float[Array, "B T D"], Float[Array, "B H T S"] | None]:
    """Attend to keys and values that are already projected."""
    query = linear(x, **params["query"])
    heads, weights = dot_product_attention(
        query,
        *memory,
        mask,
        dropout_rate=dropout_rate,
        dropout_key=dropout_key,
        backend=backend,
    )
    return linear(heads, **params["output"], contract=2), weights


def multi_head_attention(
    params: Parameters,
    x: Float[Array, "B T D"],
    memory: Float[Array, "B S D"],
    mask: Mask = None,
    *,
    dropout_rate: float = 0.0,
    dropout_key: Key | None = None,
    backend: str = "plain",
) -> tuple[Float[Array, "B T D"], Float[Array, "B H T S"] | None]:
    """Attend with several heads in parallel: Concat(head_1, ..., head_h) W^O.

    Vaswani et al. 2017, section 3.2.2, whose projections have no biases.
    Self-attention where ``memory`` is ``x``. The projections have no forward mode in
    half precision, see :func:`~jaxformer.functional.layers.linear`.

    Args:
        params: ``{"query", "key", "value": {"kernel": [D, H, K], "bias": [H, K]},
            "output": {"kernel": [H, K, D], "bias": [D]}}``; the width of values may
            differ from that of queries and keys.
        x: the positions of the queries.
        memory: the positions of the keys and values.
        mask: boolean, True = may attend, or segments.
        dropout_rate: of the attention weights; 0 in the paper.
        dropout_key: random key; without it there is no dropout.
        backend: see :func:`dot_product_attention`.

    Returns:
        The output, and the weights of every head; None from a kernel.
    """
    if memory is x:
        names = ("key", "value", "query")
        key, value, query = linear_maps(x, *(params[name] for name in names))
    else:
        key, value = project_keys_values(params, memory)
        query = linear(x, **params["query"])
    heads, weights = dot_product_attention(
        query,
        key,
        value,
        mask,
        dropout_rate=dropout_rate,
        dropout_key=dropout_key,
        backend=backend,
    )
    return linear(heads, **params["output"], contract=2), weights
