"""The layers between attention: linear maps, layer normalisation, feed-forward, embedding, dropout.

Every function computes in the type of its input and adds up in float32, or in float64 where that is the input's type;
parameters are cast to the input's type.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.core import Tracer

from jaxformer.errors import InputError
from jaxformer.functional.products import rows_times_matrix, rows_times_rows, wide_dtype
from jaxformer.functional.random_bits import random_bits
from jaxformer.functional.weights import Int8Weights, Table, multiply_int8, multiply_int8_rows
from jaxformer.typing import Array, Float, Int, Key, Parameters

LINEAR_OUTPUT = "linear"
"""Under this name policies of rematerialisation know the output of :func:`linear`."""


def linear(
    x: Float[Array, "..."],
    kernel: Float[Array, "..."] | Int8Weights,
    bias: Float[Array, "..."] | None = None,
    *,
    contract: int = 1,
) -> Float[Array, "..."]:
    """Multiply the last ``contract`` axes of ``x`` with the first of ``kernel`` and add ``bias``.

    ``[B, T, D]`` with a kernel ``[D, H, K]`` gives ``[B, T, H, K]``; ``[B, T, H, K]`` with ``[H, K, D]`` and
    ``contract=2`` gives ``[B, T, D]``.

    In bfloat16 and float16 it has no forward-mode derivative (``jax.jvp``, ``jax.jacfwd``), nor has what calls it: its
    gradient has a rule of its own, which keeps every matmul in half precision. Cast the input to float32 for those, or
    take Hessian-vector products in reverse mode, ``jax.grad(lambda x: jnp.vdot(jax.grad(f)(x), v))(x)``.

    Raises:
        InputError: axes that do not fit each other, or an input of integers.
    """
    check_floats(x)
    if isinstance(kernel, Int8Weights):
        output = multiply_int8(x, kernel, contract)
    else:
        lead, outer = x.shape[: x.ndim - contract], kernel.shape[contract:]
        if x.shape[x.ndim - contract :] != kernel.shape[:contract]:
            raise InputError(
                f"an input of shape {x.shape} does not fit parameters of shape {kernel.shape}: its width, "
                f"{_times(x.shape[x.ndim - contract :])}, must be the {_times(kernel.shape[:contract])} that they take"
            )
        inner = math.prod(kernel.shape[:contract])
        rows, matrix = x.reshape(-1, inner), kernel.reshape(inner, -1)
        output = rows_times_matrix(rows, matrix).reshape(*lead, *outer)
    if bias is not None:
        output = output + bias.reshape((1,) * (x.ndim - contract) + bias.shape).astype(output.dtype)
    return checkpoint_name(output.astype(x.dtype), LINEAR_OUTPUT)


def layer_norm(
    x: Float[Array, "*B D"], scale: Float[Array, " D"], bias: Float[Array, " D"], *, epsilon: float = 1e-6
) -> Float[Array, "*B D"]:
    """Normalise the last axis to mean 0 and variance 1, then scale and shift (Ba et al. 2016).

    Computed in float32, or in float64 where the input is.

    Raises:
        InputError: an input of integers.
    """
    check_floats(x)
    ones = (1,) * (x.ndim - 1)
    normal = _normalise(x.astype(wide_dtype(x)), epsilon)
    scale, bias = (parameter.reshape(*ones, -1).astype(normal.dtype) for parameter in (scale, bias))
    return (normal * scale + bias).astype(x.dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _normalise(x: Array, epsilon: float) -> Array:
    return _normal_and_factor(x, epsilon)[0]


@_normalise.defjvp
def _normalise_tangent(epsilon: float, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    # The backward pass is made of the result and a number for each row, and keeps neither x nor x less its mean.
    normal, factor = _normal_and_factor(*primals, epsilon)
    (change,) = tangents
    centred = change - change.mean(axis=-1, keepdims=True)
    return normal, factor * (centred - normal * (normal * centred).mean(axis=-1, keepdims=True))


def _normal_and_factor(x: Array, epsilon: float) -> tuple[Array, Array]:
    centred = x - x.mean(axis=-1, keepdims=True)
    factor = jax.lax.rsqrt(jnp.square(centred).mean(axis=-1, keepdims=True) + epsilon)
    return centred * factor, factor


def dropout(x: Float[Array, "..."], rate: float, key: Key | None) -> Float[Array, "..."]:
    """Set each element to 0 with probability ``rate`` and scale the others by 1 / (1 - rate).

    Without a key, or at rate 0, the input comes back untouched. Half precision is scaled in float32 and rounded once,
    forward and backward.

    Raises:
        InputError: the rate is not in [0, 1).
    """
    if not 0.0 <= rate < 1.0:
        raise InputError(f"a dropout rate must be at least 0 and below 1, not {rate}")
    if rate == 0.0 or key is None:
        return x
    dropped = random_bits(key, x.shape) < jnp.uint32(min(round(rate * 2**32), 2**32 - 1))
    return jnp.where(dropped, jnp.zeros((), x.dtype), (x.astype(wide_dtype(x)) / (1.0 - rate)).astype(x.dtype))


def _gelu(x: Array) -> Array:
    return jax.nn.gelu(x.astype(wide_dtype(x))).astype(x.dtype)  # its cube leaves the range of float16 from 41 on


def _gelu_exact(x: Array) -> Array:
    return jax.nn.gelu(x.astype(wide_dtype(x)), approximate=False).astype(x.dtype)


def _silu(x: Array) -> Array:
    return jax.nn.silu(x.astype(wide_dtype(x))).astype(x.dtype)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "gelu": _gelu,
    "gelu_exact": _gelu_exact,
    "silu": _silu,
}
"""Activations of the feed-forward layer by name.

