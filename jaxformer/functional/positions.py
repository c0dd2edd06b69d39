"""Sinusoidal and learned position encodings (Vaswani et al. 2017, section 3.5)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

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
