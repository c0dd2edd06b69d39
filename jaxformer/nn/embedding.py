"""Tokens to vectors and back: embedding tables and position encodings as Linen modules."""

from __future__ import annotations

import jax.numpy as jnp
from flax import linen as nn

from jaxformer.errors import InputError
from jaxformer.functional import layers, positions
from jaxformer.nn import initializers
from jaxformer.typing import Array, Float, Int


class Embedding(nn.Module):
    """A table of token vectors, used for the input and, where tied, for the output (section 3.4).

    Attributes:
        vocabulary_size: rows.
        d_model: columns.
        dtype: type of the vectors; the table is float32.
    """

    vocabulary_size: int
    d_model: int
    dtype: jnp.dtype = jnp.dtype("float32")

    def setup(self) -> None:
        """Create the table."""
        self.table = self.param("table", initializers.embedding, (self.vocabulary_size, self.d_model))

    def __call__(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """Look up tokens, scaled once by the square root of d_model."""
        return layers.embed(self.table, tokens).astype(self.dtype)

    def logits(self, x: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
        """Give each token its logit, float32, without bias or scale."""
        return layers.project_to_vocabulary(self.table, x)


class Positions(nn.Module):
    """Encodings of positions: ``sinusoidal`` (the paper), ``sinusoidal_halves`` (tensor2tensor) or ``learned``.

    Attributes:
        kind: which encoding.
        d_model: width.
        max_length: most positions that a sequence may have; the rows of the learned table.
    """

    kind: str
    d_model: int
    max_length: int

    def setup(self) -> None:
        """Create the table of learned positions, if that is the kind."""
        if self.kind == "learned":
            self.table = self.param("table", initializers.embedding, (self.max_length, self.d_model))

    def __call__(self, place: Int[Array, "*B T"], *, packed: bool = False) -> Float[Array, "*B T D"]:
        """Encode positions counted from 0, float32.

        Args:
            place: positions, those of several rows or the same for all.
            packed: whether they restart within a row, which may then be longer than ``max_length``; its sequences may
                not, and learned positions beyond the table are NaN.

        Raises:
            InputError: a sequence has more of them than ``max_length``.
        """
        if not packed and place.shape[-1] > self.max_length:
            raise InputError(
                f"a sequence of {place.shape[-1]} tokens is longer than the model's {self.max_length} positions; "
                "shorten it or train with a larger model.max_length"
            )
        if self.kind == "learned":
            # The embeddings have deviation 1 after their scaling; learned positions begin at the same scale.
            return positions.learned(self.table, place) * self.d_model**0.5
        layout = "halves" if self.kind == "sinusoidal_halves" else "interleaved"
        return positions.sinusoidal(place, self.d_model, layout=layout)
