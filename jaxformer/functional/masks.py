"""Masks: boolean, True = may attend, of shape [B, 1, T, S] with axes of size 1 where
nothing varies.

A mask is combined with ``&`` and becomes numbers only inside attention.
"""

from __future__ import annotations

import dataclasses
import functools
import operator

import jax
import jax.numpy as jnp

from jaxformer.errors import InputError
from jaxformer.typing import Array, Bool, Int


def padding_mask(tokens: Int[Array, "B S"], pad_id: int) -> Bool[Array, "B 1 1 S"]:
    """Allow every key that is not padding.

    For the tokens ``[[5, 6, 0]]`` and pad id 0, each query sees ``1 1 0``.
    """
    return (tokens != pad_id)[:, None, None, :]


def causal_mask(length: int) -> Bool[Array, "1 1 T T"]:
    """Allow each position itself and those before it (section 3.2.3).

    For length 3, rows being queries::

        1 0 0
        1 1 0
        1 1 1
    """
    return jnp.tri(length, dtype=bool)[None, None]


def segment_mask(
    query_segments: Int[Array, "B T"], key_segments: Int[Array, "B S"]
) -> Bool[Array, "B 1 T S"]:
    """Allow keys of the query's own segment, for rows that hold several packed
    sentences.

    For the segments ``[1, 1, 2]`` on both sides::

        1 1 0
        1 1 0
        0 0 1
    """
    return (query_segments[:, :, None] == key_segments[:, None, :])[:, None]


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("keys", "queries"),
    meta_fields=("causal",),
)
@dataclasses.dataclass(frozen=True)
class SegmentMask:
    """A mask by segments, from which a kernel computes what it needs of it.

    A query attends to the keys of its own segment, never to those of segment 0, which
    is padding.

    Attributes:
        keys: segment of each key, or whether it is one. Without segments of queries
            cuDNN takes only keys that are padded on the right. Inside ``jit``, where
            values are unknown, it returns NaN for other rows.
        queries: segment of each query; None: each may attend to every key but padding.
        causal: whether a query attends to no later position; both count from 0.
    """

    keys: Int[Array, "B S"] | Bool[Array, "B S"]
    queries: Int[Array, "B T"] | None = None
    causal: bool = False

    def __and__(self, other: object) -> None:
        """Refuse to be combined: a kernel takes no array."""
        raise InputError(
            "a SegmentMask takes no other mask by & or combine: give it causal=True and"
            " segments, or combine its dense(length)"
        )

    __rand__ = __and__

    def dense(self, length: int) -> Bool[Array, "B 1 #T S"]:
        """Return the mask as an array.

        Args:
            length: number of queries.
        """
        allowed = self.keys.astype(bool)[:, None, None, :]
        if self.queries is not None:
            allowed = allowed & segment_mask(self.queries, self.keys)
        if not self.causal:
            return allowed
        return allowed & jnp.tri(length, self.keys.shape[1], dtype=bool)[None, None]


def combine(*masks: Bool[Array, "..."] | None) -> Bool[Array, "..."] | None:
    """Allow what every mask allows; None allows everything."""
    given = [mask for mask in masks if mask is not None]
    return functools.reduce(operator.and_, given) if given else None
