"""A decoder-only language model (Radford et al. 2018, 2019)."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from jaxformer.functional.masks import SegmentMask
from jaxformer.models.base import OneStack
from jaxformer.models.cache import Cache, begin_with, empty_cache, find_slots
from jaxformer.nn.backend import choose_backend
from jaxformer.nn.cache import KeyValueStore
from jaxformer.typing import Array, Bool, Float, Int


class Prompt(NamedTuple):
    """What is known of texts that are to be continued, which end at the same position.

    Attributes:
        stores: keys and values of every layer at all positions but the last.
        read: which of them there are, since texts differ in length.
        last: the last token of each text, the input of the first step.
        shift: positions before the first token of each text.
    """

    stores: list[KeyValueStore]
    read: Bool[Array, "B P"]
    last: Int[Array, " B"]
    shift: Int[Array, " B"]


class LanguageModel(OneStack):
    """A decoder-only Transformer, without attention to an encoder: each token
    is predicted from those before it (Radford et al. 2018, section 3.1).

    ``config.num_encoder_layers`` is 0. Rows are padded on the right with
    ``config.pad_id`` and may have several packed texts, as those of
    :class:`jaxformer.Transformer`.

    Example:
        >>> config = TransformerConfig(100, num_encoder_layers=0, num_decoder_layers=2)
        >>> model, tokens = LanguageModel(config), jnp.ones((2, 7), int)
        >>> params = model.init(jax.random.key(0), tokens)["params"]
        >>> model.apply({"params": params}, tokens).shape
        (2, 7, 100)
    """

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        *,
        segments: Int[Array, "B T"] | None = None,
        train: bool = False,
    ) -> Float[Array, "B T V"]:
        """Predict each token from those before it.

        Args:
            tokens: to predict, not shifted, padded on the right. The first is predicted
                from ``config.bos_id``.
            segments: of packed rows.
            train: whether dropout is active; it needs ``rngs={"dropout": key}``.

        Returns:
            Logits in float32; those at position t depend only on the tokens before t.

        Raises:
            InputError: a row longer than ``config.max_length`` (a packed one only
                outside ``jit``), or, outside ``jit``, a token id out of range, padding
                before a token or segments that do not match the tokens.
        """
        return self.logits(self.hidden(tokens, segments, train=train)[0])

    def hidden(
        self,
        tokens: Int[Array, "B T"],
        segments: Int[Array, "B T"] | None = None,
        *,
        train: bool = False,
        backend: str | None = None,
    ) -> tuple[Float[Array, "B T D"], list[Float[Array, "B H T T"] | None]]:
        """Return the input of :meth:`logits` for each token to predict, and the
        attention weights, which only the ``backend`` ``plain`` has.
        """
        how = {"train": train, "backend": backend}
        return self.run(tokens, segments, causal=True, shift=True, **how)

    def read(
        self, tokens: Int[Array, "B T"], *, backend: str | None = None
    ) -> Float[Array, "B T V"]:
        """Predict the token after each of these, without a ``config.bos_id`` before
        them.
        """
        x, _ = self.run(tokens, causal=True, backend=backend)
        return self.logits(x)

    def start(self, prompt: Int[Array, "B T"]) -> Prompt:
        """Read texts that are to be continued (prefill).

        Args:
            prompt: padded on the right; an empty row begins with ``config.bos_id``.
        """
        self.check(self.side.table, prompt)
        if prompt.shape[1] == 1:  # attention needs a key
            padding = self.config.pad_id
            prompt = jnp.pad(prompt, ((0, 0), (0, 1)), constant_values=padding)
        length, bos_id = prompt.shape[1], self.config.bos_id
        lengths = (prompt != self.config.pad_id).sum(axis=1)
        prompt = prompt.at[:, 0].set(jnp.where(lengths == 0, bos_id, prompt[:, 0]))
        # Aligned at their ends: then distances are those of the columns.
        shift = length - jnp.maximum(lengths, 1)
        place = jnp.arange(length)[None] - shift[:, None]
        tokens = jnp.take_along_axis(prompt, jnp.maximum(place, 0), axis=1)
        read, last = (place >= 0)[:, :-1], tokens[:, -1]
        x = self.embed(self.side, tokens[:, :-1], jnp.maximum(place, 0)[:, :-1])
        how = choose_backend(self, None, length - 1, train=False)
        # cuDNN takes padding on the left only as a segment of queries.
        segments = read.astype(jnp.int32)
        seen = SegmentMask(segments, segments, causal=True)
        stores = self.stack.prefill(x, seen, backend=how)
        return Prompt(stores, read, last, shift)

    def empty_cache(
        self, memory: Prompt, rows: int, length: int, beam_size: int = 1
    ) -> Cache:
        """Allocate the cache of hypotheses for ``length`` positions after their
        prompts; see :func:`~jaxformer.models.cache.empty_cache`.
        """
        before = memory.read.shape[1]
        cache = empty_cache(self.config, rows, length, beam_size, before=before)
        return begin_with(cache, memory.stores, memory.read)

    def step(
        self, tokens: Int[Array, " N"], cache: Cache, memory: Prompt
    ) -> tuple[Float[Array, "N V"], Cache]:
        """Predict the next token of each hypothesis from its last token and the cache.

        Args:
            tokens: the last tokens; at the first step those of the prompt are taken
                instead. The N / B hypotheses of a text are adjacent.
            cache: from :meth:`empty_cache`, or the last step.
            memory: from :meth:`start`.

        Returns:
            Logits in float32, and the cache extended by one position. The caller keeps
            prompt and continuation within ``config.max_length``.
        """
        each = cache.ancestors.shape[0] // memory.last.shape[0]
        last, shift = (jnp.repeat(x, each) for x in (memory.last, memory.shift))
        tokens = jnp.where(cache.position == memory.read.shape[1], last, tokens)
        x = self.embed(self.side, tokens[:, None], (cache.position - shift)[:, None])
        ancestors, seen = find_slots(cache)
        x, spans, _ = self.stack.step(x, cache.spans, cache.position, seen)
        grown = cache._replace(
            spans=spans, ancestors=ancestors, position=cache.position + 1
        )
        return self.logits(x[:, 0]), grown
