"""What a model says of given pairs of sentences, by one forward pass."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.data.records import Pair
from jaxformer.errors import InputError
from jaxformer.models.seq2seq import AttentionWeights, Transformer
from jaxformer.search.config import DecodingConfig
from jaxformer.search.ensemble import mean_log_probabilities
from jaxformer.translation.batch import batches, pad, round_width, row_count
from jaxformer.translation.codec import Codec, not_a_number, number_words
from jaxformer.translation.models import Models
from jaxformer.translation.results import Alignment, Attention, PairScore
from jaxformer.typing import Array, Float, Int, PyTree


def choose_layer(layer: int | None, layers: int) -> int:
    """Return the decoder layer whose attention aligns, counted from 1.

    By default the one before the last, which aligns best among those of the paper's
    model: Garg et al. 2019, "Jointly Learning to Align and Translate with Transformer
    Models".

    Raises:
        InputError: there is no such layer.
    """
    if layer is None:
        return max(1, layers - 1)
    if not 1 <= layer <= layers:
        raise InputError(
            f"the decoder has layers 1 to {layers}, and none {layer}: choose another"
            " alignment layer"
        )
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
    """Read translations once more, all their tokens at a time, and take the
    cross-attention of a layer.

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
            pad(
                [pair[side] for pair in part],
                shape,
                round_width(longest, config.max_length),
                config.pad_id,
            )
            for side, longest in (
                (side, max(len(pair[side]) for pair in part)) for side in (0, 1)
            )
        )
        weights = np.asarray(_weights(model, params, source, target, layer))
        found += [_name(codec, *pair, weights[row]) for row, pair in enumerate(part)]
    return found


def _name(
    codec: Codec, source: list[int], target: list[int], weights: np.ndarray
) -> Alignment:
    """Cut the weights of a pair out of its padding and say what the rows and the
    columns are.
    """
    sides = codec.vocabularies
    ends = [
        (each.pad_id, each.bos_id, each.eos_id) for each in (sides.source, sides.target)
    ]
    return Alignment(
        sides.source.pieces(source),
        weights[: len(target), : len(source)].copy(),
        number_words(sides.source, source, (*ends[0], *codec.before)),
        number_words(sides.target, target, ends[1], unknown_alone=True),
    )


@functools.partial(jax.jit, static_argnums=(0, 4))
def _weights(
    model: Transformer,
    params: PyTree,
    source: Int[Array, "B S"],
    target: Int[Array, "B T"],
    layer: int,
) -> Float[Array, "B T S"]:
    # The logits and the layers above are pruned.
    weights = cast(
        Any, model.apply({"params": params}, source, target, method="forward")
    )[1]
    return weights.cross[layer - 1].mean(axis=1)


def score(
    models: Models, codec: Codec, pairs: Sequence[Pair], decoding: DecodingConfig
) -> list[PairScore]:
    """Return the log-probability of each target under its source, in batches as large
    as ``decoding`` says.

    Raises:
        InputError: a sentence has more tokens than the model has positions, or its
            log-probability is NaN.
    """
    sources = codec.encode_sources([pair.source for pair in pairs])
    targets = codec.encode_targets([pair.target for pair in pairs])
    results = [PairScore(0.0, 0)] * len(pairs)
    longest = [
        max(len(source), len(target))
        for source, target in zip(sources, targets, strict=True)
    ]
    pad_id = models.models[0].config.pad_id
    for indices, most in batches(
        longest, decoding.batch_size, decoding.tokens_per_batch, codec.positions
    ):
        width, rows = (
            round_width(longest[indices[0]], codec.positions),
            row_count(len(indices), most),
        )
        source = pad([sources[i] for i in indices], rows, width, pad_id)
        target = pad([targets[i] for i in indices], rows, width, pad_id)
        totals = np.asarray(
            _score(models.models, models.params, models.weights, source, target)
        )
        broken = [index for row, index in enumerate(indices) if np.isnan(totals[row])]
        if broken:
            raise not_a_number("source", min(broken) + 1)
        for row, index in enumerate(indices):
            results[index] = PairScore(float(totals[row]), len(targets[index]))
    return results


def attend(
    model: Transformer, params: PyTree, codec: Codec, source: str, target: str
) -> Attention:
    """Give all attention weights of a pair.

    Args:
        model: that attends.
        params: of the model, its whole tree.
        codec: of the model.
        source: a sentence.
        target: its translation.

    Raises:
        InputError: a sentence has more tokens than the model has positions.
    """
    (source_ids,), (target_ids,) = (
        codec.encode_sources([source]),
        codec.encode_targets([target]),
    )
    pair = (np.asarray([ids], np.int32) for ids in (source_ids, target_ids))
    weights = _attention(model, params, *pair)
    encoder, decoder, cross = (
        np.concatenate([np.asarray(layer) for layer in kind]) for kind in weights
    )
    sides = codec.vocabularies
    return Attention(
        sides.source.pieces(source_ids),
        sides.target.pieces(target_ids),
        sides.target.pieces([model.config.bos_id, *target_ids[:-1]]),
        encoder,
        decoder,
        cross,
    )


@functools.partial(jax.jit, static_argnums=0)
def _score(
    models: tuple[Transformer, ...],
    params: tuple[PyTree, ...],
    weights: Float[Array, " M"] | None,
    source: Int[Array, "B S"],
    target: Int[Array, "B T"],
) -> Float[Array, " B"]:
    logits = [
        cast(Array, model.apply({"params": own}, source, target))
        for model, own in zip(models, params, strict=True)
    ]
    log_probabilities = mean_log_probabilities(logits, weights)
    chosen = jnp.take_along_axis(log_probabilities, target[..., None], axis=-1)[..., 0]
    return jnp.where(target != models[0].config.pad_id, chosen, 0.0).sum(axis=-1)


@functools.partial(jax.jit, static_argnums=0)
def _attention(
    model: Transformer,
    params: PyTree,
    source: Int[Array, "B S"],
    target: Int[Array, "B T"],
) -> AttentionWeights:
    return cast(Any, model.apply({"params": params}, source, target, method="forward"))[
        1
    ]
