"""Positions by distance, all later than the paper: rotary ones, and biases on scores.

They take the positions of the row also where it holds several packed sequences: the
differences within a sequence are the same.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np

from jaxformer.errors import InputError
from jaxformer.functional.layers import wide_dtype
from jaxformer.functional.positions import learned
from jaxformer.functional.shapes import check_shapes
from jaxformer.typing import Array, Float, Int

BUCKETS = 32
"""Rows of the table of :func:`relative_bias`."""

_MAX_DISTANCE = 128


@check_shapes()
def rotary(
    x: Float[Array, "B T H K"],
    positions: Int[Array, "#T"] | Int[Array, "B #T"],
    *,
    base: float = 10_000.0,
) -> Float[Array, "B T H K"]:
    """Rotate pair i of the features of queries or keys by p / base^(2i/K) at position p
    (Su et al. 2021, section 3.2.2). The product of a rotated query and a rotated key
    depends only on the difference of their positions.

    Feature i is paired with i + K/2, as in GPT-NeoX and LLaMA. The paper pairs
    neighbours, which permutes the columns of the query and key kernels.

    Raises:
        InputError: an odd width of heads.
    """
    if x.shape[-1] % 2:
        raise InputError(
            f"rotary positions need heads of an even width, not {x.shape[-1]}"
        )
    half, wide = x.shape[-1] // 2, wide_dtype(x)
    frequencies = base ** (-jnp.arange(half, dtype=wide) / half)
    place = jnp.atleast_2d(positions).astype(wide)[..., None, None]
    angles = place * frequencies[None, None, None]
    sine, cosine = jnp.sin(angles), jnp.cos(angles)
    first, second = jnp.split(x.astype(wide), 2, axis=-1)
    turned = first * cosine - second * sine, second * cosine + first * sine
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def relative_buckets(
    distances: Int[Array, "*B"], *, causal: bool, buckets: int = BUCKETS
) -> Int[Array, "*B"]:
    """Number the bucket of each distance, key minus query: one for each small distance,
    then ranges that grow geometrically up to 128, and one for all beyond (Raffel et al.
    2020, section 2.1). Unless ``causal``, the upper half is for keys after queries.

    Example:
        >>> relative_buckets(jnp.array([-128, -9, -1, 0, 1, 9]), causal=False)
        Array([15,  8,  1,  0, 17, 24], dtype=int32)
    """
    distances = distances.astype(jnp.int32)
    if causal:
        first, away = jnp.zeros_like(distances), jnp.maximum(-distances, 0)
    else:
        buckets //= 2
        first, away = jnp.where(distances > 0, buckets, 0), jnp.abs(distances)
    exact = buckets // 2
    # The first distance of each range: whole numbers, so no device rounds a logarithm.
    growth, ranges = _MAX_DISTANCE / exact, buckets - exact
    starts = [math.ceil(exact * growth ** (i / ranges) - 1e-9) for i in range(ranges)]
    # Counted from the range that begins at `exact`, number 1.
    beyond = exact - 1 + sum((away >= start).astype(jnp.int32) for start in starts)
    return first + jnp.where(away < exact, away, beyond)


@check_shapes()
def relative_bias(
    table: Float[Array, "N H"],
    queries: Int[Array, " T"],
    keys: Int[Array, " S"],
    *,
    causal: bool,
) -> Float[Array, "1 H T S"]:
    """Look up the bias of each head by the bucket of the distance between the positions
    of queries and keys (T5; Raffel et al. 2020, section 2.1).
    """
    distances = keys[None, :] - queries[:, None]
    rows = relative_buckets(distances, causal=causal, buckets=table.shape[0])
    return learned(table, rows).transpose(2, 0, 1)[None]


def alibi_slopes(num_heads: int) -> np.ndarray:
    """Return the slope of each head [H], 2^(-8 h / H), h from 1 (Press et al. 2022,
    section 3). If H is no power of 2: the slopes of the next smaller power, then every
    other one of the next larger (their released code).
    """
    power = 2 ** int(math.log2(num_heads))
    slopes = 2.0 ** (-8.0 * np.arange(1, power + 1) / power)
    between = 2.0 ** (-4.0 * np.arange(1, 2 * power + 1, 2) / power)
    return np.concatenate([slopes, between[: num_heads - power]])


@check_shapes()
def alibi(
    num_heads: int, queries: Int[Array, " T"], keys: Int[Array, " S"]
) -> Float[Array, "1 H T S"]:
    """Return -slope_h |t - s| for the positions t of queries and s of keys (ALiBi;
    Press et al. 2022, section 3, who use it in causal models).
    """
    slopes = jnp.asarray(alibi_slopes(num_heads))[None, :, None, None]
    distances = jnp.abs(keys[None, :] - queries[:, None])[None, None]
    return -slopes * distances.astype(slopes.dtype)
