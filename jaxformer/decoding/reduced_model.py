"""A model that reads and writes a part of its target vocabulary."""

from __future__ import annotations

import dataclasses

from jaxformer.functional.weights import take_rows
from jaxformer.models.seq2seq import Transformer
from jaxformer.typing import Array, Int, Parameters


def reduce_vocabulary(
    model: Transformer, params: Parameters, tokens: Int[Array, " L"]
) -> tuple[Transformer, Parameters]:
    """Give a model and parameters for :meth:`~jaxformer.models.seq2seq.Transformer.step` over some target tokens.

    Token i of that model is ``tokens[i]`` of the given one, and its logits are those of the given one. What it does
    with sources is of no use: :meth:`~jaxformer.models.seq2seq.Transformer.start` is the given model's.

    Args:
        model: over the whole vocabulary.
        params: of the model.
        tokens: those that are kept; the ids of padding and begin of sentence keep their numbers among them.
    """
    config, kept = model.config, dict(params)
    tied = config.tied_embeddings
    # One table for both sides becomes one for the target alone: the source is read by the whole.
    table = kept["embedding" if tied == "all" else "target_embedding"]["table"]
    kept["target_embedding"] = {"table": take_rows(table, tokens)}
    if tied == "none":
        kept["output"] = take_rows(kept["output"], tokens)
    if config.output_bias:
        kept["logits"] = {"bias": kept["logits"]["bias"][tokens]}
    reduced = dataclasses.replace(
        config,
        vocabulary_size=tokens.shape[0],
        source_vocabulary_size=config.source_vocabulary_size or config.vocabulary_size,
        tied_embeddings="none" if tied == "none" else "target",
    )
    return Transformer(reduced), kept
