"""Ensembles: several models of one vocabulary that predict each token together."""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from translation.translators import (
    LONGEST,
    equally_long,
    forward,
    random_translator,
    token_ids,
)

import runs
from jaxformer.data.records import Pair
from jaxformer.data.vocabulary import Vocabularies, Vocabulary
from jaxformer.errors import InputError
from jaxformer.search.ensemble import ensemble
from jaxformer.translation.translator import Translator

DTYPES = np.float32, np.float32, jnp.bfloat16


@functools.cache
def member(seed: int, *, source_eos: bool = True, **changes) -> Translator:
    base = random_translator(**changes)
    config = base.model.config
    parts = config, runs.random_params(config, seed=seed), base.vocabularies
    return Translator(*parts, base.decoding, source_eos=source_eos)


def mixed(
    translators: list[Translator],
    weights: np.ndarray,
    texts: list[str],
    targets: list[list[int]],
) -> np.ndarray:
    """Return the log of the mean probability of each model's
    forward pass, float64 [B, T, V].
    """
    total = np.zeros((len(texts), LONGEST, runs.vocabulary().size))
    for each, weight in zip(translators, weights / weights.sum(), strict=True):
        logits, _ = forward(each, texts, targets)
        odds = np.exp(logits - logits.max(-1, keepdims=True))
        total += weight * odds / odds.sum(-1, keepdims=True)
    return np.log(total)


def chosen(table: np.ndarray, targets: list[list[int]]) -> list[np.ndarray]:
    return [
        row[np.arange(len(ids)), ids] for row, ids in zip(table, targets, strict=True)
    ]


@pytest.mark.parametrize("weighted", [False, True])
def test_probabilities_are_averaged(weighted):
    """The step returns the logarithm of the weighted mean of probabilities in float32
    for logits of any dtype, and updates the cache of each model.
    """
    rng = np.random.default_rng(11)
    tables = [rng.normal(size=(7, 7), scale=scale) for scale in (1, 4, 0.1)]
    tables[1][:, 5] = -np.inf
    tables = [table.astype(dtype) for table, dtype in zip(tables, DTYPES, strict=True)]
    weights = rng.random(3, np.float32) if weighted else np.ones(3)
    steps = [
        lambda tokens, cache, table=table: (jnp.asarray(table)[tokens], cache + 1)
        for table in tables
    ]
    step = ensemble(steps, weights if weighted else None)
    tokens = rng.integers(0, 7, 4)
    caches = tuple(np.full(4, 10 * number) for number in range(3))
    found, after = jax.jit(step)(tokens, caches)
    odds = [np.exp(table[tokens].astype(np.float64)) for table in tables]
    shares = [each / each.sum(-1, keepdims=True) for each in odds]
    expected = np.log(np.average(shares, axis=0, weights=weights))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)
    np.testing.assert_array_equal(after, np.asarray(caches) + 1)


@pytest.mark.parametrize(
    ("beam_size", "weights"), [(1, None), (4, [0.7, 0.3])], ids=["greedy", "beam"]
)
def test_log_probability_is_that_of_the_mixture(beam_size, weights):
    """Searches and scores report what forward passes of all models give; the models
    differ in size and dtype.
    """
    models = [
        random_translator(),
        member(3, d_model=16, dtype="bfloat16", max_length=100),
    ]
    together, texts = Translator.ensemble(models, weights), equally_long()
    shares = np.array(weights or [1.0, 1.0])
    found = [best for (best,) in together.search(texts, beam_size=beam_size)]
    ids = [token_ids(models[0], hypothesis) for hypothesis in found]
    table = mixed(models, shares, texts, ids)
    expected = [values.sum() for values in chosen(table, ids)]
    values = [hypothesis.log_probability for hypothesis in found]
    np.testing.assert_allclose(values, expected, rtol=3e-3, atol=3e-2)
    if beam_size == 1:
        # Each token is the most probable of the mixture, or as good as it.
        table[:, :, [runs.vocabulary().pad_id, runs.vocabulary().bos_id]] = -np.inf
        for row, own in zip(table, chosen(table, ids), strict=True):
            assert (row.max(-1)[: len(own)] - own).max() < 3e-2
        return
    targets = texts[::-1]
    ids = [together.codec.encode_targets([target])[0] for target in targets]
    pairs = [Pair(*pair) for pair in zip(texts, targets, strict=True)]
    scores = [score.log_probability for score in together.score(pairs)]
    expected = [each.sum() for each in chosen(mixed(models, shares, texts, ids), ids)]
    np.testing.assert_allclose(scores, expected, rtol=3e-3, atol=3e-2)


def test_the_smallest_model_sets_the_limits():
    """Sources that one of the models has no positions for are refused."""
    together = Translator.ensemble([random_translator(), member(3, max_length=16)])
    assert together.models.positions == 16
    refuse = dataclasses.replace(together.decoding, long_sources="refuse")
    with pytest.raises(InputError, match="the model has 16 positions"):
        together.translate(runs.sentences(1, shortest=18), decoding=refuse)


def test_what_does_not_go_together_is_refused():
    """Vocabularies, conventions of sources and shapes of the output are compared; the
    error names both values.
    """
    first = random_translator()
    texts = [text for pair in runs.pairs()[:100] for text in pair]
    vocabulary = Vocabulary.train(texts, 300)
    both = Vocabularies(vocabulary, vocabulary)
    stranger = Translator(first.model.config, first.params, both, first.decoding)
    other = f"a vocabulary of hash .* and model 2 has {both.hash[:12]}: combine"
    for second, message in (
        (stranger, other),
        (member(2, source_eos=False), "data.source_eos True and model 2 has False"),
        (member(2, vocabulary_size=448), "vocabulary_size 400 and model 2 has 448"),
        (Translator.ensemble([first, first]), "not another ensemble"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            Translator.ensemble([first, second])
        assert "\n" not in str(caught.value)
    for weights in ([1.0], [0.0, 0.0], [-1.0, 2.0], [math.nan, 1.0]):
        with pytest.raises(InputError, match="weights"):
            Translator.ensemble([first, first], weights)
    with pytest.raises(InputError, match="at least one"):
        Translator.ensemble([])
