"""Translators for the tests of text in and text out, and an oracle that scores what
they wrote.
"""

from __future__ import annotations

import copy
import functools
from typing import Any

import jax
import numpy as np

import jaxformer as jf
import runs
from jaxformer.translation.results import Hypothesis
from jaxformer.translation.translator import Translator
from jaxformer.typing import PyTree

# The batch size of these translators is 8: five to eight sentences of at most 16 tokens
# have one compiled shape.
LENGTH = 12  # of sentences that are scored again, so that their batch has no padding
LONGEST = 40
PADDED = 448  # a vocabulary of 400 and columns that mean nothing

random_translator = functools.cache(runs.translator)


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
def _forward(model: jf.Transformer, params: PyTree, *pair: jax.Array) -> Any:
    return model.apply({"params": params}, *pair, method="forward")


def forward(
    translator: Translator, texts: list[str], targets: list[list[int]]
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the logits, float64 [B, T, V], and the cross-attention of each layer,
    [B, H, T, S], for sources without padding. What follows a target cannot be seen.
    """
    eos_id = translator.vocabularies.target.eos_id
    width = min(LONGEST, translator.model.config.max_length)
    source = np.array([source_ids(translator, text) for text in texts], np.int32)
    target = np.array([(ids + [eos_id] * width)[:width] for ids in targets], np.int32)
    pair = jax.device_put((source, target))
    logits, weights = _forward(translator.model, translator.params, *pair)
    return np.asarray(logits, np.float64), [np.asarray(x) for x in weights.cross]


def source_ids(translator: Translator, text: str) -> list[int]:
    vocabulary = translator.vocabularies.source
    return vocabulary.encode(text) + [vocabulary.eos_id] * translator.source_eos


def token_ids(translator: Translator, hypothesis: Hypothesis) -> list[int]:
    vocabulary = translator.vocabularies.target
    pieces = vocabulary.pieces(range(vocabulary.size))
    by_piece = {piece: id_ for id_, piece in enumerate(pieces)}
    return [by_piece[piece] for piece in hypothesis.tokens]


def teacher_forced(
    translator: Translator, texts: list[str], targets: list[list[int]]
) -> np.ndarray:
    """Return log-probabilities, float64 [B, T, V]."""
    logits, _ = forward(translator, texts, targets)
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def assert_scores_are_the_models(
    translator: Translator, texts: list[str], hypotheses: list[Hypothesis]
) -> None:
    """Compare log-probabilities, also those of each token, with a forward pass."""
    ids = [token_ids(translator, hypothesis) for hypothesis in hypotheses]
    table = teacher_forced(translator, texts, ids)
    for row, tokens, found in zip(table, ids, hypotheses, strict=True):
        expected = row[np.arange(len(tokens)), tokens]
        each = found.token_log_probabilities
        np.testing.assert_allclose(each, expected, rtol=1e-4, atol=1e-4)
        total = found.log_probability
        np.testing.assert_allclose(total, expected.sum(), rtol=1e-4, atol=1e-4)


def texts_and_tokens(found: list[list[Hypothesis]]) -> list[list[tuple]]:
    return [[(each.text, each.tokens, each.finished) for each in own] for own in found]


def broken_for_last(plain: Translator, texts: list[str]) -> Translator:
    """Return a copy of a translator that computes NaN for the last of some texts: the
    embedding of a token that only this text has is NaN.
    """
    encode = runs.vocabulary().encode
    before = {token for text in texts[:-1] for token in encode(text)}
    token = next(each for each in encode(texts[-1]) if each not in before)
    table = np.array(plain.params["source_embedding"]["table"])
    table[token] = np.nan
    params = {**plain.params, "source_embedding": {"table": jax.numpy.asarray(table)}}
    broken = copy.copy(plain)
    broken.models = plain.models._replace(params=(params,))
    return broken
