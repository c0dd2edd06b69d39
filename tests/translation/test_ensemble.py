"""Ensembles: several models of one vocabulary that predict each token together."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from translation.translators import (
    LONGEST,
    equally_long,
    forward,
    many,
    source_ids,
    token_ids,
)

import runs
from jaxformer.data.records import Pair
from jaxformer.data.vocabulary import Vocabularies, Vocabulary
from jaxformer.errors import InputError
from jaxformer.search.beam import beam_search
from jaxformer.search.ensemble import ensemble, mean_log_probabilities
from jaxformer.search.rules import SearchRules
from jaxformer.search.single import greedy_search
from jaxformer.translation.translator import Hypothesis, Translator

EOS = 1


def member(seed: int, **changes) -> Translator:
    base = runs.translator(**changes)
    params = runs.random_params(base.model.config, seed=seed)
    return Translator(
        base.model.config,
        params,
        base.vocabularies,
        base.decoding,
        source_eos=base.source_eos,
    )


def members() -> list[Translator]:
    """Models of different size, of which one adds up in bfloat16."""
    return [
        member(2),
        member(3, d_model=16, num_decoder_layers=2),
        member(4, dtype="bfloat16", max_length=100),
    ]


def mixed(
    translators: list[Translator],
    weights: np.ndarray,
    texts: list[str],
    targets: list[list[int]],
) -> np.ndarray:
    """Average the probabilities of each model's forward pass, in float64."""
    eos_id = runs.vocabulary().eos_id
    source = np.array([source_ids(translators[0], text) for text in texts], np.int32)
    target = np.array(
        [(ids + [eos_id] * LONGEST)[:LONGEST] for ids in targets], np.int32
    )
    total = np.zeros((*target.shape, runs.vocabulary().size))
    for translator, weight in zip(translators, weights / weights.sum(), strict=True):
        logits = np.asarray(
            forward(translator.model, translator.params, source, target), np.float64
        )
        odds = np.exp(logits - logits.max(-1, keepdims=True))
        total += weight * odds / odds.sum(-1, keepdims=True)
    return np.log(total)


# The pure function


@pytest.mark.parametrize("weighted", [False, True])
def test_probabilities_are_averaged(weighted):
    """The step gives the logarithm of the weighted mean of probabilities, and each
    model its own cache back.
    """
    generator = np.random.default_rng(11)
    tables = [
        generator.normal(size=(7, 7)).astype(np.float32) * scale
        for scale in (1, 4, 0.1)
    ]
    tables[1][:, 5] = -np.inf
    weights = (
        generator.random(3).astype(np.float32) if weighted else np.ones(3, np.float32)
    )

    def step_of(table):
        return lambda tokens, cache: (jnp.asarray(table)[tokens], cache + 1)

    tokens = jnp.asarray(generator.integers(0, 7, 4))
    caches = tuple(jnp.full(4, 10 * n, jnp.int32) for n in range(3))
    step = ensemble(
        [step_of(table) for table in tables], jnp.asarray(weights) if weighted else None
    )
    found, after = step(tokens, caches)
    expected = np.zeros((4, 7))
    for row, token in enumerate(np.asarray(tokens)):
        for table, weight in zip(tables, weights, strict=True):
            odds = [math.exp(x) for x in table[token].tolist()]
            expected[row] += weight / weights.sum() * np.array(odds) / sum(odds)
    np.testing.assert_allclose(
        np.asarray(found), np.log(expected), rtol=2e-5, atol=2e-5
    )
    assert [np.asarray(cache).tolist() for cache in after] == [
        [10 * n + 1] * 4 for n in range(3)
    ]


def test_half_precision_is_added_up_in_float32():
    """Logits of any type give float32, and a model alone what it says itself."""
    logits = jnp.asarray(np.random.default_rng(3).normal(size=(5, 9)), jnp.bfloat16)
    found = mean_log_probabilities([logits])
    assert found.dtype == jnp.float32
    np.testing.assert_array_equal(found, jax.nn.log_softmax(logits.astype(jnp.float32)))


@pytest.mark.parametrize("beam_size", [1, 3])
def test_searches_follow_the_mixture(beam_size):
    """A search over the ensemble finds what it finds over the table of the averaged
    probabilities.
    """
    generator = np.random.default_rng(5)
    for _ in range(8):
        tables = [
            jax.nn.softmax(jnp.asarray(generator.normal(size=(6, 6)) * 2, jnp.float32))
            for _ in range(3)
        ]
        single = jnp.log(sum(tables[1:], tables[0]) / 3)
        steps = [
            lambda tokens, cache, table=table: (jnp.log(table)[tokens], cache)
            for table in tables
        ]
        ids = {"bos_id": 0, "eos_id": EOS, "pad_id": 0}
        rules = SearchRules(
            max_lengths=jnp.array([7, 4]),
            alpha=0.6,
            length=7,
            beam_size=beam_size,
            **ids,
        )
        search = greedy_search if beam_size == 1 else beam_search
        rows = jnp.zeros((2 * beam_size, 2))
        found = search(ensemble(steps), (rows, rows, rows), rules)
        expected = search(
            lambda tokens, cache, table=single: (table[tokens], cache), rows, rules
        )
        np.testing.assert_array_equal(found.tokens, expected.tokens)
        np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)


