"""The networks before the Transformer: without attention those of Cho et al. 2014 and
Sutskever et al. 2014, with it RNNsearch (Bahdanau et al. 2015) and that of Luong et al.
2015, with the interface of :class:`jaxformer.Transformer`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.errors import InputError
from jaxformer.functional import masks
from jaxformer.models.base import AttentionWeights, EncoderDecoder, shift_right
from jaxformer.nn import recurrent
from jaxformer.nn.embedding import Embedding
from jaxformer.nn.sharding import keep_rows
from jaxformer.typing import Array, Bool, Float, Int, PyTree


class RecurrentCache(NamedTuple):
    """What a search keeps of each hypothesis; all rows are reordered with them."""

    states: PyTree
    """Arrays [N, D] of the decoder."""
    coverage: Float[Array, "N S"] | None = None
    """Attention to each source position, summed over target positions; 1 at padding.
    None: not computed.
    """


class RecurrentMemory(NamedTuple):
    """What a search keeps of each sentence."""

    source: recurrent.Annotations
    states: PyTree
    """The first states of the decoder, arrays [B, D]."""

    @property
    def mask(self) -> Bool[Array, "B 1 1 S"]:
        """Real positions of the source."""
        return self.source.mask


class RecurrentNetwork(EncoderDecoder):
    """A recurrent encoder-decoder; ``config.network`` is which.

    Sequences are as for :class:`jaxformer.Transformer`, without packed rows. At padding
    states do not move: the backward direction begins, and the forward one ends, at the
    last token of each row. All widths are ``config.d_model``. Dropout is on embeddings,
    between layers and before the output layer.

    Example:
        >>> from jaxformer import TransformerConfig
        >>> layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
        >>> config = TransformerConfig(100, d_model=16, network="bahdanau", **layers)
        >>> model, tokens = RecurrentNetwork(config), jnp.ones((2, 5), int)
        >>> params = model.init(jax.random.key(0), tokens, tokens)["params"]
        >>> model.apply({"params": params}, tokens, tokens).shape
        (2, 5, 100)
    """

    def setup(self) -> None:
        """Create tables, encoder and decoder."""
        super().setup()
        config, dtype = self.config, jnp.dtype(self.config.dtype)
        self.source, self.target = self.make_tables()
        width, rate = config.d_model, config.dropout_rate
        stack = width, config.num_encoder_layers, rate, dtype
        if config.network == "bahdanau":
            self.encoder = recurrent.BahdanauEncoder(width, dtype)
            self.decoder = recurrent.BahdanauDecoder(width, rate, dtype)
        elif config.network == "cho":
            self.encoder = recurrent.ChoEncoder(width, dtype)
            self.decoder = recurrent.ChoDecoder(width, rate, dtype)
        else:
            self.encoder = recurrent.StackEncoder(*stack, config.reverse_source)
            self.decoder = (
                recurrent.SutskeverDecoder(*stack)
                if config.network == "sutskever"
                else recurrent.LuongDecoder(*stack, config.attention_score)
            )

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
        """Return the input of ``logits``, and the attention weights: one layer of one
        head, [B, 1, T, S], in ``cross``, or none. ``backend`` has no effect.

        Raises:
            InputError: packed rows.
        """
        del backend
        config = self.config
        if source_segments is not None or target_segments is not None:
            raise InputError(
                f"model.network={config.network} reads one sentence a row, without"
                " segments: set data.packing=False"
            )
        memory = self.start(source, train=train)
        self.check(self.target, target)
        x = self._embed(self.target, shift_right(target, config.bos_id), train)
        seen, weights = recurrent.unroll(
            self.decoder, memory.states, x, memory.source, train=train
        )
        x = keep_rows(self.decoder.read(seen, train=train))
        return x, AttentionWeights(
            [], [], [] if weights is None else [weights[:, None]]
        )

    def start(
        self, source: Int[Array, "B S"], *, train: bool = False
    ) -> RecurrentMemory:
        """Annotate the source, and compute the first states of the decoder."""
        self.check(self.source, source)
        mask = masks.padding_mask(source, self.config.pad_id)
        x = self._embed(self.source, source, train)
        memory, last = self.encoder(x, mask[:, 0, 0].sum(axis=1), train=train)
        memory = keep_rows(memory)
        attention = self.decoder.attention
        keys = attention and attention.project(memory, self.config.d_model)
        annotations = recurrent.Annotations(memory, keys, mask)
        return RecurrentMemory(annotations, self.decoder.begin(last))

    def empty_cache(
        self, memory: RecurrentMemory, rows: int, length: int, beam_size: int = 1
    ) -> RecurrentCache:
        """Return the cache of ``rows`` empty hypotheses, equally many a sentence. Its
        size does not depend on ``length`` or ``beam_size``.
        """
        del length, beam_size
        copies = rows // memory.mask.shape[0]
        return RecurrentCache(
            jax.tree.map(lambda x: jnp.repeat(x, copies, axis=0), memory.states)
        )

    def step(
        self, tokens: Int[Array, " N"], cache: RecurrentCache, memory: RecurrentMemory
    ) -> tuple[Float[Array, "N V"], RecurrentCache]:
        """Predict the next token of each hypothesis from its last token and the cache.

        Args:
            tokens: the last tokens; ``config.bos_id`` at the first step. The N / B
                hypotheses of a sentence are adjacent.
            cache: from :meth:`empty_cache`, or the last step.
            memory: from :meth:`start`.

        Returns:
            Logits in float32, and the cache after it.

        Raises:
            InputError: a coverage penalty without attention.
        """
        x = self.target(tokens[:, None])[:, 0]
        states, (seen, weights) = self.decoder.advance(cache.states, x, memory.source)
        coverage = cache.coverage
        if coverage is not None:
            if weights is None:
                raise InputError(
                    "decoding.coverage_penalty counts attention to the source, and"
                    f" model.network={self.config.network} has none: set it to 0"
                )
            coverage += weights.astype(coverage.dtype)
        return self.logits(self.decoder.read(seen)), RecurrentCache(states, coverage)

    def _embed(
        self, table: Embedding, tokens: Int[Array, "B T"], train: bool
    ) -> Float[Array, "B T D"]:
        return keep_rows(self.embedding_dropout(table(tokens), train=train))
