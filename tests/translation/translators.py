"""Translators for the tests of text in and text out, and an oracle that scores what
they wrote.
"""

from __future__ import annotations

import functools
from typing import cast

import jax
import numpy as np

import jaxformer as jf
import runs
from jaxformer.translation.results import Hypothesis
from jaxformer.translation.translator import Translator
from jaxformer.typing import PyTree

# The batch size of these translators is 8: whatever has at least five sentences has the
# same few compiled shapes.
# tokens of the sentences that are scored again, so that their batch has no padding
LENGTH = 12
LONGEST = 40
PADDED = 448  # a vocabulary of 400 and columns that mean nothing


@functools.cache
def random_translator(**changes) -> Translator:
    return runs.translator(**changes)


@functools.cache
def trained_translator() -> Translator:
    return Translator.load(runs.reversal_run())


@functools.cache
def equally_long() -> list[str]:
    return runs.sentences(6, longest=LENGTH, shortest=LENGTH)


@functools.cache
def many() -> list[str]:
    return runs.sentences(29, longest=16)


def noisy_params(config: jf.TransformerConfig, seed: int) -> PyTree:
    """Draw parameters of any model, none of them 0 or 1."""
    model, token = jf.Transformer(config), jax.ShapeDtypeStruct((1, 1), np.int32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), token, token)["params"]
    rng = np.random.default_rng(seed)

    def draw(path, x):
        noise = 0.2 * rng.standard_normal(x.shape).astype(np.float32)
        return jax.numpy.asarray((path[-1].key == "scale") + noise)

    return jax.tree_util.tree_map_with_path(draw, shapes)


@functools.partial(jax.jit, static_argnums=0)
def forward(
    model: jf.Transformer, params: PyTree, source: np.ndarray, target: np.ndarray
) -> jax.Array:
    return cast(jax.Array, model.apply({"params": params}, source, target))


def source_ids(translator: Translator, text: str) -> list[int]:
    vocabulary = translator.vocabularies.source
    return vocabulary.encode(text) + [vocabulary.eos_id] * translator.source_eos


def token_ids(translator: Translator, hypothesis: Hypothesis) -> list[int]:
    vocabulary = translator.vocabularies.target
    by_piece = {
        piece: id_
        for id_, piece in enumerate(vocabulary.pieces(range(vocabulary.size)))
    }
    return [by_piece[piece] for piece in hypothesis.tokens]


def teacher_forced(
    translator: Translator, texts: list[str], targets: list[list[int]]
) -> np.ndarray:
    """Return log-probabilities, float64 [B, T, V], of sources without padding; what
    follows a target cannot be seen.
    """
    eos_id = translator.vocabularies.target.eos_id
    width = min(LONGEST, translator.model.config.max_length)
    source = np.array([source_ids(translator, text) for text in texts], np.int32)
    target = np.array([(ids + [eos_id] * width)[:width] for ids in targets], np.int32)
    logits = np.asarray(
        forward(translator.model, translator.params, source, target), np.float64
    )
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def rescore(
    translator: Translator, texts: list[str], hypotheses: list[Hypothesis]
) -> np.ndarray:
    ids = [token_ids(translator, hypothesis) for hypothesis in hypotheses]
    table = teacher_forced(translator, texts, ids)
    return np.array(
        [
            table[row, np.arange(len(tokens)), tokens].sum()
            for row, tokens in enumerate(ids)
        ]
    )
