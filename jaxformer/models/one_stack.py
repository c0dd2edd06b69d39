"""What models of one stack share: embeddings, the stack, and the output layer."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from jaxformer.functional import positions
from jaxformer.functional.masks import SegmentMask
from jaxformer.kernels.matmul import project_to_vocabulary
from jaxformer.models import checks
from jaxformer.models.config import TransformerConfig
from jaxformer.models.seq2seq import add_positions, choose_backend
from jaxformer.nn import initializers
from jaxformer.nn.blocks import make_norm
from jaxformer.nn.dropout import Dropout
from jaxformer.nn.embedding import Embedding, Positions
from jaxformer.nn.sharding import keep_rows
from jaxformer.nn.stacks import Encoder
from jaxformer.typing import Array, Bool, Float, Int


class OneStack(nn.Module):
    """A model of one stack of layers:
    :class:`~jaxformer.models.language_model.LanguageModel` or
    :class:`~jaxformer.models.encoder.TextEncoder`.

    The stack is ``encoder`` or ``decoder`` in the tree. Its layers are those of an
    encoder: attention to themselves, then feed-forward.
    """

    config: TransformerConfig
    # The device that computes (one of several), on which the choice of attention
    # depends; None: JAX's first.
    device: Any = None

    def setup(self) -> None:
        """Create embeddings, positions, the stack and the output layer."""
        config = self.config
        dtype, scale = jnp.dtype(config.dtype), config.scale_embedding
        rows, width = config.text_vocabulary_size, config.d_model
        self.embedding = Embedding(rows, width, dtype, scale)
        self.positions = Positions(
            *(config.positions, width, config.max_length),
            *(scale and config.scale_positions, config.position_offset),
        )
        if config.segment_types:
            self.segment_embedding = Embedding(
                config.segment_types, width, dtype, scale=False
            )
        if config.embedding_norm:
            self.embedding_norm = make_norm(config.layer)
        self.embedding_dropout = Dropout(config.dropout_rate)
        count = config.num_encoder_layers or config.num_decoder_layers
        how = (config.rematerialization, config.scan_layers)
        name = "encoder" if config.num_encoder_layers else "decoder"
        self.stack = Encoder(config.layer, count, *how, name=name)
        if self.reads_words and config.tied_embeddings == "none":
            self.output = self.param("output", initializers.embedding, (rows, width))
        if self.reads_words and config.output_bias:
            self.output_bias = self.param("logits", initializers.bias, rows)["bias"]

    @property
    def reads_words(self) -> bool:
        """Whether the output is logits of tokens."""
        return True

    def embed(
        self,
        tokens: Int[Array, "B T"],
        place: Int[Array, "*#B T"],
        types: Int[Array, "B T"] | None = None,
        *,
        train: bool = False,
    ) -> Float[Array, "B T D"]:
        """Add up embeddings, positions (of each row, or the same for all) and, where
        the model has them, embeddings of segments, which are 0 without ``types``.
        """
        if self.config.pad_id == self.config.text_vocabulary_size:
            # A vocabulary without padding, of which no row is read.
            tokens = jnp.where(tokens == self.config.pad_id, 0, tokens)
        x = self.embedding(tokens)
        x = add_positions(x, self.positions.encode(place))
        if self.config.segment_types:
            types = jnp.zeros_like(tokens) if types is None else types
            x = x + self.segment_embedding(types)
        if self.config.embedding_norm:
            x = self.embedding_norm(x)
        return keep_rows(self.embedding_dropout(x, train=train))

    def run(
        self,
        tokens: Int[Array, "B T"],
        real: Bool[Array, "B T"],
        segments: Int[Array, "B T"] | None,
        types: Int[Array, "B T"] | None = None,
        *,
        causal: bool,
        train: bool,
        backend: str | None,
    ) -> tuple[Float[Array, "B T D"], list[Float[Array, "B H T T"] | None]]:
        """Return the output of the stack and each layer's attention weights.

        Args:
            tokens: the input.
            real: which of it is read.
            segments: of packed rows, or None.
            types: kinds of segments, or None.
            causal: whether no position reads a later one.
            train: whether dropout is active.
            backend: how attention is computed; None: as the configuration says.
        """
        if segments is None:
            place = jnp.arange(tokens.shape[1])
            seen = SegmentMask(real, causal=causal)
        else:
            place = positions.segment_positions(segments)
            seen = SegmentMask(segments, segments, causal=causal)
        backend = backend or self.config.attention_backend
        how = choose_backend(self, backend, tokens.shape[1], train=train)
        x = self.embed(tokens, place, types, train=train)
        x, weights = self.stack(x, seen, train=train, backend=how)
        return keep_rows(x), weights

    def check(
        self, tokens: Int[Array, "B T"], segments: Int[Array, "B T"] | None
    ) -> None:
        """Refuse known tokens out of range, padding before a token, and segments that
        do not match the tokens.
        """
        config = self.config
        checks.check_tokens(tokens, max(config.text_vocabulary_size, config.pad_id + 1))
        checks.check_right_padding(tokens, config.pad_id)
        if segments is not None:
            checks.check_segments(
                segments, tokens, pad_id=config.pad_id, max_length=config.max_length
            )

    def output_layer(self) -> tuple[Float[Array, "V D"], Float[Array, " V"] | None]:
        """Return the table and, if there is one, the bias of :meth:`logits`."""
        tied = self.config.tied_embeddings != "none"
        table = self.embedding.table if tied else self.output
        return table, self.output_bias if self.config.output_bias else None

    def logits(self, x: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
        """Compute the logit of each token in float32."""
        table, bias = self.output_layer()
        return project_to_vocabulary(table, x, bias)
