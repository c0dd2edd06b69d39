"""The attention before "Attention Is All You Need" as a Linen module."""

from __future__ import annotations

import functools

from flax import linen as nn

from jaxformer.errors import InputError
from jaxformer.functional import earlier_attention as functional
from jaxformer.nn.initializers import projection
from jaxformer.typing import Array, Bool, Float

KINDS = ("additive", "dot", "general", "concat")
"""Bahdanau et al. 2015, and the three of Luong et al. 2015."""


class EarlierAttention(nn.Module):
    """One head of attention with unscaled scores, without projections of values and
    output; see :mod:`jaxformer.functional.earlier_attention` for parameters.

    Attributes:
        kind: one of :data:`KINDS`.
        width: of the hidden layer of ``additive`` and ``concat``.

    Raises:
        InputError: an unknown kind, or ``dot`` of queries and a memory of two widths.
    """

    kind: str
    width: int = 0

    @nn.compact
    def __call__(
        self,
        query: Float[Array, "B T D"],
        memory: Float[Array, "B S E"],
        mask: Bool[Array, "#B #T S"] | None = None,
    ) -> tuple[Float[Array, "B T E"], Float[Array, "B T S"]]:
        """Attend from queries, such as the states of a decoder, to a memory; return the
        contexts and the weights.

        Args:
            query: the states.
            memory: what they attend to.
            mask: True = may attend; axes of size 1 broadcast. One of padding is
                [B, 1, S].

        Raises:
            InputError: a mask of numbers, or one that does not fit.
        """
        if self.kind not in KINDS:
            raise InputError(
                f"the kind of attention is one of {', '.join(KINDS)}, not {self.kind!r}"
            )
        d, e, a = query.shape[-1], memory.shape[-1], self.width
        if self.kind == "dot" and d != e:
            raise InputError(
                f"dot attention needs one width, not queries of {d} and a memory of"
                f" {e}: take kind=general"
            )
        shapes = {
            "additive": {"state": (d, a), "memory": (e, a), "energy": (a, 1)},
            "concat": {"both": (d + e, a), "energy": (a, 1)},
            "general": {"state": (d, e)},
        }
        params = {
            name: self.param(name, projection, shape, 1, False)
            for name, shape in shapes.get(self.kind, {}).items()
        }
        score = {
            "additive": functools.partial(functional.additive_scores, params),
            "concat": functools.partial(functional.concat_scores, params),
            "general": functools.partial(functional.general_scores, params),
            "dot": functional.dot_scores,
        }[self.kind]
        return functional.attend_by_scores(score(query, memory), memory, mask)
