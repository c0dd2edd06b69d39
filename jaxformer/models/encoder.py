"""An encoder-only model with heads for its tasks (Devlin et al. 2019)."""

from __future__ import annotations

import jax.numpy as jnp

from jaxformer.models import checks
from jaxformer.models.base import OneStack
from jaxformer.nn.heads import Classifier, Pooler, WordTransform
from jaxformer.typing import Array, Float, Int

# The methods that each head of the configuration has.
_HEADS = {
    "none": (),
    "pooled": ("pool",),
    "words": ("words",),
    "words_and_next": ("words", "next"),
    "classification": ("classify",),
    "tagging": ("tag",),
    "span": ("find_span",),
}


class TextEncoder(OneStack):
    """An encoder-only Transformer: each position reads the whole text (Devlin et
    al. 2019, section 3).

    ``config.num_decoder_layers`` is 0, and ``config.head`` says what reads the output.
    Rows are padded on the right with ``config.pad_id`` and may have several packed
    texts. With labels as targets (classification, tagging) the tokens of the text are
    ``config.source_vocabulary_size``, and ``config.vocabulary_size`` is the number of
    labels.

    Example:
        >>> config = TransformerConfig(100, num_encoder_layers=2, num_decoder_layers=0)
        >>> model, tokens = TextEncoder(config), jnp.ones((2, 7), int)
        >>> params = model.init(jax.random.key(0), tokens)["params"]
        >>> model.apply({"params": params}, tokens).shape
        (2, 7, 512)
    """

    def setup(self) -> None:
        """Create the stack, and every head: those in use have parameters."""
        super().setup()
        config, width = self.config, self.config.d_model
        self.word_transform = WordTransform(
            width, config.head_activation, config.norm_epsilon
        )
        self.pooler = Pooler(width, config.pooler_activation)
        self.next_text = Classifier(width, 2)
        self.classifier = Classifier(width, config.vocabulary_size, config.dropout_rate)
        self.span = Classifier(width, 2)

    @property
    def reads_words(self) -> bool:
        """Whether the model predicts masked words."""
        return "words" in _HEADS[self.config.head]

    def __call__(
        self,
        tokens: Int[Array, "B S"],
        *,
        types: Int[Array, "B S"] | None = None,
        segments: Int[Array, "B S"] | None = None,
        train: bool = False,
    ) -> Float[Array, "B S D"]:
        """Encode a text.

        Args:
            tokens: padded on the right.
            types: kind of segment of each token, below ``config.segment_types``; None:
                1 after the first end of a text, as in a pair of texts, else 0.
            segments: of packed rows.
            train: whether dropout is active; it needs ``rngs={"dropout": key}``.

        Returns:
            The output of the last layer, in the compute dtype.

        Raises:
            InputError: a row longer than ``config.max_length`` (a packed one only
                outside ``jit``), or, outside ``jit``, a token id or a kind out of
                range, padding before a token or segments that do not match the tokens.
        """
        x, _ = self.hidden(tokens, types, segments, train=train)
        if self.is_initializing():  # heads draw their parameters at their first use
            for head in _HEADS[self.config.head]:
                getattr(self, head)(x)
        return x

    def hidden(
        self,
        tokens: Int[Array, "B S"],
        types: Int[Array, "B S"] | None = None,
        segments: Int[Array, "B S"] | None = None,
        *,
        train: bool = False,
        backend: str | None = None,
    ) -> tuple[Float[Array, "B S D"], list[Float[Array, "B H S S"] | None]]:
        """Return the output and the attention weights, which only the ``backend``
        ``plain`` has.
        """
        eos_id, kinds = self.config.eos_id, self.config.segment_types
        if types is not None:
            checks.check_kinds(types, kinds)
        elif segments is None and eos_id is not None and kinds > 1:
            types = _pair_types(tokens, eos_id)
        return self.run(tokens, segments, types, train=train, backend=backend)

    def words(self, x: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
        """Compute the logit of each word at (masked) positions of the output."""
        return self.logits(self.word_transform(x))

    def next(self, x: Float[Array, "B S D"]) -> Float[Array, "B 2"]:
        """Compute the logits of whether the second text follows the first (class 0) or
        is another (class 1).
        """
        return self.next_text(self.pooler(x))

    def pool(self, x: Float[Array, "B S D"]) -> Float[Array, "B D"]:
        """Return the vector of the whole text."""
        return self.pooler(x)

    def classify(
        self, x: Float[Array, "B S D"], *, train: bool = False
    ) -> Float[Array, "B V"]:
        """Compute the logit of each label of the whole text."""
        return self.classifier(self.pooler(x), train=train)

    def tag(
        self, x: Float[Array, "B S D"], *, train: bool = False
    ) -> Float[Array, "B S V"]:
        """Compute the logit of each label of each position."""
        return self.classifier(x, train=train)

    def find_span(self, x: Float[Array, "B S D"]) -> Float[Array, "B S 2"]:
        """Compute the logits of each position as the first and as the last of the
        span.
        """
        return self.span(x)


def _pair_types(tokens: Int[Array, "B S"], eos_id: int) -> Int[Array, "B S"]:
    """Count the ends of texts before each token: 0 in the first text, 1 in the second
    (Devlin et al. 2019, section 3.2).
    """
    ends = jnp.cumsum(tokens == eos_id, axis=1)[:, :-1]
    return jnp.minimum(jnp.pad(ends, ((0, 0), (1, 0))), 1)
