"""Multi-head attention as a Linen module: it owns the projections and calls the pure
functions.
"""

from __future__ import annotations

from flax import linen as nn

from jaxformer.errors import InputError
from jaxformer.functional import attention as functional
from jaxformer.functional.attention import KeysValues, Mask
from jaxformer.functional.cache import (
    KeyValueStore,
    Spans,
    attend_to_spans,
    attend_to_store,
    project_to_store,
)
from jaxformer.nn.initializers import projection
from jaxformer.typing import Array, Bool, Float, Int, Key


def check_heads(d_model: int, num_heads: int, d_k: int | None, d_v: int | None) -> None:
    """Check that heads have a width.

    Raises:
        InputError: no heads, or heads that do not divide d_model without d_k and d_v.
    """
    if num_heads < 1:
        raise InputError(f"num_heads must be at least 1, not {num_heads}")
    if (d_k is None or d_v is None) and d_model % num_heads:
        raise InputError(
            f"d_model {d_model} is not divisible by num_heads {num_heads}; set d_k and"
            " d_v too"
        )


class MultiHeadAttention(nn.Module):
    """Several heads of attention in parallel (Vaswani et al. 2017, section 3.2.2).

    Parameters: ``query``, ``key`` and ``value`` with kernels [D, H, K] and biases [H,
    K], ``output`` with a kernel [H, K, D] and a bias [D], all float32. The computation
    is in the dtype of the input.

    Attributes:
        d_model: width of input and output.
        num_heads: heads.
        d_k: width of a head's queries and keys; d_model / num_heads where None.
        d_v: width of a head's values; d_model / num_heads where None.
        dropout_rate: of the attention weights; 0 in the paper.

    Raises:
        InputError: heads that do not divide the width.
    """

    d_model: int
    num_heads: int
    d_k: int | None = None
    d_v: int | None = None
    dropout_rate: float = 0.0

    def setup(self) -> None:
        """Create the four projections."""
        check_heads(self.d_model, self.num_heads, self.d_k, self.d_v)
        d_k = self.d_k or self.d_model // self.num_heads
        d_v = self.d_v or self.d_model // self.num_heads
        width, heads = self.d_model, self.num_heads
        self.projections = {
            "query": self.param("query", projection, (width, heads, d_k)),
            "key": self.param("key", projection, (width, heads, d_k)),
            "value": self.param("value", projection, (width, heads, d_v)),
            "output": self.param("output", projection, (heads, d_v, width), 2),
        }

    def __call__(
        self,
        x: Float[Array, "B T D"],
        memory: Float[Array, "B S D"],
        mask: Mask = None,
        *,
        train: bool = False,
        backend: str = "plain",
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B H T S"] | None]:
        """Attend from ``x`` to ``memory``; return the output and the weights, which a
        ``backend`` other than ``plain`` does not compute.
        """
        return functional.multi_head_attention(
            self.projections,
            x,
            memory,
            mask,
            dropout_rate=self.dropout_rate,
            dropout_key=self._dropout_key(train),
            backend=backend,
        )

    def _dropout_key(self, train: bool) -> Key | None:
        return self.make_rng("dropout") if train and self.dropout_rate > 0.0 else None

    def keys_values(self, memory: Float[Array, "B S D"]) -> KeysValues:
        """Project a memory once, for many calls of :meth:`attend`."""
        return functional.project_keys_values(self.projections, memory)

    def attend(
        self,
        x: Float[Array, "B T D"],
        memory: KeysValues,
        mask: Mask = None,
        *,
        train: bool = False,
        backend: str = "plain",
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B H T S"] | None]:
        """Attend to projected keys and values; return the output and the weights."""
        return functional.attend(
            self.projections,
            x,
            memory,
            mask,
            dropout_rate=self.dropout_rate,
            dropout_key=self._dropout_key(train),
            backend=backend,
        )

    def store(self, memory: Float[Array, "B S D"]) -> KeyValueStore:
        """Project a memory once, for many calls of :meth:`attend_to_store`."""
        return project_to_store(self.projections, memory)

    def attend_to_store(
        self,
        x: Float[Array, "B W D"],
        memory: KeyValueStore,
        mask: Bool[Array, "#B 1 #W M"],
    ) -> tuple[Float[Array, "B W D"], Float[Array, "B H W M"]]:
        """Attend from the new position of W hypotheses to stored keys and values;
        return the output and the weights.
        """
        return attend_to_store(self.projections, x, memory, mask)

    def attend_to_spans(
        self,
        x: Float[Array, "B W D"],
        memory: Spans,
        mask: Bool[Array, "#B 1 #W M"],
        position: Int[Array, ""],
    ) -> Float[Array, "B W D"]:
        """Attend from the new position of W hypotheses to the cache; return the
        output.
        """
        return attend_to_spans(self.projections, x, memory, mask, position)
