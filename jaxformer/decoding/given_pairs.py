"""What a model says of given pairs of sentences, by one forward pass."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.data.records import Pair
from jaxformer.decoding import windows
from jaxformer.decoding.batch_search import pad, round_width, row_count
from jaxformer.decoding.codec import Codec
from jaxformer.decoding.config import DecodingConfig
from jaxformer.decoding.ensemble import mean_log_probabilities
from jaxformer.decoding.models import Models
from jaxformer.decoding.results import Attention, PairScore
from jaxformer.models.seq2seq import AttentionWeights, Transformer
from jaxformer.typing import Array, Float, Int, PyTree


def score(models: Models, codec: Codec, pairs: Sequence[Pair], decoding: DecodingConfig) -> list[PairScore]:
    """Give the log-probability of each target under its source, in batches as large as ``decoding`` says.

    Raises:
        InputError: a sentence has more tokens than the model has positions.
    """
    sources = codec.encode_sources([pair.source for pair in pairs])
    targets = codec.encode_targets([pair.target for pair in pairs])
    results = [PairScore(0.0, 0)] * len(pairs)
    longest = [max(len(source), len(target)) for source, target in zip(sources, targets, strict=True)]
    pad_id = models.models[0].config.pad_id
    for indices, most in windows.batches(longest, decoding.batch_size, decoding.tokens_per_batch, codec.positions):
        width, rows = round_width(longest[indices[0]], codec.positions), row_count(len(indices), most)
        source = pad([sources[i] for i in indices], rows, width, pad_id)
        target = pad([targets[i] for i in indices], rows, width, pad_id)
        totals = np.asarray(_score(models.models, models.params, models.weights, source, target))
        for row, index in enumerate(indices):
            results[index] = PairScore(float(totals[row]), len(targets[index]))
    return results


def attend(model: Transformer, params: PyTree, codec: Codec, source: str, target: str) -> Attention:
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
    (source_ids,), (target_ids,) = codec.encode_sources([source]), codec.encode_targets([target])
    pair = (np.asarray([ids], np.int32) for ids in (source_ids, target_ids))
    weights = _attention(model, params, *pair)
    encoder, decoder, cross = (np.concatenate([np.asarray(layer) for layer in kind]) for kind in weights)
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
        cast(Array, model.apply({"params": own}, source, target)) for model, own in zip(models, params, strict=True)
    ]
    log_probabilities = mean_log_probabilities(logits, weights)
    chosen = jnp.take_along_axis(log_probabilities, target[..., None], axis=-1)[..., 0]
    return jnp.where(target != models[0].config.pad_id, chosen, 0.0).sum(axis=-1)


@functools.partial(jax.jit, static_argnums=0)
def _attention(
    model: Transformer, params: PyTree, source: Int[Array, "B S"], target: Int[Array, "B T"]
) -> AttentionWeights:
    return cast(Any, model.apply({"params": params}, source, target, method="forward"))[1]
