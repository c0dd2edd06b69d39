"""Scores, alignments and attention of given pairs, by one forward pass."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxformer.data.records import Pair
from jaxformer.models.base import AttentionWeights, EncoderDecoder
from jaxformer.search.config import DecodingConfig
from jaxformer.search.ensemble import mean_log_probabilities
from jaxformer.translation.batch import batches, pad, power_of_two, round_width
from jaxformer.translation.codec import Codec, find_nan, number_words, raise_first
from jaxformer.translation.compiled import count_workers, in_order
from jaxformer.translation.models import Models
from jaxformer.translation.options import check_text, choose_layer
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
        rows: most pairs of a batch.
    """
    model = models.models[0]
    found: list[Alignment] = []
    for start in range(0, len(pairs), rows):
        part = pairs[start : start + rows]
        sides = []
        for ids in zip(*part, strict=True):
            width = round_width(max(map(len, ids)), model.config.max_length)
            sides.append(pad(ids, power_of_two(len(part)), width, model.config.pad_id))
        weights = np.asarray(_cross_attention(model, models.params[0], *sides, layer))
        found += [link(codec, *pair, weights[row]) for row, pair in enumerate(part)]
    return found


def link(
    codec: Codec,
    source: list[int],
    target: list[int],
    weights: Float[np.ndarray, "T S"],
) -> Alignment:
    """Return the alignment of a pair of tokens by its cross-attention, without padding
    and the target's frame.
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
) -> list[PairScore]:
    """Return the log-probability of each target given its source, in batches of the
    size of ``decoding``.

    Args:
        models: one, or an ensemble.
        codec: of the models.
        pairs: sources and targets.
        decoding: the sizes of batches.

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

    def run(group: tuple[list[int], int]) -> tuple[list[int], np.ndarray]:
        indices, rows = group
        width = round_width(longest[indices[0]], codec.positions)
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


class Reading(NamedTuple):
    """What a forward pass over a pair shows; the first model has the attention."""

    links: Float[Array, "T S"] | None
    """The cross-attention of the layer that aligns, mean over its heads; None without.
    """
    log_probabilities: Float[Array, " T"]
    """Of the tokens of the target."""
    next: tuple[Float[Array, " n"], Int[Array, " n"]]
    """The most probable tokens at the place asked for: log-probabilities and tokens."""
    likely: tuple[Float[Array, "N k"], Int[Array, "N k"]]
    """The same of the first places, fewer of each."""
    encoder: Float[Array, "L H N N"]
    """Self-attention between the first tokens."""
    decoder: Float[Array, "L H N N"]
    """As ``encoder``, of the target."""
    cross: Float[Array, "L H N N"]
    """As ``encoder``, from target to source."""


def read(
    models: Models,
    source: Sequence[int],
    target: Sequence[int],
    *,
    width: int,
    layer: int = 1,
    place: int = 0,
    first: int | None = None,
) -> Reading:
    """Read a pair of tokens, by one program for all pairs of a width.

    Args:
        models: one, or an ensemble.
        source: of a sentence.
        target: of its translation.
        width: tokens that each side is padded to.
        layer: of the decoder that aligns, counted from 1.
        place: of the token of the target that ``next`` is about.
        first: tokens of each side whose attention is shown; None: all.
    """
    pad_id = models.models[0].config.pad_id
    sides = (pad([list(ids)], 1, width, pad_id) for ids in (source, target))
    given = models.models, models.params, models.weights
    return _read(*given, *sides, place, layer, first)


def show_attention(
    models: Models, codec: Codec, source: list[int], target: list[int], found: Reading
) -> Attention:
    """Return all attention weights of a pair of tokens, labelled."""
    sides, bos_id = codec.vocabularies, models.models[0].config.bos_id
    queries = {"encoder": source, "decoder": target, "cross": target}
    keys = {**queries, "cross": source}
    weights = {
        kind: np.asarray(getattr(found, kind))[
            ..., : len(queries[kind]), : len(keys[kind])
        ]
        for kind in queries
    }
    return Attention(
        sides.source.pieces(source),
        sides.target.pieces(target),
        sides.target.pieces([bos_id, *target[:-1]]),
        **weights,
    )


def attend(models: Models, codec: Codec, source: str, target: str) -> Attention:
    """Return all attention weights of a pair, by one forward pass.

    Args:
        models: the first one's attention.
        codec: of the models.
        source: a sentence.
        target: its translation.

    Raises:
        InputError: a sentence has more tokens than the model has positions, or the
            model has no attention to a source.
    """
    choose_layer(True, None, models.models[0].config.attention_layers)
    (own,), (other,) = codec.encode_sources([source]), codec.encode_targets([target])
    width = round_width(max(len(own), len(other)), models.positions)
    return show_attention(
        models, codec, own, other, read(models, own, other, width=width)
    )


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


# Most probable tokens that a reading names: at one place, and at each of the first.
_NEXT, MOST_LIKELY = 64, 8


@functools.partial(jax.jit, static_argnums=(0, 6, 7))
def _read(
    models: tuple[EncoderDecoder, ...],
    params: tuple[PyTree, ...],
    weights: Float[Array, " M"] | None,
    source: Int[Array, "1 S"],
    target: Int[Array, "1 T"],
    place: int,
    layer: int,
    first: int | None,
) -> Reading:
    passes = [
        _forward(model, own, source, target)
        for model, own in zip(models, params, strict=True)
    ]
    values = mean_log_probabilities([logits for logits, _ in passes], weights)[0]
    found, size = passes[0][1], values.shape[-1]
    maps = {
        kind: jnp.concatenate(layers)[..., :first, :first]
        if (layers := getattr(found, kind))
        else jnp.zeros((0, 0, 0, 0))
        for kind in found._fields
    }
    return Reading(
        cast(Array, found.cross[layer - 1])[0].mean(axis=0) if found.cross else None,
        jnp.take_along_axis(values, target[0][:, None], axis=-1)[:, 0],
        lax.top_k(values[place], min(_NEXT, size)),
        lax.top_k(values[:first], min(MOST_LIKELY, size)),
        **maps,
    )


def _forward(
    model: EncoderDecoder,
    params: PyTree,
    source: Int[Array, "B S"],
    target: Int[Array, "B T"],
) -> tuple[Float[Array, "B T V"], AttentionWeights]:
    found = model.apply({"params": params}, source, target, method="forward")
    return cast(tuple[Array, AttentionWeights], found)
