"""What a search keeps of a model: the encoder's output, and a cache of the target."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from jaxformer.errors import InputError
from jaxformer.functional.cache import (
    NO_ANCESTOR,
    KeyValueStore,
    Spans,
    cache_dtype,
    empty_spans,
)
from jaxformer.models.config import TransformerConfig
from jaxformer.typing import Array, Bool, Float, Int


class Memory(NamedTuple):
    """The encoder's output, projected once for each decoder layer."""

    stores: list[KeyValueStore]
    mask: Bool[Array, "B 1 1 S"]


class Cache(NamedTuple):
    """The KV cache of the target positions, and which slots each hypothesis reads."""

    spans: list[Spans]
    """One entry a decoder layer. The W hypotheses of a sentence share a row, which is
    never reordered.
    """
    ancestors: Int[Array, "N T"]
    """For each position, which of the W hypotheses was this one's ancestor; -1 at
    positions that are not decoded yet. These rows are reordered with their hypotheses.
    """
    position: Int[Array, ""]
    coverage: Float[Array, "N S"] | None = None
    """Cross-attention to each source position: the mean over the heads of the last
    decoder layer, summed over target positions; 1 at padding. None: not computed.
    """


def empty_cache(
    config: TransformerConfig, rows: int, length: int, beam_size: int = 1
) -> Cache:
    """Allocate the cache of ``rows`` hypotheses for ``length`` target positions.

    Args:
        config: of the model.
        rows: hypotheses of all sentences.
        length: positions.
        beam_size: W, how many adjacent hypotheses share a row of keys and values. If
            hypotheses are reordered within a sentence, those of a sentence should:
            then only ``ancestors`` are reordered.

    Raises:
        InputError: the length is beyond ``config.max_length``, or the beam size does
            not divide the rows.
    """
    if rows % beam_size:
        raise InputError(f"{rows} rows are not a multiple of beam_size {beam_size}")
    if length > config.max_length:
        raise InputError(
            f"decoding {length} positions needs more than the model's"
            f" {config.max_length}; lower max_extra_length or train with a larger"
            " model.max_length"
        )
    d_k = config.d_k or config.d_model // config.num_heads
    d_v = config.d_v or config.d_model // config.num_heads
    dtype = cache_dtype(jnp.dtype(config.dtype))
    heads = config.num_key_value_heads or config.num_heads
    sizes = rows // beam_size, heads, d_k, d_v
    return Cache(
        [
            empty_spans(*sizes, width=beam_size, length=length, dtype=dtype)
            for _ in range(config.num_decoder_layers)
        ],
        jnp.full((rows, length), NO_ANCESTOR, jnp.int32),
        jnp.zeros((), jnp.int32),
    )


def empty_coverage(memory: Memory, rows: int) -> Float[Array, "N S"]:
    """Return the coverage of ``rows`` empty hypotheses, for :class:`Cache`: 0, and 1 at
    padding.
    """
    padding = (~memory.mask[:, 0, 0]).astype(jnp.float32)
    return jnp.repeat(padding, rows // padding.shape[0], axis=0)
