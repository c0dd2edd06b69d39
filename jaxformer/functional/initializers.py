"""Initial parameters: Glorot-uniform projections, zero biases, normal embeddings.

Each initializer is compiled by itself. So parameters are the same numbers inside and
outside of ``jit``, where the compiler may round a product of factors only once.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp

from jaxformer.errors import InputError
from jaxformer.typing import Array, Float, Key, Parameters


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def init_linear(
    key: Key, shape: tuple[int, ...], contract: int = 1, biases: bool = True
) -> dict[str, Array]:
    """Draw a kernel uniformly from +-sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio
    2010), with a zero bias.

    The fans are those of the whole projection, all heads together.

    Args:
        key: random key.
        shape: of the kernel; its first ``contract`` axes are the input.
        contract: number of input axes.
        biases: whether there is a bias.
    """
    fan_in, fan_out = math.prod(shape[:contract]), math.prod(shape[contract:])
    limit = math.sqrt(6.0 / (fan_in + fan_out))
    kernel = jax.random.uniform(key, shape, jnp.float32, -limit, limit)
    if not biases:
        return {"kernel": kernel}
    return {"kernel": kernel, "bias": jnp.zeros(shape[contract:], jnp.float32)}


@functools.partial(jax.jit, static_argnums=1)
def init_embedding(key: Key, shape: tuple[int, int]) -> Float[Array, "V D"]:
    """Draw a table with standard deviation d_model^-0.5, 1 for scaled embeddings."""
    return jax.random.normal(key, shape, jnp.float32) * shape[1] ** -0.5


def init_layer_norm(d_model: int) -> dict[str, Array]:
    """Return a scale of ones and a bias of zeros [D], which change nothing."""
    return {"scale": jnp.ones(d_model), "bias": jnp.zeros(d_model)}


def init_multi_head_attention(
    key: Key,
    d_model: int,
    num_heads: int,
    *,
    num_key_value_heads: int | None = None,
    biases: bool = True,
) -> Parameters:
    """Draw the parameters of :func:`~jaxformer.functional.multi_head_attention`, in
    heads of d_model / num_heads features.

    Args:
        key: random key.
        d_model: width of queries, memory and output.
        num_heads: heads of queries.
        num_key_value_heads: heads of keys and values; num_heads where None.
        biases: whether there are biases.

    Raises:
        InputError: heads that do not divide d_model, or those of keys and values that
            do not divide them.
    """
    groups = num_heads if num_key_value_heads is None else num_key_value_heads
    if d_model % num_heads or groups < 1 or num_heads % groups:
        raise InputError(
            f"{num_heads} heads divide the d_model, and {groups} of keys and values"
            f" divide those: not a d_model of {d_model}"
        )
    query, memory = ((d_model, n, d_model // num_heads) for n in (num_heads, groups))
    keys = jax.random.split(key, 4)
    return {
        "query": init_linear(keys[0], query, 1, biases),
        "key": init_linear(keys[1], memory, 1, biases),
        "value": init_linear(keys[2], memory, 1, biases),
        "output": init_linear(keys[3], (*query[1:], d_model), 2, biases),
    }


def init_feed_forward(
    key: Key, d_model: int, d_ff: int, *, gated: bool = False, biases: bool = True
) -> Parameters:
    """Draw the parameters of :func:`~jaxformer.functional.feed_forward`, with those of
    the gate where it is gated.
    """
    keys = jax.random.split(key, 3)
    params = {
        "inner": init_linear(keys[0], (d_model, d_ff), 1, biases),
        "outer": init_linear(keys[1], (d_ff, d_model), 1, biases),
        "gate": init_linear(keys[2], (d_model, d_ff), 1, biases),
    }
    if not gated:
        del params["gate"]
    return params
