"""What a model attended to in the translations that a search has found."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, cast

import jax
import numpy as np

from jaxformer.decoding.batch_search import pad, round_width, row_count
from jaxformer.decoding.codec import Codec, number_words
from jaxformer.decoding.results import Alignment
from jaxformer.errors import InputError
from jaxformer.models.seq2seq import Transformer
from jaxformer.typing import Array, Float, Int, PyTree


def choose_layer(layer: int | None, layers: int) -> int:
    """Give the decoder layer whose attention aligns, counted from 1.

    By default the one before the last, which aligns best among those of the paper's model: Garg et al. 2019, "Jointly
    Learning to Align and Translate with Transformer Models".

    Raises:
        InputError: there is no such layer.
    """
    if layer is None:
        return max(1, layers - 1)
    if not 1 <= layer <= layers:
        raise InputError(f"the decoder has layers 1 to {layers}, and none {layer}: choose another alignment layer")
    return layer


def align(
    model: Transformer,
    params: PyTree,
    codec: Codec,
    pairs: Sequence[tuple[list[int], list[int]]],
    *,
    layer: int,
    rows: int,
) -> list[Alignment]:
    """Read translations once more, all their tokens at a time, and take the cross-attention of a layer.

    Args:
        model: that translated.
        params: of the model, its whole tree.
        codec: of the model.
        pairs: tokens of source and translation, as the search read and found them.
        layer: of the decoder, counted from 1.
        rows: pairs that are read together.
    """
    config = model.config
    found: list[Alignment] = []
    for start in range(0, len(pairs), rows):
        part = pairs[start : start + rows]
        shape = row_count(len(part), rows)
        source, target = (
            pad([pair[side] for pair in part], shape, round_width(longest, config.max_length), config.pad_id)
            for side, longest in ((side, max(len(pair[side]) for pair in part)) for side in (0, 1))
        )
        weights = np.asarray(_weights(model, params, source, target, layer))
        found += [_name(codec, *pair, weights[row]) for row, pair in enumerate(part)]
    return found


def _name(codec: Codec, source: list[int], target: list[int], weights: np.ndarray) -> Alignment:
    """Cut the weights of a pair out of its padding and say what the rows and the columns are."""
    sides = codec.vocabularies
    ends = [(each.pad_id, each.bos_id, each.eos_id) for each in (sides.source, sides.target)]
    return Alignment(
        sides.source.pieces(source),
        weights[: len(target), : len(source)].copy(),
        number_words(sides.source, source, (*ends[0], *codec.before)),
        number_words(sides.target, target, ends[1], unknown_alone=True),
    )


@functools.partial(jax.jit, static_argnums=(0, 4))
def _weights(
    model: Transformer, params: PyTree, source: Int[Array, "B S"], target: Int[Array, "B T"], layer: int
) -> Float[Array, "B T S"]:
    # The logits and the layers above are pruned.
    weights = cast(Any, model.apply({"params": params}, source, target, method="forward"))[1]
    return weights.cross[layer - 1].mean(axis=1)
