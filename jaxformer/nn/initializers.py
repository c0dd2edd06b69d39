"""Initial parameters: Glorot-uniform projections, zero biases, normal embeddings.

Each initializer is compiled by itself. So parameters are the same numbers inside and
outside of ``jit``, where the compiler may round a product of factors only once.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp

from jaxformer.typing import Array, Float, Key


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def projection(
    key: Key, shape: tuple[int, ...], contract: int = 1, biased: bool = True
) -> dict[str, Array]:
    """Draw a kernel uniformly from +-sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio
    2010), with a zero bias.

    The fans are those of the whole projection, all heads together.

    Args:
        key: random key.
        shape: of the kernel; its first ``contract`` axes are the input.
        contract: number of input axes.
        biased: whether there is a bias.
    """
    fan_in, fan_out = math.prod(shape[:contract]), math.prod(shape[contract:])
    limit = math.sqrt(6.0 / (fan_in + fan_out))
    kernel = jax.random.uniform(key, shape, jnp.float32, -limit, limit)
    if not biased:
        return {"kernel": kernel}
    return {"kernel": kernel, "bias": jnp.zeros(shape[contract:], jnp.float32)}


@functools.partial(jax.jit, static_argnums=1)
def ones(key: Key, width: int) -> dict[str, Array]:
    """Return a scale of ones [width], by its name, which weight decay excludes."""
    del key
    return {"scale": jnp.ones(width, jnp.float32)}


@functools.partial(jax.jit, static_argnums=1)
def embedding(key: Key, shape: tuple[int, int]) -> Float[Array, "V D"]:
    """Draw a table with standard deviation d_model^-0.5, 1 for scaled embeddings."""
    return jax.random.normal(key, shape, jnp.float32) * shape[1] ** -0.5


def bias(key: Key, width: int) -> dict[str, Array]:
    """Return a bias of zeros [width], by its name, which weight decay excludes."""
    del key
    return {"bias": jnp.zeros(width, jnp.float32)}
