"""Random bits for dropout: each a hash of its place, at a few operations an element.

The generators of ``jax.random`` are made so that no statistical test tells their bits from chance, and dropout, which
asks for a bit an element and asks no more of it than that it be even and independent of its neighbours, pays for that
with a twelfth of a training step on a CPU. A hash of a counter is enough here, as Salmon et al. 2011 call such
generators; it knows nothing of the array's sharding, so that every device computes its own part.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from jaxformer.typing import Array, Key, UInt32


def random_bits(key: Key, shape: tuple[int, ...]) -> UInt32[Array, "..."]:
    """Give uint32 of a shape, which depend on the key and on each element's place alone.

    The bits of place i are mix(mix(i ^ a) ^ b), where a and b are the key's two words: equal counters under one key
    meet another word under the next. Of arrays of more than 2^32 elements they repeat.

    Args:
        key: a random key, typed or of plain words.
        shape: static.
    """
    words = jax.random.key_data(key).astype(jnp.uint32).reshape(-1)
    counter = jnp.zeros(shape, jnp.uint32)
    for axis in range(len(shape)):
        stride = math.prod(shape[axis + 1 :]) % 2**32
        counter += jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * jnp.uint32(stride)
    return _mix(_mix(counter ^ words[0]) ^ words[-1])


def _mix(x: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """Let each bit of 32 change every other one half of the time; the constants are of Wellons 2018 ("lowbias32")."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)
