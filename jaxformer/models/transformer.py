"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017)."""

from __future__ import annotations

import jax.numpy as jnp

from jaxformer.errors import InputError
from jaxformer.functional import masks
from jaxformer.functional.masks import SegmentMask
from jaxformer.models.base import AttentionWeights, EncoderDecoder
from jaxformer.models.cache import Cache, Memory, empty_cache, find_slots
from jaxformer.nn.backend import choose_backend
from jaxformer.nn.sharding import keep_rows
from jaxformer.nn.stacks import Decoder, Encoder
from jaxformer.typing import Array, Float, Int


class Transformer(EncoderDecoder):
    """An encoder-decoder Transformer (Vaswani et al. 2017).

    Sequences are padded on the right with ``config.pad_id``, from which the masks are
    built. Give the target unshifted: the model shifts it right by one position, after
    ``config.bos_id``, for the decoder's input.

    A row may have several packed pairs, numbered by segments: from 1 upwards, the same
    on both sides, and 0 at padding. In each segment positions begin at 0 and the
    decoder's input with ``config.bos_id``. No attention crosses segments.

    Example:
        >>> model = Transformer(TransformerConfig.tiny(vocabulary_size=100))
        >>> source, target = jnp.ones((2, 7), int), jnp.ones((2, 5), int)
        >>> params = model.init(jax.random.key(0), source, target)["params"]
        >>> model.apply({"params": params}, source, target).shape
        (2, 5, 100)
    """

    def setup(self) -> None:
        """Create embeddings, positions, encoder and decoder."""
        super().setup()
        config = self.config
        source, target = self.make_tables()
        self.source = self.make_side(source, "source_")
        self.target = self.make_side(target, "target_")
        how = (config.rematerialization, config.scan_layers)
        self.encoder = Encoder(config.layer, config.num_encoder_layers, *how)
        self.decoder = Decoder(config.layer, config.num_decoder_layers, *how)

    def hidden(
        self,
        source: Int[Array, "B S"],
        target: Int[Array, "B T"],
        source_segments: Int[Array, "B S"] | None = None,
        target_segments: Int[Array, "B T"] | None = None,
        *,
        train: bool = False,
        backend: str | None = None,
    ) -> tuple[Float[Array, "B T D"], AttentionWeights]:
        """Return the decoder's output, the input of :meth:`logits`, and the attention
        weights. Without a ``backend`` it is that of the configuration.

        Raises:
            InputError: segments of only one side, or a backend that does not fit.
        """
        if (source_segments is None) != (target_segments is None):
            raise InputError(
                "a packed batch has segments on both sides: give source_segments and"
                " target_segments"
            )
        memory, encoder_weights = self.encode(
            source, segments=source_segments, train=train, backend=backend
        )
        inputs, place, seen = self.prepare(
            self.target.table, target, target_segments, causal=True, shift=True
        )
        cross = SegmentMask(source != self.config.pad_id)
        if source_segments is not None:
            cross = SegmentMask(source_segments, target_segments)
        longest = max(source.shape[1], target.shape[1])
        how = choose_backend(self, backend, longest, train=train)
        x = self.embed(self.target, inputs, place, train=train)
        x, weights = self.decoder(x, memory, seen, cross, train=train, backend=how)
        own, others = [own for own, _ in weights], [cross for _, cross in weights]
        return keep_rows(x), AttentionWeights(encoder_weights, own, others)

    def encode(
        self,
        source: Int[Array, "B S"],
        *,
        segments: Int[Array, "B S"] | None = None,
        train: bool = False,
        backend: str | None = "plain",
    ) -> tuple[Float[Array, "B S D"], list[Float[Array, "B H S S"] | None]]:
        """Encode the source; return the output and the attention weights, which only
        the ``backend`` ``plain`` has.
        """
        _, place, seen = self.prepare(self.source.table, source, segments)
        x = self.embed(self.source, source, place, train=train)
        how = choose_backend(self, backend, source.shape[1], train=train)
        x, weights = self.encoder(x, seen, train=train, backend=how)
        return keep_rows(x), weights

    def start(self, source: Int[Array, "B S"]) -> Memory:
        """Encode the source and project it for every decoder layer (prefill)."""
        encoded, _ = self.encode(source, backend=None)
        mask = masks.padding_mask(source, self.config.pad_id)
        return Memory(self.decoder.store_memory(encoded), mask)

    def empty_cache(
        self, memory: Memory, rows: int, length: int, beam_size: int = 1
    ) -> Cache:
        """Allocate the cache of hypotheses; see
        :func:`~jaxformer.models.cache.empty_cache`. It does not depend on ``memory``.
        """
        del memory
        return empty_cache(self.config, rows, length, beam_size)

    def step(
        self, tokens: Int[Array, " N"], cache: Cache, memory: Memory
    ) -> tuple[Float[Array, "N V"], Cache]:
        """Predict the next token of each hypothesis from its last token and the cache.

        Args:
            tokens: the last tokens; ``config.bos_id`` at the first step. The N / B
                hypotheses of a sentence are adjacent.
            cache: from :meth:`empty_cache`, or the last step.
            memory: from :meth:`start`.

        Returns:
            Logits in float32, and the cache extended by one position. The caller keeps
            the position below the cache's length and, with learned positions, below
            ``config.max_length``.
        """
        x = self.embed(self.target, tokens[:, None], cache.position[None])
        ancestors, seen = find_slots(cache)
        x, spans, weights = self.decoder.step(
            x, cache.spans, cache.position, seen, memory.stores, memory.mask
        )
        coverage = cache.coverage
        if coverage is not None:
            coverage += (
                jnp.mean(weights[-1], axis=1)
                .reshape(coverage.shape)
                .astype(coverage.dtype)
            )
        return self.logits(x[:, 0]), Cache(
            spans, ancestors, cache.position + 1, coverage
        )
