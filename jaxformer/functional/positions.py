"""Sinusoidal and learned position encodings (Vaswani et al. 2017, section 3.5), and
positions by distance: rotary ones, and biases on scores.

Of the latter only the difference of two positions counts. So rows of several packed
sequences need no positions of their own: those of the row have the same differences in
each sequence, and no attention crosses sequences.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.errors import InputError
from jaxformer.functional.kernels import wide_dtype
from jaxformer.typing import Array, Float, Int


def sinusoidal(
    positions: Int[Array, "..."] | Float[Array, "..."],
    d_model: int,
    *,
    layout: str = "interleaved",
    base: float = 10_000.0,
) -> Float[Array, "... D"]:
    """Encode positions as sines and cosines of geometrically spaced wavelengths:
    float32, or float64 of float64 ones.

    ``interleaved`` is the paper's: PE(p, 2i) = sin(p / base^(2i/d)), PE(p, 2i+1) =
    cos(p / base^(2i/d)). ``halves`` is that of tensor2tensor: all sines, then all
    cosines, of p / base^(i / (d/2 - 1)). ``concatenated`` has the numbers of the paper,
    all sines before all cosines: that of Marian's models at Hugging Face.

    Args:
        positions: counted from 0; any shape. For a result in float64 cast them to that.
        d_model: width; must be even.
        layout: ``interleaved``, ``halves`` or ``concatenated``.
        base: 10,000 in the paper.

    Raises:
        InputError: an odd width, or an unknown layout.
    """
    if d_model % 2:
        raise InputError(
            f"sinusoidal positions need an even d_model, not {d_model}; try"
            f" {d_model + 1}"
        )
    half = d_model // 2
    place = positions.astype(wide_dtype(positions))[..., None]
    index = jnp.arange(half, dtype=place.dtype)
    ones = (1,) * positions.ndim
    if layout == "interleaved":
        angles = place * (base ** (-index / half)).reshape(*ones, -1)
        waves = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)
        return waves.reshape(*positions.shape, d_model)
    if layout in ("halves", "concatenated"):
        steps = max(half - 1, 1) if layout == "halves" else half
        angles = place * (base ** (-index / steps)).reshape(*ones, -1)
        return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
    raise InputError(
        "the layout of sinusoidal positions is interleaved, halves or concatenated,"
        f" not {layout!r}"
    )


def segment_positions(segments: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """Count positions of packed rows from 0 in each segment.

    For the segments ``[1, 1, 1, 2, 2, 0, 0]`` they are ``[0, 1, 2, 0, 1, 0, 0]``.
    Padding, segment 0, has position 0: counted, long padding would leave a learned
    table.
    """
    index = jnp.broadcast_to(
        jnp.arange(segments.shape[1], dtype=jnp.int32)[None], segments.shape
    )
    begins = jnp.pad(
        segments[:, 1:] != segments[:, :-1], ((0, 0), (1, 0)), constant_values=True
    )
    positions = index - jax.lax.cummax(jnp.where(begins, index, 0), axis=1)
    return jnp.where(segments == 0, 0, positions)


def learned(
    table: Float[Array, "L D"], positions: Int[Array, "..."]
) -> Float[Array, "... D"]:
    """Look up positions in a learned table; positions outside it give NaN, never the
    last row.
    """
    return table.at[positions].get(
        mode="fill", fill_value=jnp.nan, wrap_negative_indices=False
    )


BUCKETS = 32
"""Rows of the table of :func:`relative_bias`."""

_MAX_DISTANCE = 128


def rotary(
    x: Float[Array, "B T H K"],
    positions: Int[Array, "#T"] | Int[Array, "B #T"],
    *,
    base: float = 10_000.0,
) -> Float[Array, "B T H K"]:
    """Rotate pairs of features by angles that grow with the position (Su et al. 2021,
    section 3.2.2).

    Pair i turns by p / base^(2i/K) at position p. The product of a rotated query and a
    rotated key depends on the difference of their positions only. Feature i is paired
    with i + K/2, as in GPT-NeoX and LLaMA; the paper pairs neighbours, which differs by
    a permutation of the columns of the query and key kernels.

    Args:
        x: projected queries or keys.
        positions: of each row, or the same for all.
        base: 10,000 in the paper.

    Returns:
        The rotated heads in the dtype of ``x``. Angles and products are float32, or
        float64 for float64 inputs.

    Raises:
        InputError: an odd width of heads.
    """
    if x.shape[-1] % 2:
        raise InputError(
            f"rotary positions need heads of an even width, not {x.shape[-1]}"
        )
    half, wide = x.shape[-1] // 2, wide_dtype(x)
    frequencies = base ** (-jnp.arange(half, dtype=wide) / half)
    place = positions if positions.ndim == 2 else positions[None]
    angles = place.astype(wide)[..., None, None] * frequencies[None, None, None]
    sine, cosine = jnp.sin(angles), jnp.cos(angles)
    first, second = jnp.split(x.astype(wide), 2, axis=-1)
    turned = first * cosine - second * sine, second * cosine + first * sine
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def relative_buckets(
    distances: Int[Array, "*B"], *, causal: bool, buckets: int = BUCKETS
) -> Int[Array, "*B"]:
    """Number the bucket of each distance: one for each small distance, then ranges that
    grow geometrically up to 128, and one for all beyond (Raffel et al. 2020, section
    2.1).

    Args:
        distances: position of the key minus that of the query.
        causal: whether keys are never after queries; otherwise the upper half of the
            buckets is for keys after them.
        buckets: how many there are.

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


def relative_bias(
    table: Float[Array, "N H"],
    queries: Int[Array, " T"],
    keys: Int[Array, " S"],
    *,
    causal: bool,
) -> Float[Array, "1 H T S"]:
    """Look up the bias of each head by the bucket of the distance between query and key
    (T5; Raffel et al. 2020, section 2.1).

    Args:
        table: one row a bucket, see :func:`relative_buckets`.
        queries: their positions.
        keys: their positions.
        causal: whether keys are never after queries.
    """
    distances = keys[None, :] - queries[:, None]
    rows = relative_buckets(distances, causal=causal, buckets=table.shape[0])
    return learned(table, rows).transpose(2, 0, 1)[None]


def alibi_slopes(num_heads: int) -> np.ndarray:
    """Return the slope of each head [H]: 2^(-8 h / H) for head h of H, counted from 1
    (Press et al. 2022, section 3).

    For a number of heads that is no power of 2: the slopes of the next smaller power,
    and then every other one of the next larger (their released code).
    """
    power = 2 ** int(math.log2(num_heads))
    slopes = 2.0 ** (-8.0 * np.arange(1, power + 1) / power)
    between = 2.0 ** (-4.0 * np.arange(1, 2 * power + 1, 2) / power)
    return np.concatenate([slopes, between[: num_heads - power]])


def alibi(
    num_heads: int, queries: Int[Array, " T"], keys: Int[Array, " S"]
) -> Float[Array, "1 H T S"]:
    """Compute a bias that falls with the distance between query and key: -slope_h |t -
    s| (ALiBi; Press et al. 2022, section 3, who use it in causal models).

    Args:
        num_heads: H.
        queries: their positions.
        keys: their positions.
    """
    slopes = jnp.asarray(alibi_slopes(num_heads))[None, :, None, None]
    distances = jnp.abs(keys[None, :] - queries[:, None])[None, None]
    return -slopes * distances.astype(slopes.dtype)
