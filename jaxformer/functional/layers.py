"""The layers other than attention: linear maps, layer normalization, feed-forward,
embedding, dropout.

Every function computes in the dtype of its input and accumulates in float32 (float64
for float64 inputs). Parameters are cast to the dtype of the input.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from jaxformer.errors import InputError
from jaxformer.functional.checks import (
    check_axes,
    check_floats,
    check_mesh,
    check_rate,
    check_tokens,
)
from jaxformer.functional.int8 import (
    Int8Weights,
    TwoWayTable,
    multiply_int8,
    multiply_int8_rows,
)
from jaxformer.functional.kernels import (
    add_bias,
    is_half,
    match_varying,
    matmul,
    matmul_transposed,
    random_bits,
    standardize,
    tensordot,
    wide_dtype,
)
from jaxformer.typing import Array, Float, Int, Key, Parameters

LINEAR_OUTPUT = "linear"
"""The name of the output of :func:`linear` for rematerialization policies."""


def linear(
    x: Float[Array, "..."],
    kernel: Float[Array, "..."] | Int8Weights,
    bias: Float[Array, "..."] | None = None,
    *,
    contract: int = 1,
) -> Float[Array, "..."]:
    """Contract the last ``contract`` axes of ``x`` with the first axes of ``kernel``
    and add ``bias``: x W + b.

    ``[B, T, D]`` with a kernel ``[D, H, K]`` gives ``[B, T, H, K]``; ``[B, T, H, K]``
    with ``[H, K, D]`` and ``contract=2`` gives ``[B, T, D]``.

    In bfloat16 and float16 there is no forward-mode derivative (``jax.jvp``,
    ``jax.jacfwd``): a custom gradient keeps every matmul in half precision. Cast the
    input to float32 for forward mode, or compute Hessian-vector products in reverse
    mode, ``jax.grad(lambda x: jnp.vdot(jax.grad(f)(x), v))(x)``. On GPUs the bias is
    rounded to half precision before it is added.

    Raises:
        InputError: axes that do not match, or an input of integers.
    """
    check_floats(x, kernel)
    check_axes(
        x.shape,
        kernel.values.shape if isinstance(kernel, Int8Weights) else kernel.shape,
        contract,
    )
    if isinstance(kernel, Int8Weights):
        output = add_bias(multiply_int8(x, kernel, contract), bias).astype(x.dtype)
    elif is_half(x):
        from jaxformer.functional.half import half_affine

        (output,) = half_affine(x, (kernel,), (bias,), contract)
    else:
        output = add_bias(tensordot(x, kernel, contract), bias)
    return checkpoint_name(output, LINEAR_OUTPUT)


def linear_maps(
    x: Float[Array, "*B D"], *maps: Parameters
) -> tuple[Float[Array, "..."], ...]:
    """Apply several linear maps ``{"kernel": [D, ...], "bias": [...]}`` to one input.

    In half precision on GPUs and TPUs, the gradient of ``x`` from kernels of one shape
    is one matmul.

    Raises:
        InputError: axes that do not match, or an input of integers.
    """
    kernels = [each["kernel"] for each in maps]
    check_floats(x, kernels)
    if any(isinstance(kernel, Int8Weights) for kernel in kernels) or not (
        is_half(x) and len({kernel.shape for kernel in kernels}) == 1
    ):
        return tuple(linear(x, **each) for each in maps)
    from jaxformer.functional.half import half_affine

    check_axes(x.shape, kernels[0].shape, 1)
    outputs = half_affine(x, kernels, [each.get("bias") for each in maps], 1)
    return tuple(checkpoint_name(output, LINEAR_OUTPUT) for output in outputs)


def layer_norm(
    x: Float[Array, "*B D"],
    scale: Float[Array, " D"],
    bias: Float[Array, " D"] | None = None,
    *,
    epsilon: float = 1e-6,
) -> Float[Array, "*B D"]:
    """Normalize the last axis, scale and shift: (x - mean) / sqrt(variance + epsilon) *
    scale + bias (Ba et al. 2016).

    Computed in float32, or in float64 for float64 inputs. No forward mode in half
    precision, see :func:`linear`.

    Raises:
        InputError: an input of integers.
    """
    check_floats(x)
    if bias is None:
        bias = jnp.zeros_like(scale)
    if is_half(x):
        from jaxformer.functional.half import half_norm

        return half_norm(_norm, epsilon, *match_varying((x, scale, bias)))
    return _norm(epsilon, x, scale, bias)


def _norm(epsilon: float, x: Array, scale: Array, bias: Array) -> Array:
    normal = standardize(x.astype(wide_dtype(x)), epsilon)
    ones = (1,) * (x.ndim - 1)
    scale, bias = (
        parameter.reshape(*ones, -1).astype(normal.dtype) for parameter in (scale, bias)
    )
    return (normal * scale + bias).astype(x.dtype)


def rms_norm(
    x: Float[Array, "*B D"], scale: Float[Array, " D"], *, epsilon: float = 1e-6
) -> Float[Array, "*B D"]:
    """Divide the last axis by its root mean square, and scale: x / sqrt(mean(x^2) +
    epsilon) * scale (Zhang and Sennrich 2019, equation 4).

    Unlike :func:`layer_norm` it subtracts no mean and adds no bias. Computed in
    float32, or in float64 for float64 inputs, and rounded once.

    Raises:
        InputError: an input of integers.
    """
    check_floats(x)
    wide = x.astype(wide_dtype(x))
    square = jnp.square(wide).mean(axis=-1, keepdims=True)
    scale = scale.reshape((1,) * (x.ndim - 1) + (-1,)).astype(wide.dtype)
    return (wide * jax.lax.rsqrt(square + epsilon) * scale).astype(x.dtype)


def dropout(
    x: Float[Array, "..."], rate: float, key: Key | None
) -> Float[Array, "..."]:
    """Set each element to 0 with probability ``rate`` and scale the others by 1 / (1 -
    rate).

    Without a key, or at rate 0, return the input unchanged. Half precision is scaled in
    float32 and rounded once, forward and backward.

    Raises:
        InputError: the rate is not in [0, 1), or an input of integers.
    """
    check_rate(rate)
    if rate == 0.0 or key is None:
        return x
    check_floats(x)
    dropped = random_bits(key, x.shape) < jnp.uint32(
        min(round(rate * 2**32), 2**32 - 1)
    )
    return jnp.where(
        dropped,
        jnp.zeros((), x.dtype),
        (x.astype(wide_dtype(x)) / (1.0 - rate)).astype(x.dtype),
    )


def stochastic_depth(
    x: Float[Array, "B T D"], rate: float, key: Key | None
) -> Float[Array, "B T D"]:
    """Set the whole output of a sub-layer to 0 with probability ``rate``, for each row
    by itself, and scale it by 1 / (1 - rate) otherwise (Huang et al. 2016).

    What remains of the layer is its residual connection. They scale when testing; this
    scales when training, as :func:`dropout` does, and takes one rate for all layers.

    Raises:
        InputError: the rate is not in [0, 1).
    """
    if rate == 0.0 or key is None:
        return dropout(x, rate, key)
    kept = dropout(jnp.ones((x.shape[0], 1, 1), wide_dtype(x)), rate, key)
    return (x.astype(kept.dtype) * kept).astype(x.dtype)


@jax.custom_jvp
def _relu(x: Array) -> Array:
    return jnp.maximum(x, 0)


@_relu.defjvp
def _relu_tangent(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    # From the result: then nothing else uses the input, and a matmul on a GPU writes
    # only the result. The compiler would turn "> 0" into a comparison of the input.
    result = _relu(*primals)
    return result, jax.lax.select(result != 0, tangents[0], jnp.zeros_like(result))


def _wide(activation: Callable[[Array], Array]) -> Callable[[Array], Array]:
    # The cube in GELU overflows float16 from 41 on.
    return lambda x: activation(x.astype(wide_dtype(x))).astype(x.dtype)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": _relu,
    "gelu": _wide(jax.nn.gelu),
    "gelu_exact": _wide(functools.partial(jax.nn.gelu, approximate=False)),
    "silu": _wide(jax.nn.silu),
}
"""Activations of the feed-forward layer by name.

