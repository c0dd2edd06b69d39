"""What the networks share: tables of tokens, what is added to their rows, the output
layer, and the checks of inputs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxformer.functional import positions
from jaxformer.functional.masks import SegmentMask
from jaxformer.kernels.matmul import project_to_vocabulary
from jaxformer.models import checks
from jaxformer.models.config import TransformerConfig
from jaxformer.nn import initializers
from jaxformer.nn.backend import choose_backend
from jaxformer.nn.blocks import LayerNorm, RMSNorm, make_norm
from jaxformer.nn.dropout import Dropout
from jaxformer.nn.embedding import Embedding, Positions
from jaxformer.nn.sharding import keep_rows
from jaxformer.nn.stacks import Encoder
from jaxformer.typing import Array, Float, Int


class AttentionWeights(NamedTuple):
    """The weights of every layer and head of one forward pass, float32; None where a
    kernel computed attention.
    """

    encoder: list[Float[Array, "B H S S"] | None]
    decoder: list[Float[Array, "B H T T"] | None]
    cross: list[Float[Array, "B H T S"] | None]


class Side(NamedTuple):
    """What makes vectors of the tokens of one side."""

    table: Embedding
    positions: Positions
    norm: LayerNorm | RMSNorm | None
    types: Embedding | None = None


class Model(nn.Module):
    """What every network has: vectors of tokens, and the output layer."""

    config: TransformerConfig
    # The device that computes (one of several), on which the choice of attention
    # depends; None: JAX's first.
    device: Any = None

    # How many arrays of tokens it reads; no field of the module, as it has no type.
    sides = 1

    def example(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Return inputs that the parameters are drawn with."""
        return (jax.ShapeDtypeStruct((1, 1), jnp.int32),) * self.sides

    def setup(self) -> None:
        """Create the dropout of embeddings; each network creates the rest."""
        self.embedding_dropout = Dropout(self.config.dropout_rate)

    def make_table(
        self, rows: int, name: str = "embedding", *, scaled: bool = True
    ) -> Embedding:
        """Create a table of tokens."""
        width, dtype = self.config.d_model, jnp.dtype(self.config.dtype)
        scale = scaled and self.config.scale_embedding
        return Embedding(rows, width, dtype, scale, name=name)

    def make_side(self, table: Embedding, prefix: str = "") -> Side:
        """Create what is added to the rows of a table: each side has its own."""
        config, name = self.config, f"{prefix}embedding_norm"
        where = Positions(
            *(config.positions, config.d_model, config.max_length),
            scale=config.scale_embedding and config.scale_positions,
            offset=config.position_offset,
            name=f"{prefix}positions",
        )
        norm = make_norm(config.layer, name) if config.embedding_norm else None
        return Side(table, where, norm)

    def make_output(self, table: Embedding) -> None:
        """Create the output layer, whose table may be that of the tokens."""
        self.tied_table, rows = table, table.vocabulary_size
        if self.config.tied_embeddings == "none":
            shape = rows, self.config.d_model
            self.output = self.param("output", initializers.embedding, shape)
        if self.config.output_bias:
            self.output_bias = self.param("logits", initializers.bias, rows)["bias"]

    def embed(
        self,
        side: Side,
        tokens: Int[Array, "B T"],
        place: Int[Array, "*#B T"],
        types: Int[Array, "B T"] | None = None,
        *,
        train: bool = False,
    ) -> Float[Array, "B T D"]:
        """Add up embeddings, positions (of each row, or the same for all) and, where
        the model has them, embeddings of segments, which are 0 without ``types``.
        """
        if self.config.pad_id == side.table.vocabulary_size:
            # A vocabulary without padding, of which no row is read.
            tokens = jnp.where(tokens == self.config.pad_id, 0, tokens)
        x, encoding = side.table(tokens), side.positions.encode(place)
        if encoding is not None:  # else attention has the positions
            encoding = encoding if encoding.ndim == x.ndim else encoding[None]
            x = x + encoding.astype(x.dtype)
        if side.types is not None:
            x = x + side.types(jnp.zeros_like(tokens) if types is None else types)
        if side.norm is not None:
            x = side.norm(x)
        return keep_rows(self.embedding_dropout(x, train=train))

    def check(
        self,
        table: Embedding,
        tokens: Int[Array, "B T"],
        segments: Int[Array, "B T"] | None = None,
    ) -> None:
        """Refuse known tokens out of range, padding before a token, and segments that
        do not match the tokens.
        """
        config = self.config
        checks.check_tokens(tokens, max(table.vocabulary_size, config.pad_id + 1))
        checks.check_right_padding(tokens, config.pad_id)
        if segments is not None:
            checks.check_segments(
                segments, tokens, pad_id=config.pad_id, max_length=config.max_length
            )

    def prepare(
        self,
        table: Embedding,
        tokens: Int[Array, "B T"],
        segments: Int[Array, "B T"] | None = None,
        *,
        causal: bool = False,
        shift: bool = False,
    ) -> tuple[Int[Array, "B T"], Int[Array, "*#B T"], SegmentMask]:
        """Check tokens; return the inputs of a stack, their positions, and which of
        them each one sees. With ``shift`` they are those that predict the tokens.
        """
        self.check(table, tokens, segments)
        bos_id, inputs = self.config.bos_id, tokens
        real = tokens != self.config.pad_id
        if shift:
            inputs = shift_right(tokens, bos_id)
            # The first input is real even if bos_id is pad_id.
            real = shift_right(real, True)
        if segments is None:
            return inputs, jnp.arange(real.shape[1]), SegmentMask(real, causal=causal)
        place = positions.segment_positions(segments)
        if shift:
            inputs = jnp.where(place == 0, bos_id, inputs)
        return inputs, place, SegmentMask(segments, segments, causal=causal)

    def hidden(self, *tokens: Any, **how: Any) -> tuple[Float[Array, "*B D"], Any]:
        """Return the output of the last layer and the attention weights; each network
        has its own.
        """
        raise NotImplementedError

    def output_layer(self) -> tuple[Float[Array, "V D"], Float[Array, " V"] | None]:
        """Return the table and, if there is one, the bias of :meth:`logits`."""
        tied = self.config.tied_embeddings != "none"
        table = self.tied_table.table if tied else self.output
        return table, self.output_bias if self.config.output_bias else None

    def logits(self, x: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
        """Compute the logit of each token in float32."""
        table, bias = self.output_layer()
        return project_to_vocabulary(table, x, bias)


class EncoderDecoder(Model):
    """What networks of an encoder and a decoder share. Each has ``hidden``, ``start``,
    ``empty_cache`` and ``step``.
    """

    sides = 2

    def make_tables(self) -> tuple[Embedding, Embedding]:
        """Create the tables of source and target, which may be one, and the output
        layer (section 3.4).
        """
        config = self.config
        if config.tied_embeddings == "all":
            source = target = self.make_table(config.vocabulary_size)
        else:
            source = self.make_table(config.text_vocabulary_size, "source_embedding")
            target = self.make_table(config.vocabulary_size, "target_embedding")
        self.make_output(target)
        return source, target

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


class OneStack(Model):
    """A model of one stack of layers:
    :class:`~jaxformer.models.language_model.LanguageModel` or
    :class:`~jaxformer.models.encoder.TextEncoder`.

    The stack is ``encoder`` or ``decoder`` in the tree. Its layers are those of an
    encoder: attention to themselves, then feed-forward.
    """

    def setup(self) -> None:
        """Create embeddings, positions, the stack and the output layer."""
        super().setup()
        config = self.config
        self.side = self.make_side(self.make_table(config.text_vocabulary_size))
        if config.segment_types:
            name = "segment_embedding"
            types = self.make_table(config.segment_types, name, scaled=False)
            self.side = self.side._replace(types=types)
        count = config.num_encoder_layers or config.num_decoder_layers
        how = (config.rematerialization, config.scan_layers)
        name = "encoder" if config.num_encoder_layers else "decoder"
        self.stack = Encoder(config.layer, count, *how, name=name)
        if self.reads_words:
            self.make_output(self.side.table)

    @property
    def reads_words(self) -> bool:
        """Whether the output is logits of tokens."""
        return True

    def run(
        self,
        tokens: Int[Array, "B T"],
        segments: Int[Array, "B T"] | None = None,
        types: Int[Array, "B T"] | None = None,
        *,
        causal: bool = False,
        shift: bool = False,
        train: bool = False,
        backend: str | None = None,
    ) -> tuple[Float[Array, "B T D"], list[Float[Array, "B H T T"] | None]]:
        """Return the output of the stack and each layer's attention weights.

        Args:
            tokens: padded on the right.
            segments: of packed rows, or None.
            types: kinds of segments, or None.
            causal: whether no position reads a later one.
            shift: whether the input is shifted right, so that tokens are predicted.
            train: whether dropout is active.
            backend: how attention is computed; None: as the configuration says.
        """
        inputs, place, seen = self.prepare(
            self.side.table, tokens, segments, causal=causal, shift=shift
        )
        how = choose_backend(self, backend, tokens.shape[1], train=train)
        x = self.embed(self.side, inputs, place, types, train=train)
        x, weights = self.stack(x, seen, train=train, backend=how)
        return keep_rows(x), weights


def shift_right(target: Int[Array, "B T"], bos_id: int) -> Int[Array, "B T"]:
    """Shift the target right by one position after ``bos_id``: the decoder's input
    (Vaswani et al. 2017, figure 1 and section 3.1).
    """
    return jnp.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=bos_id)
