"""How parameters begin: Glorot-uniform projections, zero biases, normal embeddings.

What draws is compiled by itself, once for each shape: outside a compiled function
parameters are then the same numbers as within one, where the compiler may round a
product of several factors once.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp

from jaxformer.typing import Array, Float, Key


@functools.partial(jax.jit, static_argnums=(1, 2))
def projection(key: Key, shape: tuple[int, ...], contract: int = 1) -> dict[str, Array]:
    """Draw a kernel uniformly from +-sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio
    2010), and a zero bias.

    The fans count whole projections, all heads together, so that the split into heads
    changes nothing.

    Args:
        key: random key.
        shape: of the kernel; its first ``contract`` axes are the input.
        contract: number of input axes.
    """
    fan_in, fan_out = math.prod(shape[:contract]), math.prod(shape[contract:])
    limit = math.sqrt(6.0 / (fan_in + fan_out))
    kernel = jax.random.uniform(key, shape, jnp.float32, -limit, limit)
    return {"kernel": kernel, "bias": jnp.zeros(shape[contract:], jnp.float32)}


@functools.partial(jax.jit, static_argnums=1)
def embedding(key: Key, shape: tuple[int, int]) -> Float[Array, "V D"]:
    """Draw a table with standard deviation d_model^-0.5, so that scaled embeddings
    begin with deviation 1.
    """
    return jax.random.normal(key, shape, jnp.float32) * shape[1] ** -0.5


def bias(key: Key, width: int) -> dict[str, Array]:
    """Return a bias of zeros [width], in a dict by its name, from which weight decay
    knows it.
    """
    del key
    return {"bias": jnp.zeros(width, jnp.float32)}