``gelu`` is the tanh approximation of Hendrycks and Gimpel 2016. ``gelu_exact`` is the
function it approximates: x times the normal distribution function of x. ``silu`` is x
sigmoid(x), called swish by Ramachandran et al. 2017.
"""


GATED = {
    "reglu": "relu",
    "geglu": "gelu",
    "geglu_exact": "gelu_exact",
    "swiglu": "silu",
}
"""Gated feed-forward layers (Shazeer 2020, equation 6), and the activation of the gate
of each.
"""


def feed_forward(
    params: Parameters,
    x: Float[Array, "B T D"],
    *,
    activation: str = "relu",
    dropout_rate: float = 0.0,
    dropout_key: Key | None = None,
) -> Float[Array, "B T D"]:
    """Transform each position independently: max(0, x W_1 + b_1) W_2 + b_2 (Vaswani et
    al. 2017, equation 2), or with a gate, (f(x W_g) * (x W_1)) W_2 (Shazeer 2020).

    No forward mode in half precision, see :func:`linear`.

    Args:
        params: ``{"inner": {"kernel": [D, F], "bias": [F]}, "outer": {"kernel": [F, D],
            "bias": [D]}}``, and ``gate`` like ``inner`` where there is one. Biases may
            be absent.
        x: the positions.
        activation: a name of :data:`ACTIVATIONS`, ``relu`` in the paper, or of
            :data:`GATED`.
        dropout_rate: after the activation; 0 in the paper.
        dropout_key: random key; without it there is no dropout.

    Raises:
        InputError: an unknown activation.
    """
    if activation in GATED:
        gate, inner = linear_maps(x, params["gate"], params["inner"])
        inner = ACTIVATIONS[GATED[activation]](gate) * inner
    elif activation in ACTIVATIONS:
        inner = ACTIVATIONS[activation](linear(x, **params["inner"]))
    else:
        raise InputError(
            f"activation must be one of {', '.join((*ACTIVATIONS, *GATED))}, not"
            f" {activation!r}"
        )
    inner = dropout(inner, dropout_rate, dropout_key)
    return linear(inner, **params["outer"])


def embed(
    table: Float[Array, "V D"] | TwoWayTable,
    tokens: Int[Array, "B T"],
    *,
    scale: bool = True,
) -> Float[Array, "B T D"]:
    """Look up the embedding of each token, multiplied by the square root of d_model
    (section 3.4).

    Args:
        table: one row a token.
        tokens: their ids. Under ``jit``, where values are unknown, an id outside the
            table gives NaN and has no gradient.
        scale: whether to multiply.

    Raises:
        InputError: a token id outside the table, if the values are known.
    """
    check_mesh((table, tokens))
    check_tokens(tokens, jax.tree.leaves(table)[0].shape[0])
    if isinstance(table, TwoWayTable):
        rows = table.look_up(tokens)
    else:
        rows = table.at[tokens].get(
            mode="fill", fill_value=jnp.nan, wrap_negative_indices=False
        )
    return rows * rows.shape[-1] ** 0.5 if scale else rows


def project_to_vocabulary(
    table: Float[Array, "V D"] | Int8Weights | TwoWayTable,
    x: Float[Array, "*B D"],
    bias: Float[Array, " V"] | None = None,
) -> Float[Array, "*B V"]:
    """Compute the logit of each token of the vocabulary: x E^T, unscaled, in the paper
    without bias (section 3.4).

    Logits are float32, or float64 for float64 inputs. No forward mode in half
    precision, see :func:`linear`.
    """
    rows, weights, multiply = x.reshape(-1, x.shape[-1]), table, matmul_transposed
    if isinstance(weights, TwoWayTable):
        if weights.outputs is None:
            weights = weights.rows
        else:
            weights, multiply = weights.outputs, matmul
    if isinstance(weights, Int8Weights):
        logits = multiply_int8_rows(rows, weights)
    else:
        logits = multiply(rows, weights)
    return add_bias(logits.reshape(*x.shape[:-1], logits.shape[-1]), bias)
