"""Tokens to vectors and back: embedding tables and position encodings as Linen
modules.
"""

from __future__ import annotations

import jax.numpy as jnp
from flax import linen as nn

from jaxformer.errors import InputError
from jaxformer.functional import layers, positions
from jaxformer.nn import initializers
from jaxformer.typing import Array, Float, Int


class Embedding(nn.Module):
    """A table of token vectors, used for the input and, where tied, for the output
    (section 3.4).

    Attributes:
        vocabulary_size: rows.
        d_model: columns.
        dtype: type of the vectors; the table is float32.
        scale: whether vectors are multiplied by the square root of d_model.
    """

    vocabulary_size: int
    d_model: int
    dtype: jnp.dtype = jnp.dtype("float32")
    scale: bool = True

    def setup(self) -> None:
        """Create the table."""
        self.table = self.param(
            "table", initializers.embedding, (self.vocabulary_size, self.d_model)
        )

    def __call__(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """Look up tokens, scaled at most once by the square root of d_model."""
        return layers.embed(self.table, tokens, scale=self.scale).astype(self.dtype)

    def logits(
        self, x: Float[Array, "*B D"], bias: Float[Array, " V"] | None = None
    ) -> Float[Array, "*B V"]:
        """Give each token its logit, float32, without scale."""
        return layers.project_to_vocabulary(self.table, x, bias)


LAYOUTS = {
    "sinusoidal": "interleaved",
    "sinusoidal_halves": "halves",
    "sinusoidal_concatenated": "concatenated",
}
"""The layout of sinusoidal positions, by the name of their kind."""

KINDS = (*LAYOUTS, "learned")


class Positions(nn.Module):
    """Encodings of positions (section 3.5): sinusoidal in one of three layouts, or
    learned.

    ``sinusoidal`` is the paper's, ``sinusoidal_halves`` that of tensor2tensor,
    ``sinusoidal_concatenated`` that of Marian's models at Hugging Face; see
    :func:`jaxformer.functional.positions.sinusoidal`.

    Attributes:
        kind: which encoding.
        d_model: width.
        max_length: most positions that a sequence may have; the rows of the learned
            table.
        scale: whether learned positions are multiplied by the square root of d_model,
            as the embeddings are.
    """

    kind: str
    d_model: int
    max_length: int
    scale: bool = True

    def setup(self) -> None:
        """Create the table of learned positions, if that is the kind.

        Raises:
            InputError: an unknown kind.
        """
        if self.kind not in KINDS:
            raise InputError(
                f"the kind of positions is one of {', '.join(KINDS)}, not {self.kind!r}"
            )
        if self.kind == "learned":
            self.table = self.param(
                "table", initializers.embedding, (self.max_length, self.d_model)
            )

    def __call__(
        self, place: Int[Array, "*B T"], *, packed: bool = False
    ) -> Float[Array, "*B T D"]:
        """Encode positions counted from 0, float32.

        Args:
            place: positions, those of several rows or the same for all.
            packed: whether they restart or repeat within a row, as where several
                sequences share it, or as the rows and columns of an image do. The row
                may then be longer than ``max_length``; positions may not, and learned
                ones beyond the table are NaN.

        Raises:
            InputError: a sequence has more of them than ``max_length``.
        """
        if not packed and place.shape[-1] > self.max_length:
            raise InputError(
                f"a sequence of {place.shape[-1]} tokens is longer than the model's"
                f" {self.max_length} positions; shorten it or train with a larger"
                " model.max_length"
            )
        if self.kind == "learned":
            # The embeddings have deviation 1 after their scaling; learned positions
            # begin at the same scale.
            rows = positions.learned(self.table, place)
            return rows * self.d_model**0.5 if self.scale else rows
        return positions.sinusoidal(place, self.d_model, layout=LAYOUTS[self.kind])
