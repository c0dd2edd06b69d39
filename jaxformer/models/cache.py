"""What a search keeps of a model: the encoder's output, and a cache of the target."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from jaxformer.errors import InputError
from jaxformer.models.config import TransformerConfig
from jaxformer.nn.cache import (
    NO_ANCESTOR,
    KeyValueStore,
    Spans,
    cache_dtype,
    empty_spans,
    readable,
)
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
    config: TransformerConfig,
    rows: int,
    length: int,
    beam_size: int = 1,
    *,
    before: int = 0,
) -> Cache:
    """Allocate the cache of ``rows`` hypotheses for ``length`` target positions.

    Args:
        config: of the model.
        rows: hypotheses of all sentences.
        length: positions.
        beam_size: W, how many adjacent hypotheses share a row of keys and values; it
            divides ``rows``. If hypotheses are reordered within a sentence, those of a
            sentence should: then only ``ancestors`` are reordered.
        before: further positions for what the hypotheses begin with; see
            :func:`begin_with`.

    Raises:
        InputError: the length is beyond ``config.max_length``.
    """
    if length > config.max_length:
        raise InputError(
            f"decoding {length} positions needs more than the model's"
            f" {config.max_length}; lower max_extra_length or train with a larger"
            " model.max_length"
        )
    dtype = cache_dtype(jnp.dtype(config.dtype))
    heads = config.num_key_value_heads or config.num_heads
    sizes = rows // beam_size, heads, *config.head_widths
    return Cache(
        [
            empty_spans(*sizes, width=beam_size, length=before + length, dtype=dtype)
            for _ in range(config.num_decoder_layers)
        ],
        jnp.full((rows, before + length), NO_ANCESTOR, jnp.int32),
        jnp.zeros((), jnp.int32),
    )


def begin_with(
    cache: Cache, stores: list[KeyValueStore], read: Bool[Array, "B P"]
) -> Cache:
    """Put what all hypotheses of a text begin with into the first positions of an empty
    cache.

    Args:
        cache: empty.
        stores: keys and values of P positions for each layer, one row a text.
        read: which of the positions are read.
    """
    rows, positions = cache.ancestors.shape[0], read.shape[1]
    shared = cache.spans[0][0].keys.shape[0]
    width, groups = rows // shared, shared // read.shape[0]

    def fill(spans: Spans, store: KeyValueStore) -> Spans:
        keys, values = (jnp.repeat(x, groups, axis=0) for x in store)
        filled, begin = [], 0
        for span in spans:
            end = min(begin + span.values.shape[2] // width, positions)
            # The first hypothesis of each position has it.
            place = slice(0, (end - begin) * width, width)
            filled.append(
                KeyValueStore(
                    span.keys.at[..., place].set(keys[..., begin:end]),
                    span.values.at[:, :, place].set(values[:, :, begin:end]),
                )
            )
            begin = end
        return tuple(filled)

    own = jnp.repeat(jnp.where(read, 0, NO_ANCESTOR), rows // read.shape[0], axis=0)
    return cache._replace(
        spans=[*map(fill, cache.spans, stores)],
        ancestors=cache.ancestors.at[:, :positions].set(own),
        position=jnp.int32(positions),
    )


def find_slots(
    cache: Cache,
) -> tuple[Int[Array, "N T"], Bool[Array, "B 1 W M"]]:
    """Return the ancestors with a new position, which is each hypothesis's own, and
    which slots of the spans each hypothesis reads.
    """
    rows, length = cache.ancestors.shape
    width = rows // cache.spans[0][0].keys.shape[0]
    own = jnp.tile(jnp.arange(width, dtype=jnp.int32), rows // width)
    ancestors = cache.ancestors.at[:, cache.position].set(own)
    return ancestors, readable(ancestors.reshape(-1, width, length))


def empty_coverage(memory: Memory, rows: int) -> Float[Array, "N S"]:
    """Return the coverage of ``rows`` empty hypotheses, for :class:`Cache`: 0, and 1 at
    padding.
    """
    padding = (~memory.mask[:, 0, 0]).astype(jnp.float32)
    return jnp.repeat(padding, rows // padding.shape[0], axis=0)
