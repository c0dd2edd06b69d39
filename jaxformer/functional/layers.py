"""Linear maps, norms, feed-forward, embedding and dropout (Vaswani et al. 2017,
sections 3.1, 3.3, 3.4 and 5.4).

Results have the dtype of the input, but logits. Sums, norms, activations and logits are
in the wider of float32 and that dtype. A function that calls :func:`linear`, dropout or
attention takes it as an argument: the default is the equation, and
:mod:`jaxformer.kernels` has faster ones.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp

from jaxformer.errors import InputError
from jaxformer.functional.shapes import check_shapes
from jaxformer.typing import Array, Bool, Float, Int, Key, Parameters

Linear: TypeAlias = Callable[..., Array]
"""A function with the arguments of :func:`linear`."""

Elementwise: TypeAlias = Callable[[Array], Array]
"""An activation, or :func:`dropout` with its rate and key."""


def wide_dtype(*arrays: Array) -> jnp.dtype:
    """Return float32, or float64 where an array is float64."""
    wide = any(x.dtype == jnp.float64 for x in arrays)
    return jnp.dtype(jnp.float64 if wide else jnp.float32)


def widen(
    x: Float[Array, "..."] | Int[Array, "..."] | Bool[Array, "..."],
) -> Float[Array, "..."]:
    """Cast to the wider of float32 and the dtype of x."""
    return x.astype(wide_dtype(x))


def _like(parameter: Array, x: Array) -> Array:
    """Cast a parameter of the last axes to the dtype and the rank of x."""
    leading = tuple(range(x.ndim - parameter.ndim))
    return jnp.expand_dims(jnp.asarray(parameter, x.dtype), leading)


def check_map(
    x: tuple[int, ...], kernel: tuple[int, ...], bias: Array | None, contract: int
) -> None:
    """Compare the axes of a linear map.

    Raises:
        InputError: they do not fit.
    """
    rest = kernel[contract:] if bias is None else bias.shape
    if (x[len(x) - contract :], rest) != (kernel[:contract], kernel[contract:]):
        raise InputError(
            f"linear takes x {['...', *kernel[:contract]]} and a bias"
            f" {list(kernel[contract:])} for a kernel {list(kernel)}, not x {list(x)}"
            f" and a bias {list(rest)}"
        )


@check_shapes()
def linear(
    x: Float[Array, "..."],
    kernel: Float[Array, "..."],
    bias: Float[Array, "..."] | None = None,
    *,
    contract: int = 1,
) -> Float[Array, "..."]:
    """Return x W + b: contract the last axes of x with the first axes of the kernel.

    ``[B, T, D]`` with a kernel ``[D, H, K]`` gives ``[B, T, H, K]``; ``[B, T, H, K]``
    with ``[H, K, D]`` and ``contract=2`` gives ``[B, T, D]``.
    """
    check_map(x.shape, kernel.shape, bias, contract)
    kernel = jnp.asarray(kernel, x.dtype)
    output = jnp.tensordot(x, kernel, contract, preferred_element_type=wide_dtype(x))
    if bias is not None:
        output = output + _like(bias, output)
    return output.astype(x.dtype)


@check_shapes()
def layer_norm(
    x: Float[Array, "*B D"],
    scale: Float[Array, " D"],
    bias: Float[Array, " D"] | None = None,
    *,
    epsilon: float = 1e-6,
) -> Float[Array, "*B D"]:
    """Return (x - mean) / sqrt(variance + epsilon) * scale + bias over the last axis
    (Ba et al. 2016).
    """
    wide = widen(x)
    centred = wide - wide.mean(axis=-1, keepdims=True)
    variance = jnp.square(centred).mean(axis=-1, keepdims=True)
    normal = centred * jax.lax.rsqrt(variance + epsilon) * _like(scale, wide)
    return (normal if bias is None else normal + _like(bias, wide)).astype(x.dtype)


@check_shapes()
def rms_norm(
    x: Float[Array, "*B D"], scale: Float[Array, " D"], *, epsilon: float = 1e-6
) -> Float[Array, "*B D"]:
    """Return x / sqrt(mean(x^2) + epsilon) * scale over the last axis (Zhang and
    Sennrich 2019, equation 4).
    """
    wide = widen(x)
    square = jnp.square(wide).mean(axis=-1, keepdims=True)
    normal = wide * jax.lax.rsqrt(square + epsilon)
    return (normal * _like(scale, wide)).astype(x.dtype)


def check_rate(rate: float) -> None:
    """Refuse a dropout rate outside [0, 1).

    Raises:
        InputError: the rate is outside.
    """
    if not 0.0 <= rate < 1.0:
        raise InputError(f"a dropout rate is at least 0 and below 1, not {rate}")


@check_shapes()
def dropout(
    x: Float[Array, "..."], rate: float, key: Key | None
) -> Float[Array, "..."]:
    """Set each element to 0 with probability ``rate``, and divide the others by 1 -
    rate. Without a key, or at rate 0, return x.

    Raises:
        InputError: the rate is not in [0, 1).
    """
    check_rate(rate)
    if rate == 0.0 or key is None:
        return x
    kept = jax.random.bernoulli(key, 1.0 - rate, x.shape)
    return jnp.where(kept, widen(x) / (1.0 - rate), 0.0).astype(x.dtype)


@check_shapes()
def stochastic_depth(
    x: Float[Array, "B T D"],
    rate: float,
    key: Key | None,
    *,
    dropout: Callable[..., Array] = dropout,
) -> Float[Array, "B T D"]:
    """Drop the output of a sub-layer for whole rows: what remains is its residual
    connection (Huang et al. 2016). Scaled like :func:`dropout`.

    Args:
        x: the output of the sub-layer.
        rate: probability.
        key: random key; None: nothing is dropped.
        dropout: drops elements of an array [B, 1, 1].
    """
    wide = widen(x)
    ones = jnp.ones((x.shape[0], 1, 1), wide.dtype)
    return (wide * dropout(ones, rate, key)).astype(x.dtype)


def _in_float32(function: Elementwise) -> Elementwise:
    return lambda x: function(widen(x)).astype(x.dtype)  # gelu's cube overflows float16


ACTIVATIONS: dict[str, Elementwise] = {
    "relu": jax.nn.relu,
    "gelu": _in_float32(jax.nn.gelu),
    "gelu_exact": _in_float32(functools.partial(jax.nn.gelu, approximate=False)),
    "silu": _in_float32(jax.nn.silu),
}
"""Activations by name; ``gelu`` is the tanh approximation of Hendrycks and Gimpel
2016.
"""

GATED = {
    "reglu": "relu",
    "geglu": "gelu",
    "geglu_exact": "gelu_exact",
    "swiglu": "silu",
}
"""Feed-forward layers with a gate (Shazeer 2020), and the activation of the gate."""


FEED_FORWARD = {
    "inner": {"kernel": "D F", "bias": "F"},
    "outer": {"kernel": "F D", "bias": "D"},
    "gate?": {"kernel": "D F", "bias": "F"},
}
"""The parameters of a feed-forward layer and their axes. Biases may be absent."""


@check_shapes(params=FEED_FORWARD)
def feed_forward(
    params: Parameters,
    x: Float[Array, "B T D"],
    *,
    activation: Elementwise = jax.nn.relu,
    drop: Elementwise | None = None,
    linear: Linear = linear,
) -> Float[Array, "B T D"]:
    """Return max(0, x W_1 + b_1) W_2 + b_2 (equation 2), or with a gate (f(x W_g) * x
    W_1) W_2 (Shazeer 2020).

    Args:
        params: see :data:`FEED_FORWARD`; with a gate where there is one.
        x: the vector of each position.
        activation: f, such as ``ACTIVATIONS["gelu"]``; ReLU in the paper.
        drop: dropout after the activation, such as ``lambda x: dropout(x, 0.1, key)``;
            none in the paper.
        linear: computes x W + b.
    """
    if "gate" in params:
        gate = activation(linear(x, **params["gate"]))
        inner = gate * linear(x, **params["inner"])
    else:
        inner = activation(linear(x, **params["inner"]))
    return linear(inner if drop is None else drop(inner), **params["outer"])


@check_shapes()
def embed(
    table: Float[Array, "V D"], tokens: Int[Array, "B T"], *, scale: bool = True
) -> Float[Array, "B T D"]:
    """Look up the embedding of each token, times the square root of d_model (section
    3.4). A token outside the table gives NaN.
    """
    rows = (
        jnp.asarray(table)
        .at[tokens]
        .get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)
    )
    return rows * rows.shape[-1] ** 0.5 if scale else rows


@check_shapes()
def project_to_vocabulary(
    table: Float[Array, "V D"],
    x: Float[Array, "*B D"],
    bias: Float[Array, " V"] | None = None,
) -> Float[Array, "*B V"]:
    """Return the logit of each token, x E^T without scale (section 3.4), in the wider
    of float32 and the dtype of x.
    """
    table = jnp.asarray(table, x.dtype)
    logits = jnp.einsum("...D,VD->...V", x, table, preferred_element_type=wide_dtype(x))
    return logits if bias is None else logits + _like(bias, logits)
