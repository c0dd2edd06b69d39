"""Scaled dot-product and multi-head attention (Vaswani et al. 2017, section 3.2)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from jaxformer.errors import InputError
from jaxformer.functional.checks import check_floats, check_rate
from jaxformer.functional.kernels import einsum, wide_dtype
from jaxformer.functional.layers import dropout, linear, linear_maps, rms_norm
from jaxformer.functional.masks import SegmentMask
from jaxformer.typing import Array, Bool, Float, Key, Parameters

LOWEST = -1e30
"""The score of what is not allowed. It is finite in float32: a row without any allowed
key gives zeros instead of NaN.
"""

BACKENDS = ("auto", "plain", "cudnn", "pallas")
"""How attention is computed: chosen by machine and shape, by plain matmuls and a
softmax, by cuDNN, or by a Pallas kernel.
"""

Mask: TypeAlias = Bool[Array, "#B #H #T #S"] | SegmentMask | None
"""Which keys each query may attend to: True = may attend, segments, or every one."""

Rotation: TypeAlias = Callable[[Float[Array, "B T H K"]], Float[Array, "B T H K"]]
"""What turns the projected queries and keys of each position, such as
:func:`~jaxformer.functional.positions.rotary` with positions.
"""


class KeysValues(NamedTuple):
    """The projected memory of attention: one key and one value per position and
    head, or per position and group of heads.
    """

    keys: Float[Array, "B S G K"]
    values: Float[Array, "B S G K2"]


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
        scores = jnp.where(mask, scores, LOWEST)
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
    key: Float[Array, "B S G K"],
    value: Float[Array, "B S G K2"],
    mask: Mask = None,
    *,
    bias: Float[Array, "#B #H #T #S"] | None = None,
    dropout_rate: float = 0.0,
    dropout_key: Key | None = None,
    backend: str = "plain",
) -> tuple[Float[Array, "B T H K2"], Float[Array, "B H T S"] | None]:
    """Compute softmax(Q K^T / sqrt(d_k)) V.

    Vaswani et al. 2017, equation 1. Scores and softmax are float32, or float64 for
    float64 inputs.

    Args:
        query: of each target position.
        key: of each source position. With fewer heads than queries each serves H / G
            adjacent heads of queries (Ainslie et al. 2023; G = 1: Shazeer 2019).
        value: of each source position.
        mask: boolean, True = may attend; axes of size 1 broadcast. Or segments, which
            the kernels need.
        bias: added to the scaled scores before the mask, such as that of relative
            positions.
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
        InputError: a mask of numbers or with other than four axes, a bias with other
            than four or not of floats, heads of keys that do not divide those of
            queries, inputs of integers, a dropout rate outside [0, 1), or a kernel with
            dropout, a bias, a window, a mask other than segments, a type, widths or a
            length that it does not take, or without its device.

    Example:
        >>> x = jnp.ones((2, 5, 8, 64))
        >>> output, weights = dot_product_attention(x, x, x)
        >>> output.shape, weights.shape
        ((2, 5, 8, 64), (2, 8, 5, 5))
    """
    check_rate(dropout_rate)
    key, value = (_share(x, query.shape[2]) for x in (key, value))
    if backend != "plain":
        dropped = dropout_rate > 0.0 and dropout_key is not None
        how = _choose(backend, query, key, value, mask, bias, dropped)
        if how != "plain":
            return _fused(how, query, key, value, mask), None
    if isinstance(mask, SegmentMask):
        mask = mask.dense(query.shape[1])
    for name, given in (("mask", mask), ("bias", bias)):
        if given is not None and given.ndim != 4:
            raise InputError(
                f"a {name} has the four axes [B, H, T, S], 1 where nothing varies, not"
                f" the shape {given.shape}"
            )
    if bias is not None and not jnp.issubdtype(bias.dtype, jnp.floating):
        raise InputError(
            f"a bias of {bias.dtype} would be added to the scores as numbers: cast it"
            " to a float dtype, or give a boolean one as the mask"
        )
    for x in (query, key, value):
        check_floats(x)
    scale = query.shape[-1] ** -0.5
    scores = einsum("BTHK,BSHK->BHTS", query * scale, key)
    if bias is not None:
        scores = scores + bias.astype(scores.dtype)
    if dropout_key is None or dropout_rate == 0.0:
        weights, mixing = _softmax_to_mix(scores, mask, value.dtype)
    else:
        weights = masked_softmax(scores, mask)
        mixing = dropout(weights, dropout_rate, dropout_key).astype(value.dtype)
    output = einsum("BHTS,BSHK->BTHK", mixing, value)
    return output.astype(value.dtype), weights


def _share(x: Float[Array, "B S G K"], heads: int) -> Float[Array, "B S H K"]:
    """Repeat the keys or values of each group for its heads of queries."""
    if x.shape[2] == heads:
        return x
    if heads % x.shape[2]:
        raise InputError(
            f"{heads} heads of queries cannot share {x.shape[2]} heads of keys and"
            " values: take a number that divides them"
        )
    return jnp.repeat(x, heads // x.shape[2], axis=2)


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
    if backend not in BACKENDS:
        raise InputError(
            f"the backend of attention is {', '.join(BACKENDS)}, not {backend!r}"
        )
    from jaxformer.functional import backends

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
    if backend == "auto":
        fits = mask is None or isinstance(mask, SegmentMask)
        return backends.choose_backend("auto" if fits else "plain", attending)
    reason = backends.refusal(backend, attending)
    if reason is not None:
        raise InputError(f"backend={backend} {reason}: use plain")
    return backend


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
            " jaxformer.functional.SegmentMask, or use plain"
        )
    from jaxformer.functional import fused_attention as fused

    return fused.run_kernel(backend, query, key, value, mask)


def project_keys_values(
    params: Parameters,
    memory: Float[Array, "B S D"],
    *,
    rotate: Rotation | None = None,
) -> KeysValues:
    """Project a memory to the keys and values of all heads: K W^K and V W^V of
    section 3.2.2.
    """
    key, value = linear_maps(memory, params["key"], params["value"])
    return KeysValues(finish_heads(params, "key", key, rotate), value)


def finish_heads(
    params: Parameters,
    name: str,
    heads: Float[Array, "B T H K"],
    rotate: Rotation | None,
) -> Float[Array, "B T H K"]:
    """Normalize projected queries or keys where ``params`` has a norm for them, then
    rotate them.

    QK-norm: with a scale over the width of a head, as Dehghani et al. 2023, section 2,
    for the reason of Henry et al. 2020: scores stay bounded. Here it is RMSNorm.

    Args:
        params: of multi-head attention.
        name: ``query`` or ``key``.
        heads: projected.
        rotate: by positions; None: not.
    """
    if f"{name}_norm" in params:
        heads = rms_norm(heads, **params[f"{name}_norm"])
    return heads if rotate is None else rotate(heads)


def multi_head_attention(
    params: Parameters,
    x: Float[Array, "B T D"],
    memory: Float[Array, "B S D"],
    mask: Mask = None,
    *,
    bias: Float[Array, "#B #H #T #S"] | None = None,
    rotate: Rotation | None = None,
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
            differ from that of queries and keys. Biases may be absent. Keys and values
            may have fewer heads, ``[D, G, K]``. With ``"query_norm", "key_norm":
            {"scale": [K]}`` queries and keys are normalized.
        x: the positions of the queries.
        memory: the positions of the keys and values.
        mask: boolean, True = may attend, or segments.
        bias: added to the scaled scores.
        rotate: applied to projected queries and keys, for rotary positions.
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
        key, value = linear_maps(memory, params["key"], params["value"])
        query = linear(x, **params["query"])
    heads, weights = dot_product_attention(
        finish_heads(params, "query", query, rotate),
        finish_heads(params, "key", key, rotate),
        value,
        mask,
        bias=bias,
        dropout_rate=dropout_rate,
        dropout_key=dropout_key,
        backend=backend,
    )
    return linear(heads, **params["output"], contract=2), weights