``gelu`` is the tanh approximation of Hendrycks and Gimpel 2016 and ``gelu_exact`` what it approximates, x times the
normal distribution function of x; ``silu`` is x sigmoid(x), called swish by Ramachandran et al. 2017.
"""


def feed_forward(
    params: Parameters,
    x: Float[Array, "B T D"],
    *,
    activation: str = "relu",
    dropout_rate: float = 0.0,
    dropout_key: Key | None = None,
) -> Float[Array, "B T D"]:
    """Transform each position alone: max(0, x W_1 + b_1) W_2 + b_2 (Vaswani et al. 2017, equation 2).

    In half precision without forward mode, as :func:`linear`.

    Args:
        params: ``{"inner": {"kernel": [D, F], "bias": [F]}, "outer": {"kernel": [F, D], "bias": [D]}}``.
        x: the positions.
        activation: a name of :data:`ACTIVATIONS`; ``relu`` in the paper.
        dropout_rate: after the activation; 0 in the paper.
        dropout_key: random key; without it there is no dropout.

    Raises:
        InputError: an unknown activation.
    """
    if activation not in ACTIVATIONS:
        raise InputError(f"activation must be one of {', '.join(ACTIVATIONS)}, not {activation!r}")
    inner = ACTIVATIONS[activation](linear(x, params["inner"]["kernel"], params["inner"]["bias"]))
    inner = dropout(inner, dropout_rate, dropout_key)
    return linear(inner, params["outer"]["kernel"], params["outer"]["bias"])


def check_floats(x: Float[Array, "..."] | Int[Array, "..."]) -> None:
    """Refuse integers, to which results would silently be rounded.

    Raises:
        InputError: the type is none of floating-point numbers.
    """
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise InputError(f"this computes with floating-point numbers, not {x.dtype}: cast the input, as by astype")


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(str(size) for size in shape)


def check_tokens(tokens: Int[Array, "..."], vocabulary_size: int) -> None:
    """Refuse token ids outside the vocabulary, where their values are known (outside ``jit``).

    Raises:
        InputError: an id is negative or not below ``vocabulary_size``; a gather would silently give NaN or wrap.
    """
    if isinstance(tokens, Tracer) or tokens.size == 0:
        return
    known = np.asarray(tokens)  # jnp would trace the minimum of a constant inside jit
    low, high = int(known.min()), int(known.max())
    if low < 0 or high >= vocabulary_size:
        wrong = low if low < 0 else high
        raise InputError(
            f"token id {wrong} is not in 0 to {vocabulary_size - 1}; "
            "encode with the vocabulary that the model was made for"
        )


def check_right_padding(tokens: Int[Array, "B S"], pad_id: int) -> None:
    """Refuse rows with a token behind padding, where their values are known (outside ``jit``).

    Raises:
        InputError: a row is padded on the left or in the middle; its positions would silently be counted wrong.
    """
    if isinstance(tokens, Tracer) or tokens.size == 0:
        return
    padding = np.asarray(tokens) == pad_id
    wrong = (padding[:, :-1] & ~padding[:, 1:]).any(axis=1)
    if wrong.any():
        raise InputError(
            f"pad sequences on the right: row {int(wrong.argmax())} has a token behind padding (id {pad_id}); "
            "move the padding to the end"
        )


def check_segments(segments: Int[Array, "B S"], tokens: Int[Array, "B2 S2"], *, pad_id: int, max_length: int) -> None:
    """Refuse segments that do not fit the tokens; what depends on values, where these are known (outside ``jit``).

    Raises:
        InputError: the shapes differ; padding is not in segment 0, or a token is; the numbers of a row fall, so that
            two segments could be taken for one; or a segment has more than ``max_length`` tokens.
    """
    if segments.shape != tokens.shape:
        raise InputError(
            f"segments number the tokens: give them the shape of the tokens, {tokens.shape}, not {segments.shape}"
        )
    if isinstance(segments, Tracer) or isinstance(tokens, Tracer) or segments.size == 0:
        return
    known, padding = np.asarray(segments), np.asarray(tokens) == pad_id
    wrong = ((known == 0) != padding).any(axis=1)
    wrong |= ((known[:, 1:] < known[:, :-1]) & ~padding[:, 1:]).any(axis=1) | (known < 0).any(axis=1)
    if wrong.any():
        raise InputError(
            f"number the segments of a row from 1 upwards, and padding (id {pad_id}) as 0: row {int(wrong.argmax())} "
            "is numbered otherwise"
        )
    index = np.arange(known.shape[1])
    begins = np.pad(known[:, 1:] != known[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    position = index - np.maximum.accumulate(np.where(begins, index, 0), axis=1)
    longest = int(np.where(padding, -1, position).max()) + 1
    if longest > max_length:
        raise InputError(
            f"a packed sequence of {longest} tokens is longer than the model's {max_length} positions; shorten it or "
            "train with a larger model.max_length"
        )


def embed(
    table: Float[Array, "V D"] | Table, tokens: Int[Array, "B T"], *, scale: bool = True
) -> Float[Array, "B T D"]:
    """Look up the embedding of each token, multiplied by the square root of d_model (section 3.4).

    Args:
        table: one row a token.
        tokens: their ids. Under ``jit``, where values are unknown, an id outside the table has the embedding NaN and
            no gradient.
        scale: whether to multiply.

    Raises:
        InputError: a token id outside the table, where the values are known.
    """
    weights = table.rows if isinstance(table, Table) else table
    check_tokens(tokens, weights.shape[0])
    rows = weights.at[tokens].get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)
    return rows * weights.shape[1] ** 0.5 if scale else rows


def project_to_vocabulary(
    table: Float[Array, "V D"] | Int8Weights | Table, x: Float[Array, "*B D"], bias: Float[Array, " V"] | None = None
) -> Float[Array, "*B V"]:
    """Return the logit of each token of the vocabulary: x E^T, unscaled, in the paper without bias (section 3.4).

    Logits are float32, or float64 where ``x`` is. In half precision without forward mode, as :func:`linear`.
    """
    rows, outputs = x.reshape(-1, x.shape[-1]), table.outputs if isinstance(table, Table) else table
    if isinstance(outputs, Int8Weights):
        logits = multiply_int8_rows(rows, outputs)
    else:
        logits = (rows_times_matrix if isinstance(table, Table) else rows_times_rows)(rows, outputs)
    logits = logits.reshape(*x.shape[:-1], logits.shape[-1])
    return logits if bias is None else logits + bias.reshape((1,) * (x.ndim - 1) + (-1,)).astype(logits.dtype)
