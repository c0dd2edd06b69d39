"""Checks of tokens and segments, with errors that name the rule; those of values run
where the values are known, outside ``jit``.
"""

from __future__ import annotations

import numpy as np
from jax.core import Tracer

from jaxformer.errors import InputError
from jaxformer.typing import Array, Int


def check_tokens(tokens: Int[Array, "..."], vocabulary_size: int) -> None:
    """Refuse token ids outside the vocabulary.

    Raises:
        InputError: an id is negative or not below ``vocabulary_size``; a gather would
            silently give NaN or wrap.
    """
    if isinstance(tokens, Tracer) or tokens.size == 0:
        return
    known = np.asarray(tokens)  # jnp would trace the minimum of a constant inside jit
    low, high = int(known.min()), int(known.max())
    if low < 0 or high >= vocabulary_size:
        wrong = low if low < 0 else high
        raise InputError(
            f"token id {wrong} is not in 0 to {vocabulary_size - 1}; "
            "encode with the vocabulary that the model was made for"
        )


def check_kinds(types: Int[Array, "..."], kinds: int) -> None:
    """Refuse known kinds of segments that a model has no embedding for.

    Raises:
        InputError: a kind is not below ``kinds``; without any it must be 0.
    """
    if isinstance(types, Tracer) or types.size == 0:
        return
    known = np.asarray(types)
    wrong = known[(known < 0) | (known >= max(kinds, 1))]
    if wrong.size:
        raise InputError(
            f"a token has segment {wrong[0]}, and this model has"
            f" model.segment_types={kinds}: give 0 to {max(kinds, 1) - 1}, or no types"
        )


def check_right_padding(tokens: Int[Array, "B S"], pad_id: int) -> None:
    """Refuse rows with a token after padding.

    Raises:
        InputError: a row is padded on the left or in the middle; its positions would
            silently be wrong.
    """
    if isinstance(tokens, Tracer) or tokens.size == 0:
        return
    padding = np.asarray(tokens) == pad_id
    wrong = (padding[:, :-1] & ~padding[:, 1:]).any(axis=1)
    if wrong.any():
        raise InputError(
            f"pad sequences on the right: row {int(wrong.argmax())} has a token after"
            f" padding (id {pad_id}); move the padding to the end"
        )


def check_segments(
    segments: Int[Array, "B S"],
    tokens: Int[Array, "B2 S2"],
    *,
    pad_id: int,
    max_length: int,
) -> None:
    """Refuse segments that do not match the tokens.

    Raises:
        InputError: the shapes differ; padding is not in segment 0, or a token is; the
            numbers of a row decrease, so that two segments could have one number; or a
            segment has more than ``max_length`` tokens.
    """
    if segments.shape != tokens.shape:
        raise InputError(
            "segments number the tokens: give them the shape of the tokens,"
            f" {tokens.shape}, not {segments.shape}"
        )
    if isinstance(segments, Tracer) or isinstance(tokens, Tracer) or segments.size == 0:
        return
    known, padding = np.asarray(segments), np.asarray(tokens) == pad_id
    wrong = ((known == 0) != padding).any(axis=1)
    wrong |= ((known[:, 1:] < known[:, :-1]) & ~padding[:, 1:]).any(axis=1) | (
        known < 0
    ).any(axis=1)
    if wrong.any():
        raise InputError(
            f"number the segments of a row from 1 upwards, and padding (id {pad_id}) as"
            f" 0: row {int(wrong.argmax())} is numbered otherwise"
        )
    index = np.arange(known.shape[1])
    begins = np.pad(
        known[:, 1:] != known[:, :-1], ((0, 0), (1, 0)), constant_values=True
    )
    position = index - np.maximum.accumulate(np.where(begins, index, 0), axis=1)
    longest = int(np.where(padding, -1, position).max()) + 1
    if longest > max_length:
        raise InputError(
            f"a packed sequence of {longest} tokens is longer than the model's"
            f" {max_length} positions; shorten it or train with a larger"
            " model.max_length"
        )
