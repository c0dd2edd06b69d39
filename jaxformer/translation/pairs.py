"""Scores, alignments and attention of given pairs, by one forward pass."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxformer.data.records import Pair
from jaxformer.errors import InputError
from jaxformer.models.base import AttentionWeights, EncoderDecoder
from jaxformer.search.config import DecodingConfig
from jaxformer.search.ensemble import mean_log_probabilities
from jaxformer.translation.batch import Shape, batches, pad, power_of_two, round_width
from jaxformer.translation.codec import Codec, find_nan, number_words, raise_first
from jaxformer.translation.compiled import count_workers, in_order
from jaxformer.translation.models import Models
from jaxformer.translation.options import check_text
from jaxformer.translation.results import Alignment, Attention, PairScore
from jaxformer.typing import Array, Float, Int, PyTree


def align(
    models: Models,
    codec: Codec,
    pairs: Sequence[tuple[list[int], list[int]]],
    layer: int,
    shape: Shape,
) -> list[Alignment]:
    """Return the cross-attention of a layer of the first model, by a forward pass over
    the translations.

    Args:
        models: that translated.
        codec: of the models.
        pairs: tokens of source and translation.
        layer: of the decoder, counted from 1.
        shape: of the search. All batches have its sizes if it says how long aligned
            translations are; else one of few.
    """
    model, config = models.models[0], models.models[0].config
    found: list[Alignment] = []
    for start in range(0, len(pairs), shape.rows):
        part = pairs[start : start + shape.rows]
        count = shape.rows if shape.aligned else power_of_two(len(part))
        sides = []
        for place, ids in enumerate(zip(*part, strict=True)):
            longest = max(map(len, ids))
            width = round_width(longest, config.max_length)
            if shape.aligned:
                widths = shape.aligned if place else (shape.width,)
                width = next(each for each in widths if each >= longest)
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
    _, weights = _forward(model, params, source, target)
    return cast(Array, weights.cross[layer - 1]).mean(axis=1)


def score(
    models: Models,
    codec: Codec,
    pairs: Sequence[Pair],
    decoding: DecodingConfig,
    shape: Shape | None = None,
) -> list[PairScore]:
    """Return the log-probability of each target given its source, in batches of the
    size of ``decoding``.

    Args:
        models: one, or an ensemble.
        codec: of the models.
        pairs: sources and targets.
        decoding: the sizes of batches.
        shape: of one batch that holds all pairs; None: several of few shapes.

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
    workers = count_workers(models.devices)
    sizes = decoding.batch_size, decoding.tokens_per_batch, codec.positions
    groups = [*batches(longest, *sizes, workers=workers)]
    if shape:
        groups = [([*range(len(pairs))], shape.rows)]

    def run(group: tuple[list[int], int]) -> tuple[list[int], np.ndarray]:
        indices, rows = group
        longer = longest[indices[0]]
        width = shape.width if shape else round_width(longer, codec.positions)
        both = (
            pad([side[i] for i in indices], rows, width, pad_id)
            for side in (sources, targets)
        )
        given = models.models, models.params, models.weights
        totals = np.asarray(_score(*given, *both, skip))
        raise_first(find_nan(totals, indices))
        return indices, totals

    for indices, totals in in_order(run, groups, min(workers, len(groups))):
        for row, index in enumerate(indices):
            results[index] = PairScore(float(totals[row]), len(targets[index]) - skip)
    return results


Candidates: TypeAlias = list[list[tuple[int, float]]]
"""For each token of a target the most probable tokens in its place, the best first,
with natural logarithms of their probabilities.
"""


def attend(
    models: Models,
    codec: Codec,
    source: str,
    target: str,
    *,
    width: int | None = None,
    k: int = 0,
) -> tuple[Attention, Candidates]:
    """Return all attention weights of a pair, and what else was probable, by one
    forward pass.

    Args:
        models: the first one's attention, and the candidates of all together.
        codec: of the models.
        source: a sentence.
        target: its translation.
        width: tokens that each side is padded to; None: one of few.
        k: candidates at each place.

    Raises:
        InputError: a sentence has more tokens than the model has positions, or the
            model has one stack.
    """
    model = models.models[0]
    if not isinstance(model, EncoderDecoder):
        raise InputError(
            "the attention of pairs needs a model of both stacks, and this has one"
        )
    (source_ids,) = codec.encode_sources([source])
    (target_ids,) = codec.encode_targets([target])
    pair, sides = (source_ids, target_ids), codec.vocabularies
    weights, best = jax.device_get(_read(*_padded(models, pair, width), k, True))
    queries = {"encoder": source_ids, "decoder": target_ids, "cross": target_ids}
    keys = {**queries, "cross": source_ids}
    found = Attention(
        sides.source.pieces(source_ids),
        sides.target.pieces(target_ids),
        sides.target.pieces([model.config.bos_id, *target_ids[:-1]]),
        **{
            kind: _stack(getattr(weights, kind))[
                ..., : len(queries[kind]), : len(keys[kind])
            ].copy()
            for kind in queries
        },
    )
    return found, _list(best, len(target_ids))


def candidates(
    models: Models,
    pair: tuple[list[int], list[int]],
    k: int,
    *,
    width: int | None = None,
) -> Candidates:
    """Return the most probable tokens at each place of a target.

    Args:
        models: that predict.
        pair: tokens of source and target.
        k: candidates at each place.
        width: tokens that each side is padded to; None: one of few.
    """
    _, best = jax.device_get(_read(*_padded(models, pair, width), k, False))
    return _list(best, len(pair[1]))


def _padded(
    models: Models, pair: tuple[list[int], list[int]], width: int | None
) -> tuple[Any, ...]:
    """Return the models and a pair as the first arguments of :func:`_read`."""
    width = width or round_width(max(map(len, pair)), models.positions)
    pad_id = models.models[0].config.pad_id
    sides = (pad([ids], 1, width, pad_id) for ids in pair)
    return models.models, models.params, models.weights, *sides


def _list(best: tuple[np.ndarray, np.ndarray] | None, length: int) -> Candidates:
    if best is None:
        return [[] for _ in range(length)]
    values, tokens = (each[:length].tolist() for each in best)
    return [list(zip(*own, strict=True)) for own in zip(tokens, values, strict=True)]


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


@functools.partial(jax.jit, static_argnums=(0, 5, 6))
def _read(
    models: tuple[EncoderDecoder, ...],
    params: tuple[PyTree, ...],
    weights: Float[Array, " M"] | None,
    source: Int[Array, "1 S"],
    target: Int[Array, "1 T"],
    k: int,
    attention: bool,
) -> tuple[
    AttentionWeights | None, tuple[Float[Array, "T k"], Int[Array, "T k"]] | None
]:
    """Return the attention of the first model, and the best tokens of all together."""
    found = [
        _forward(model, own, source, target)
        for model, own in zip(models, params, strict=True)
    ]
    best = None
    if k:
        logits = [own[0] for own, _ in found]
        best = lax.top_k(mean_log_probabilities(logits, weights), k)
    return found[0][1] if attention else None, best


def _forward(
    model: EncoderDecoder,
    params: PyTree,
    source: Int[Array, "B S"],
    target: Int[Array, "B T"],
) -> tuple[Float[Array, "B T V"], AttentionWeights]:
    found = model.apply({"params": params}, source, target, method="forward")
    return cast(tuple[Array, AttentionWeights], found)
