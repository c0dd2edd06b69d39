"""Checks of inputs, with errors that name the rule; those of values run where the
values are known, outside ``jit``.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxformer.errors import InputError
from jaxformer.functional.kernels import wide_dtype
from jaxformer.typing import Array, Bool, Float, Int, PyTree

SMOOTHING_CONVENTIONS = ("others", "all")
"""How label smoothing spreads its mass: over the other tokens, or over all."""


def check_mesh(arrays: PyTree) -> None:
    """Refuse arrays that are sharded over explicit axes of a mesh, over which no
    function here says how its results are sharded.

    Raises:
        InputError: an array is.
    """
    if any(any(jax.typeof(x).sharding.spec) for x in jax.tree.leaves(arrays)):
        raise InputError(
            "an array is sharded over explicit axes of a mesh: make the mesh by"
            " jax.make_mesh with axis_types=(jax.sharding.AxisType.Auto,) * n"
        )


def check_floats(
    x: Float[Array, "..."] | Int[Array, "..."], *parameters: PyTree
) -> None:
    """Refuse integers, to which results would silently be rounded, and explicit
    shardings.

    Raises:
        InputError: the dtype is not floating point, or as :func:`check_mesh`.
    """
    check_mesh((x, parameters))
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise InputError(
            f"expected a floating-point array, not {x.dtype}: cast it, for example by"
            " astype(jnp.float32)"
        )


def check_rate(rate: float) -> None:
    """Refuse a dropout rate that is no probability, and one that drops everything.

    Raises:
        InputError: the rate is not in [0, 1).
    """
    if not 0.0 <= rate < 1.0:
        raise InputError(f"a dropout rate must be at least 0 and below 1, not {rate}")


def check_axes(x: tuple[int, ...], kernel: tuple[int, ...], contract: int) -> None:
    """Refuse an input whose last axes do not match the first axes of a kernel.

    Raises:
        InputError: the shapes do not match.
    """
    found, wanted = x[len(x) - contract :], kernel[:contract]
    if found != wanted:
        raise InputError(
            f"an input of shape {x} does not fit parameters of shape {kernel}: its"
            f" width, {_times(found)}, must be the {_times(wanted)} that they take"
        )


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(str(size) for size in shape)


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


def check_positions(logits: tuple[int, ...], *others: tuple[int, ...]) -> None:
    """Refuse targets and weights of another shape than the positions: broadcasting
    would repeat them.

    Raises:
        InputError: a shape is not that of the logits without its last axis.
    """
    for other in others:
        if other != logits[:-1]:
            raise InputError(
                "targets and weights have one number a position: with logits of shape"
                f" {logits} the shape {logits[:-1]}, not {other}"
            )


def check_targets(
    targets: Int[Array, "*B"],
    weights: Bool[Array, "*B"] | Float[Array, "*B"],
    vocabulary_size: int,
) -> Int[Array, "*B"]:
    """Refuse known targets out of range with a weight above 0.

    Args:
        targets: ids, of any shape.
        weights: of the same shape.
        vocabulary_size: V.

    Returns:
        The ids in at least 32 bits.

    Raises:
        InputError: a target with a weight above 0 is not in 0 to V - 1, or targets that
            are no integers.
    """
    if not jnp.issubdtype(targets.dtype, jnp.integer):
        raise InputError(f"targets are integers, not {targets.dtype}: cast them")
    if not isinstance(targets, Tracer) and not isinstance(weights, Tracer):
        known = np.asarray(targets)
        wrong = known[
            ((known < 0) | (known >= vocabulary_size)) & (np.asarray(weights) > 0)
        ]
        if wrong.size:
            raise InputError(
                f"target {wrong[0]} is not in 0 to {vocabulary_size - 1}; encode with"
                " the vocabulary of the logits, or set the weight of such positions"
                " to 0"
            )
    # Ids in 8 bits would wrap around in a larger vocabulary.
    return targets.astype(jnp.int32) if targets.dtype.itemsize < 4 else targets


def check_weights(
    weights: Bool[Array, "*B"] | Float[Array, "*B"], *logits: Float[Array, "..."]
) -> Float[Array, "*B"]:
    """Refuse known weights below 0; unknown ones become NaN.

    Returns:
        The weights in the dtype of sums over the logits.

    Raises:
        InputError: a known weight is below 0.
    """
    wide = weights.astype(wide_dtype(weights, *logits))
    if weights.dtype == bool:
        return wide
    if not isinstance(weights, Tracer):
        least = np.asarray(weights).min(initial=0)
        if least < 0:
            raise InputError(f"a weight is at least 0, not {least:g}: set it to 0")
    return jnp.where(wide < 0.0, jnp.nan, wide)


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
