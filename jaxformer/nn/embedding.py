"""Embedding tables and position encodings as Linen modules."""

from __future__ import annotations

import jax.numpy as jnp
from flax import linen as nn

from jaxformer.errors import InputError
from jaxformer.functional import init_embedding, positions, relative_positions
from jaxformer.kernels.matmul import embed, project_to_vocabulary
from jaxformer.nn.sharding import sum_gradient_once
from jaxformer.typing import Array, Float, Int


class Embedding(nn.Module):
    """A table of token vectors for the input and, if tied, the output (section 3.4).

    Attributes:
        vocabulary_size: rows.
        d_model: columns.
        dtype: of the vectors; the table is float32.
        scale: whether vectors are multiplied by the square root of d_model.
    """

    vocabulary_size: int
    d_model: int
    dtype: jnp.dtype = jnp.dtype("float32")
    scale: bool = True

    def setup(self) -> None:
        """Create the table."""
        self.table = self.param(
            "table", init_embedding, (self.vocabulary_size, self.d_model)
        )

    def __call__(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """Look up tokens; scale by the square root of d_model."""
        table = sum_gradient_once(self.table)
        return embed(table, tokens, scale=self.scale).astype(self.dtype)

    def logits(
        self, x: Float[Array, "*B D"], bias: Float[Array, " V"] | None = None
    ) -> Float[Array, "*B V"]:
        """Compute the logit of each token in float32, without scale."""
        return project_to_vocabulary(self.table, x, bias)


LAYOUTS = {
    "sinusoidal": "interleaved",
    "sinusoidal_halves": "halves",
    "sinusoidal_concatenated": "concatenated",
}
"""The layouts of sinusoidal positions by kind."""

IN_ATTENTION = ("rotary", "none")
"""Kinds that add nothing to embeddings: attention rotates queries and keys, or there is
at most a :class:`PositionBias`.
"""

KINDS = (*LAYOUTS, "learned", *IN_ATTENTION)


class Positions(nn.Module):
    """Position encodings (section 3.5): sinusoidal in one of three layouts, learned, or
    none that are added to embeddings.

    ``sinusoidal`` is the paper's, ``sinusoidal_halves`` tensor2tensor's, and
    ``sinusoidal_concatenated`` that of Marian's models at Hugging Face; see
    :func:`jaxformer.functional.positions.sinusoidal`.

    Attributes:
        kind: one of :data:`KINDS`.
        d_model: width.
        max_length: most positions of a sequence; None: any number. Learned positions
            need it.
        scale: whether learned positions are multiplied by the square root of d_model,
            like the embeddings.
        offset: the number of the first position, as in fairseq: sines and cosines are
            those of ``offset`` + p, and learned position p is row ``offset`` + p of a
            table with ``offset`` more rows.
    """

    kind: str
    d_model: int
    max_length: int | None = None
    scale: bool = True
    offset: int = 0

    def setup(self) -> None:
        """Create the table of learned positions.

        Raises:
            InputError: an unknown kind, or a learned table without a length.
        """
        if self.kind not in KINDS:
            raise InputError(
                f"the kind of positions is one of {', '.join(KINDS)}, not {self.kind!r}"
            )
        if self.kind == "learned":
            if self.max_length is None:
                raise InputError("learned positions need max_length, their number")
            rows = self.offset + self.max_length
            self.table = self.param("table", init_embedding, (rows, self.d_model))

    def __call__(
        self, place: Int[Array, "*B T"], *, packed: bool = False
    ) -> Float[Array, "*B T D"]:
        """Encode positions counted from 0, float32.

        Args:
            place: positions, for each row or the same for all.
            packed: whether positions restart or repeat in a row, as in rows of several
                sequences, or as the rows and columns of an image. Such a row may be
                longer than ``max_length``. Learned positions outside the table are NaN.

        Raises:
            InputError: a sequence longer than ``max_length``, or positions that are in
                attention.
        """
        self._check_length(place, packed)
        if self.kind in IN_ATTENTION:
            raise InputError(
                f"{self.kind} positions have no encodings to add: call encode(place)"
            )
        if self.offset:
            place = place + self.offset
        if self.kind == "learned":
            # Scaled embeddings have standard deviation 1; so have learned positions.
            rows = positions.learned(self.table, place)
            return rows * self.d_model**0.5 if self.scale else rows
        return positions.sinusoidal(place, self.d_model, layout=LAYOUTS[self.kind])

    def encode(self, place: Int[Array, "*B T"]) -> Float[Array, "*B T D"] | None:
        """Return what is added to embeddings; None for positions in attention.

        Args:
            place: positions [T], the same for all rows, or [B, T] of packed rows.

        Raises:
            InputError: rows that are not packed and longer than ``max_length``.
        """
        packed = place.ndim > 1
        if self.kind not in IN_ATTENTION:
            return self(place, packed=packed)
        self._check_length(place, packed)
        return None

    def _check_length(self, place: Int[Array, "*B T"], packed: bool) -> None:
        most = self.max_length
        if most is not None and not packed and place.shape[-1] > most:
            raise InputError(
                f"a sequence of {place.shape[-1]} tokens is longer than the model's"
                f" {most} positions; shorten it or train with a larger"
                " model.max_length"
            )


class PositionBias(nn.Module):
    """A bias of attention scores by the distance of query and key.

    Attributes:
        kind: ``relative``, learned for ranges of distances, zero at first (T5; Raffel
            et al. 2020), ``alibi``, which has no parameters (Press et al. 2022), or
            ``none``.
        num_heads: heads, each with its own.
    """

    kind: str
    num_heads: int

    @nn.compact
    def __call__(
        self, queries: Int[Array, " T"], keys: Int[Array, " S"], *, causal: bool
    ) -> Float[Array, "1 H T S"] | None:
        """Compute the bias between positions; None where the kind is ``none``.

        Args:
            queries: their positions.
            keys: their positions.
            causal: whether keys are never after queries: then all ``relative`` ranges
                are of those before.
        """
        if self.kind == "none":
            return None
        if self.kind == "alibi":
            return relative_positions.alibi(self.num_heads, queries, keys)
        table = self.param(
            "table",
            nn.initializers.zeros_init(),
            (relative_positions.BUCKETS, self.num_heads),
            jnp.float32,
        )
        return relative_positions.relative_bias(table, queries, keys, causal=causal)
