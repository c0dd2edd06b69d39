"""Dropout whose bits cost a few operations an element, and ReLU whose derivative reads
its result.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp

from jaxformer.functional import layers
from jaxformer.functional.layers import check_rate, widen
from jaxformer.functional.shapes import check_shapes
from jaxformer.kernels.mesh import check_mesh
from jaxformer.typing import Array, Float, Key, UInt32


@check_shapes()
def dropout(
    x: Float[Array, "..."], rate: float, key: Key | None
) -> Float[Array, "..."]:
    """Replace :func:`jaxformer.functional.dropout`, with other random bits."""
    check_rate(rate)
    if rate == 0.0 or key is None:
        return x
    check_mesh(x)
    threshold = min(round(rate * 2**32), 2**32 - 1)
    dropped = random_bits(key, x.shape) < jnp.uint32(threshold)
    return jnp.where(dropped, 0.0, widen(x) / (1.0 - rate)).astype(x.dtype)


stochastic_depth = functools.partial(layers.stochastic_depth, dropout=dropout)
"""Replace :func:`jaxformer.functional.stochastic_depth`."""


def random_bits(key: Key, shape: tuple[int, ...]) -> UInt32[Array, "..."]:
    """Return random uint32 for dropout: element i is mix(mix(i ^ a) ^ b) with the two
    words a and b of the key.

    ``jax.random.bits`` takes a twelfth of a training step on a CPU, because it
    withstands tests that dropout does not need. A hash of a counter (Salmon et al.
    2011) is enough for bits that are even and independent of their neighbours. It does
    not depend on the sharding of the array, so each device computes its own part. The
    bits repeat in arrays of more than 2^32 elements.

    Args:
        key: a random key, typed or of plain words.
        shape: static.
    """
    words = jax.random.key_data(key).astype(jnp.uint32).reshape(-1)
    counter = jnp.zeros(shape, jnp.uint32)
    for axis in range(len(shape)):
        stride = math.prod(shape[axis + 1 :]) % 2**32
        counter += jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * jnp.uint32(
            stride
        )
    return _mix(_mix(counter ^ words[0]) ^ words[-1])


def _mix(x: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """Make each input bit flip every output bit with probability one half (constants
    of Wellons 2018, "lowbias32").
    """
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


@jax.custom_jvp
def relu(x: Array) -> Array:
    """Replace :func:`jax.nn.relu`."""
    return jnp.maximum(x, 0)


@relu.defjvp
def _relu_tangent(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    # From the result: then nothing else uses the input, and a matmul on a GPU writes
    # only the result. The compiler would turn "> 0" into a comparison of the input.
    result = relu(*primals)
    return result, jax.lax.select(result != 0, tangents[0], jnp.zeros_like(result))


ACTIVATIONS = {**layers.ACTIVATIONS, "relu": relu}
"""Replace :data:`jaxformer.functional.layers.ACTIVATIONS`."""
