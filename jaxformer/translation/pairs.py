"""Scores, alignments and attention of given pairs, by one forward pass."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.data.records import Pair
from jaxformer.errors import InputError
from jaxformer.models.seq2seq import AttentionWeights, EncoderDecoder, Model
from jaxformer.search.config import DecodingConfig
from jaxformer.search.ensemble import mean_log_probabilities
from jaxformer.translation.batch import batches, pad, power_of_two, round_width
from jaxformer.translation.codec import Codec, check_numbers, number_words
from jaxformer.translation.models import Models
from jaxformer.translation.options import check_text
from jaxformer.translation.results import Alignment, Attention, PairScore
from jaxformer.typing import Array, Float, Int, PyTree


def align(
    models: Models,
    codec: Codec,
    pairs: Sequence[tuple[list[int], list[int]]],
    layer: int,
    rows: int,
) -> list[Alignment]:
    """Return the cross-attention of a layer of the first model, by a forward pass over
    the translations.

    Args:
        models: that translated.
        codec: of the models.
        pairs: tokens of source and translation.
        layer: of the decoder, counted from 1.
        rows: pairs of a batch.
    """
    model, config = models.models[0], models.models[0].config
    found: list[Alignment] = []
    for start in range(0, len(pairs), rows):
        part = pairs[start : start + rows]
        count, sides = min(power_of_two(len(part)), rows), []
        for ids in zip(*part, strict=True):
            width = round_width(max(map(len, ids)), config.max_length)
            sides.append(pad(ids, count, width, config.pad_id))
        weights = np.asarray(_cross_attention(model, models.params[0], *sides, layer))
        found += [_cut(codec, *pair, weights[row]) for row, pair in enumerate(part)]
    return found


def _cut(
    codec: Codec, source: list[int], target: list[int], weights: np.ndarray
) -> Alignment:
    """Remove the padding and the target's frame from the weights of a pair, and label
    rows and columns.
    """
    sides, frame = codec.vocabularies, codec.frame
    skip, own = len(frame.target_before), (*frame.source_before, *frame.source_after)
    return Alignment(
        sides.source.pieces(source),
        weights[skip : len(target), : len(source)].copy(),
        number_words(sides.source, source, own),
        number_words(sides.target, target[skip:], unknown_alone=True),
    )


@functools.partial(jax.jit, static_argnums=(0, 4))
def _cross_attention(
    model: EncoderDecoder,
    params: PyTree,
    source: Int[Array, "B S"],
    target: Int[Array, "B T"],
    layer: int,
) -> Float[Array, "B T S"]:
    # jit prunes the logits and the layers above.
    return _attention(model, params, source, target).cross[layer - 1].mean(axis=1)


def score(
    models: Models, codec: Codec, pairs: Sequence[Pair], decoding: DecodingConfig
) -> list[PairScore]:
    """Return the log-probability of each target given its source, in batches of the
    size of ``decoding``.

    Raises:
        InputError: a sentence is longer than the model's positions or not a string, or
            its log-probability is NaN.
    """
    for place, pair in enumerate(pairs):
        check_text(f"pairs[{place}].source", pair.source)
        check_text(f"pairs[{place}].target", pair.target)
    sources = codec.encode_sources([pair.source for pair in pairs])
    targets = codec.encode_targets([pair.target for pair in pairs])
    results = [PairScore(0.0, 0)] * len(pairs)
    longest = [max(map(len, pair)) for pair in zip(sources, targets, strict=True)]
    pad_id = models.models[0].config.pad_id
    skip = len(codec.frame.target_before)
    for indices, most in batches(
        longest, decoding.batch_size, decoding.tokens_per_batch, codec.positions
    ):
        width = round_width(longest[indices[0]], codec.positions)
        count = min(power_of_two(len(indices)), most)
        both = (
            pad([side[i] for i in indices], count, width, pad_id)
            for side in (sources, targets)
        )
        totals = np.asarray(
            _score(models.models, models.params, models.weights, *both, skip)
        )
        check_numbers(totals, indices)
        for row, index in enumerate(indices):
            results[index] = PairScore(float(totals[row]), len(targets[index]) - skip)
    return results


def attend(
    model: Model, params: PyTree, codec: Codec, source: str, target: str
) -> Attention:
    """Return all attention weights of a pair.

    Args:
        model: that attends.
        params: of the model, the whole tree.
        codec: of the model.
        source: a sentence.
        target: its translation.

    Raises:
        InputError: a sentence has more tokens than the model has positions, or the
            model has one stack.
    """
    if not isinstance(model, EncoderDecoder):
        raise InputError(
            "the attention of pairs needs a model of both stacks, and this has one"
        )
    (source_ids,) = codec.encode_sources([source])
    (target_ids,) = codec.encode_targets([target])
    pair = (np.asarray([ids], np.int32) for ids in (source_ids, target_ids))
    weights = jax.device_get(_attention(model, params, *pair))
    sides = codec.vocabularies
    return Attention(
        sides.source.pieces(source_ids),
        sides.target.pieces(target_ids),
        sides.target.pieces([model.config.bos_id, *target_ids[:-1]]),
        *map(_stack, weights),
    )


def _stack(layers: list[np.ndarray]) -> np.ndarray:
    """Stack the weights of layers of one sentence; of no layers, an empty array."""
    return np.concatenate(layers) if layers else np.zeros((0, 0, 0, 0), np.float32)


@functools.partial(jax.jit, static_argnums=(0, 5))
def _score(
    models: tuple[EncoderDecoder, ...],
    params: tuple[PyTree, ...],
    weights: Float[Array, " M"] | None,
    source: Int[Array, "B S"],
    target: Int[Array, "B T"],
    skip: int,
) -> Float[Array, " B"]:
    """Sum the log-probabilities of the tokens after the first ``skip``."""
    logits = [
        cast(Array, model.apply({"params": own}, source, target))
        for model, own in zip(models, params, strict=True)
    ]
    log_probabilities = mean_log_probabilities(logits, weights)
    chosen = jnp.take_along_axis(log_probabilities, target[..., None], axis=-1)[..., 0]
    counted = jnp.where(target != models[0].config.pad_id, chosen, 0.0)
    return counted[:, skip:].sum(axis=-1)


@functools.partial(jax.jit, static_argnums=0)
def _attention(
    model: EncoderDecoder,
    params: PyTree,
    source: Int[Array, "B S"],
    target: Int[Array, "B T"],
) -> AttentionWeights:
    found = model.apply({"params": params}, source, target, method="forward")
    return cast(tuple[Array, AttentionWeights], found)[1]
