"""The Transformer of "Attention Is All You Need": embeddings, encoder, decoder and
logits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, Union

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxformer.errors import InputError
from jaxformer.functional import masks, positions
from jaxformer.functional.masks import SegmentMask
from jaxformer.kernels.matmul import project_to_vocabulary
from jaxformer.models import checks
from jaxformer.models.cache import Cache, Memory, empty_cache, find_slots
from jaxformer.models.config import TransformerConfig
from jaxformer.nn import initializers
from jaxformer.nn.blocks import make_norm
from jaxformer.nn.dropout import Dropout
from jaxformer.nn.embedding import Embedding, Positions
from jaxformer.nn.sharding import keep_rows
from jaxformer.nn.stacks import Decoder, Encoder
from jaxformer.typing import Array, Bool, Float, Int, Parameters

if TYPE_CHECKING:
    from jaxformer.models.encoder import TextEncoder
    from jaxformer.models.language_model import LanguageModel
    from jaxformer.models.one_stack import OneStack

Model: TypeAlias = Union["EncoderDecoder", "LanguageModel", "TextEncoder"]
"""An encoder-decoder, a decoder-only or an encoder-only model."""


class AttentionWeights(NamedTuple):
    """The weights of every layer and head of one forward pass, float32; None where a
    kernel computed attention.
    """

    encoder: list[Float[Array, "B H S S"] | None]
    decoder: list[Float[Array, "B H T T"] | None]
    cross: list[Float[Array, "B H T S"] | None]


class EncoderDecoder(nn.Module):
    """What networks of an encoder and a decoder share: tables, the output layer, and
    the pass over given targets. Each has ``hidden``, ``start``, ``empty_cache`` and
    ``step``.
    """

    config: TransformerConfig
    # The device that computes (one of several), on which the choice of attention
    # depends; None: JAX's first.
    device: Any = None

    def __call__(
        self,
        source: Int[Array, "B S"],
        target: Int[Array, "B T"],
        *,
        source_segments: Int[Array, "B S"] | None = None,
        target_segments: Int[Array, "B T"] | None = None,
        train: bool = False,
    ) -> Float[Array, "B T V"]:
        """Predict each target token from the source and the target tokens before it.

        Args:
            source: tokens, padded on the right.
            target: tokens to predict, not shifted, padded on the right.
            source_segments: of packed rows; of both sides, or of neither.
            target_segments: of packed rows.
            train: whether dropout is active; it needs ``rngs={"dropout": key}``.

        Returns:
            Logits in float32; those at position t depend only on the target tokens
            before t.

        Raises:
            InputError: a sequence longer than ``config.max_length`` (packed ones only
                outside ``jit``), segments of only one side or of another shape than the
                tokens, or, outside ``jit``, a token id out of range, padding before a
                token or segments that do not match the tokens.
        """
        segments = source_segments, target_segments
        return self.logits(self.hidden(source, target, *segments, train=train)[0])

    def forward(
        self,
        source: Int[Array, "B S"],
        target: Int[Array, "B T"],
        *,
        source_segments: Int[Array, "B S"] | None = None,
        target_segments: Int[Array, "B T"] | None = None,
        train: bool = False,
        backend: str = "plain",
    ) -> tuple[Float[Array, "B T V"], AttentionWeights]:
        """Predict as :meth:`__call__` does, and return the attention weights too, which
        ``jit`` prunes if they are not used. Only the ``backend`` ``plain`` has weights.

        Raises:
            InputError: segments of only one side, or a backend that does not fit.
        """
        segments = source_segments, target_segments
        x, weights = self.hidden(
            source, target, *segments, train=train, backend=backend
        )
        return self.logits(x), weights

    def logits(self, x: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
        """Compute the logit of each target token in float32."""
        table, bias = self.output_layer()
        return project_to_vocabulary(table, x, bias)

    def output_layer(self) -> tuple[Float[Array, "V D"], Float[Array, " V"] | None]:
        """Return the table and, if there is one, the bias of :meth:`logits`."""
        bias = self.output_bias if self.config.output_bias else None
        if self.config.tied_embeddings == "none":
            return self.output, bias
        return self._target_table().table, bias

    def _make_tables(self) -> None:
        config = self.config
        how = config.d_model, jnp.dtype(config.dtype), config.scale_embedding
        if config.tied_embeddings == "all":
            self.embedding = Embedding(config.vocabulary_size, *how)
        else:
            self.source_embedding = Embedding(config.text_vocabulary_size, *how)
            self.target_embedding = Embedding(config.vocabulary_size, *how)
        if config.tied_embeddings == "none":
            self.output = self.param(
                "output",
                initializers.embedding,
                (config.vocabulary_size, config.d_model),
            )
        if config.output_bias:
            self.output_bias = self.param(
                "logits", initializers.bias, config.vocabulary_size
            )["bias"]

    def _source_table(self) -> Embedding:
        shared = self.config.tied_embeddings == "all"
        return self.embedding if shared else self.source_embedding

    def _target_table(self) -> Embedding:
        shared = self.config.tied_embeddings == "all"
        return self.embedding if shared else self.target_embedding


class Transformer(EncoderDecoder):
    """An encoder-decoder Transformer (Vaswani et al. 2017).

    Sequences are padded on the right with ``config.pad_id``, from which the masks are
    built. The target is not shifted: the decoder's input is the target shifted right by
    one position after ``config.bos_id``.

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
        config, scale = self.config, self.config.scale_embedding
        self._make_tables()
        # Learned positions have one table for each side.
        where = (
            *(config.positions, config.d_model, config.max_length),
            *(scale and config.scale_positions, config.position_offset),
        )
        self.source_positions = Positions(*where)
        self.target_positions = Positions(*where)
        if config.embedding_norm:
            self.source_embedding_norm = make_norm(config.layer)
            self.target_embedding_norm = make_norm(config.layer)
        self.embedding_dropout = Dropout(config.dropout_rate)
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
        backend = backend or self.config.attention_backend
        if (source_segments is None) != (target_segments is None):
            raise InputError(
                "a packed batch has segments on both sides: give source_segments and"
                " target_segments"
            )
        memory, _, encoder_weights = self.encode(
            source, segments=source_segments, train=train, backend=backend
        )
        checks.check_tokens(target, self.config.vocabulary_size)
        checks.check_right_padding(target, self.config.pad_id)
        inputs = shift_right(target, self.config.bos_id)
        if source_segments is not None and target_segments is not None:
            self._check_segments(target_segments, target)
            place = positions.segment_positions(target_segments)
            inputs = jnp.where(place == 0, self.config.bos_id, inputs)
            seen = SegmentMask(target_segments, target_segments, causal=True)
            cross = SegmentMask(source_segments, target_segments)
        else:
            place = jnp.arange(target.shape[1])
            # The mask is shifted like the target: the first input is real even if
            # bos_id is pad_id.
            real = (target != self.config.pad_id)[:, :-1]
            shifted = jnp.pad(real, ((0, 0), (1, 0)), constant_values=True)
            seen = SegmentMask(shifted, causal=True)
            cross = SegmentMask(source != self.config.pad_id)
        longest = max(source.shape[1], target.shape[1])
        how = choose_backend(self, backend, longest, train=train)
        x = keep_rows(self._embed_target(inputs, place, train=train))
        x, weights = self.decoder(x, memory, seen, cross, train=train, backend=how)
        own, others = [own for own, _ in weights], [cross for _, cross in weights]
        return keep_rows(x), AttentionWeights(encoder_weights, own, others)

    def encode(
        self,
        source: Int[Array, "B S"],
        *,
        segments: Int[Array, "B S"] | None = None,
        train: bool = False,
        backend: str = "plain",
    ) -> tuple[
        Float[Array, "B S D"],
        Bool[Array, "B 1 1 S"],
        list[Float[Array, "B H S S"] | None],
    ]:
        """Encode the source; return the output, the mask of its real positions, and
        the attention weights, which only the ``backend`` ``plain`` has.
        """
        checks.check_tokens(source, self.config.text_vocabulary_size)
        checks.check_right_padding(source, self.config.pad_id)
        mask = masks.padding_mask(source, self.config.pad_id)
        seen = SegmentMask(source != self.config.pad_id)
        place = jnp.arange(source.shape[1])
        if segments is not None:
            self._check_segments(segments, source)
            seen = SegmentMask(segments, segments)
            place = positions.segment_positions(segments)
        encoding = self.source_positions.encode(place)
        x = add_positions(self._source_table()(source), encoding)
        if self.config.embedding_norm:
            x = self.source_embedding_norm(x)
        x = keep_rows(self.embedding_dropout(x, train=train))
        how = choose_backend(self, backend, source.shape[1], train=train)
        x, weights = self.encoder(x, seen, train=train, backend=how)
        return keep_rows(x), mask, weights

    def start(self, source: Int[Array, "B S"]) -> Memory:
        """Encode the source and project it for every decoder layer (prefill)."""
        encoded, mask, _ = self.encode(source, backend=self.config.attention_backend)
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
        x = self._embed_target(tokens[:, None], cache.position[None], train=False)
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

    def _check_segments(
        self, segments: Int[Array, "B T"], tokens: Int[Array, "B T"]
    ) -> None:
        config = self.config
        checks.check_segments(
            segments, tokens, pad_id=config.pad_id, max_length=config.max_length
        )

    def _embed_target(
        self, tokens: Int[Array, "B T"], place: Int[Array, "*#B T"], *, train: bool
    ) -> Array:
        encoding = self.target_positions.encode(place)
        x = add_positions(self._target_table()(tokens), encoding)
        if self.config.embedding_norm:
            x = self.target_embedding_norm(x)
        return self.embedding_dropout(x, train=train)