# Translators


@pytest.mark.parametrize(
    ("way", "weights"),
    [
        ({"beam_size": 1}, None),
        ({"beam_size": 4}, [0.6, 0.1, 0.3]),
        ({"sample": True, "seed": 4}, [0.6, 0.1, 0.3]),
    ],
)
def test_log_probability_is_that_of_the_mixture(way, weights):
    """What a search says of its translations is what forward passes of all models
    say.
    """
    models = members()
    together = Translator.ensemble(models, weights)
    decoding = dataclasses.replace(together.decoding, **way)
    texts = equally_long()
    found = [best[0] for best in together.search(texts, decoding=decoding)]
    ids = [token_ids(models[0], hypothesis) for hypothesis in found]
    table = mixed(models, np.array(weights or [1.0] * 3), texts, ids)
    expected = [
        table[row, np.arange(len(tokens)), tokens].sum()
        for row, tokens in enumerate(ids)
    ]
    np.testing.assert_allclose(
        [hypothesis.log_probability for hypothesis in found],
        expected,
        rtol=3e-3,
        atol=3e-2,
    )
    # each token is the most probable of the mixture, but where two are as good as equal
    if way == {"beam_size": 1}:
        table[:, :, [runs.vocabulary().pad_id, runs.vocabulary().bos_id]] = -np.inf
        for row, tokens in enumerate(ids):
            gaps = (
                table[row].max(-1)[: len(tokens)]
                - table[row, np.arange(len(tokens)), tokens]
            )
            assert gaps.max() < 3e-2


def test_scores_agree_with_the_search():
    """`score` gives a translation the log-probability that its search gave it, for
    models of one precision.
    """
    together = Translator.ensemble([member(2), member(3, d_model=16)], [2.0, 1.0])
    pairs, expected = [], []
    for text, (best, *_) in zip(many(), together.search(many()), strict=True):
        if (
            best.finished
            and together.vocabularies.target.encode(best.text)
            == token_ids(together, best)[:-1]
        ):
            pairs.append(Pair(text, best.text))
            expected.append(best.log_probability)
    assert len(pairs) > 3
    found = [score.log_probability for score in together.score(pairs)]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def texts_of(found: list[list[Hypothesis]]) -> list[str]:
    return [best[0].text for best in found]


def test_an_ensemble_of_one_is_the_model():
    """One model alone, several times the same, or the only one of any weight,
    translates as it does by itself.
    """
    alone, other, texts = member(2), member(3), many()[:6]
    expected = alone.search(texts)
    for together in (
        Translator.ensemble([alone]),
        Translator.ensemble([alone, alone]),
        Translator.ensemble([alone, other], [1.0, 0.0]),
    ):
        found = together.search(texts)
        assert texts_of(found) == texts_of(expected)
        np.testing.assert_allclose(
            [h[0].score for h in found],
            [h[0].score for h in expected],
            rtol=1e-4,
            atol=1e-4,
        )
    assert texts_of(other.search(texts)) != texts_of(expected)


def test_the_smallest_model_sets_the_limits():
    """Sources that one of the models has no positions for are refused, and
    translations end at its last position.
    """
    together = Translator.ensemble([member(2, eos=0.1), member(3, max_length=16)])
    refuse = dataclasses.replace(together.decoding, long_sources="refuse")
    with pytest.raises(InputError, match="the model has 16 positions"):
        together.translate(runs.sentences(1, shortest=18), decoding=refuse)
    found = together.search(runs.sentences(3, longest=10, shortest=8))
    assert max(len(best[0].tokens) for best in found) <= 16


def test_what_does_not_go_together_is_refused():
    """Vocabularies, conventions of sources and shapes of the output are compared;
    the error names both values.
    """
    first = member(2)
    vocabulary = Vocabulary.train(
        [text for pair in runs.pairs()[:100] for text in pair], 300
    )
    parts = (first.model.config, first.params)
    stranger = Translator(*parts, Vocabularies(vocabulary, vocabulary), first.decoding)
    for other, message in (
        (
            stranger,
            (
                "model 2 of the ensemble has another vocabulary"
                f" .*{stranger.vocabularies.hash[:12]}"
            ),
        ),
        (member(2, source_eos=False), "data.source_eos True and model 2 has False"),
        (
            member(2, vocabulary_size=448),
            "model.vocabulary_size 400 and model 2 has 448",
        ),
        (Translator.ensemble([first, first]), "not another ensemble"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            Translator.ensemble([first, other])
        assert "\n" not in str(caught.value)
    for weights in ([1.0], [0.0, 0.0], [-1.0, 2.0], [math.nan, 1.0]):
        with pytest.raises(InputError, match="weights"):
            Translator.ensemble([first, first], weights)
    with pytest.raises(InputError, match="at least one"):
        Translator.ensemble([])