def choose_backend(
    model: EncoderDecoder | OneStack, backend: str, length: int, *, train: bool
) -> str:
    """Return how a module computes attention within ``apply``; see
    :meth:`TransformerConfig.choose_backend`.
    """
    if model.is_initializing():
        return "plain"  # parameters do not depend on it
    device = model.device or jax.devices()[0]
    return model.config.choose_backend(backend, device, length, train=train)


def add_positions(
    x: Float[Array, "B T D"], encoding: Float[Array, "*#B T D"] | None
) -> Float[Array, "B T D"]:
    """Add positions, of each row or the same for all; None where attention has them."""
    if encoding is None:
        return x
    return x + (encoding if encoding.ndim == x.ndim else encoding[None]).astype(x.dtype)


def shift_right(target: Int[Array, "B T"], bos_id: int) -> Int[Array, "B T"]:
    """Shift the target right by one position after ``bos_id``: the decoder's input
    (Vaswani et al. 2017, figure 1 and section 3.1).
    """
    return jnp.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=bos_id)


def count_parameters(params: Parameters) -> int:
    """Count the parameters of a tree."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def make_model(config: TransformerConfig, device: Any = None) -> Model:
    """Return the model of a configuration: of both stacks, of the one that has layers,
    or a recurrent network.

    Example:
        >>> config = TransformerConfig(100, num_encoder_layers=0)
        >>> type(make_model(config)).__name__
        'LanguageModel'
    """
    if not config.num_decoder_layers:
        from jaxformer.models.encoder import TextEncoder

        return TextEncoder(config, device)
    if not config.num_encoder_layers:
        from jaxformer.models.language_model import LanguageModel

        return LanguageModel(config, device)
    if config.network != "transformer":
        from jaxformer.models.recurrent import RecurrentNetwork

        return RecurrentNetwork(config, device)
    return Transformer(config, device)


def example(config: TransformerConfig) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Return inputs that a model of this configuration is initialized with."""
    both = config.num_encoder_layers and config.num_decoder_layers
    tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    return (tokens, tokens) if both else (tokens,)


def abstract_parameters(config: TransformerConfig) -> Parameters:
    """Return the shapes and types of the parameters of a configuration's model; nothing
    is allocated.
    """
    model, key = make_model(config), jax.random.key(0)
    return jax.eval_shape(model.init, key, *example(config))["params"]
