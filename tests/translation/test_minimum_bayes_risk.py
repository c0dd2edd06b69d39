"""The choice of the translation with the least risk, against all pairs scored one by
one.
"""

from __future__ import annotations

import numpy as np
import pytest
import sacrebleu

import runs
from jaxformer.translation import rerank as minimum_bayes_risk
from jaxformer.translation.rerank import choose, chrf, expected_utilities, pairwise

METRIC = sacrebleu.CHRF()


def slow_scores(texts: list[str]) -> list[float]:
    """Score each text against every other by sacreBLEU."""
    if len(texts) == 1:
        return [0.0]
    return [
        sum(
            METRIC.sentence_score(text, [other]).score
            for j, other in enumerate(texts)
            if j != i
        )
        / (len(texts) - 1)
        for i, text in enumerate(texts)
    ]


def draw(generator: np.random.Generator) -> list[str]:
    """Make texts that resemble, repeat, are short, blank or in other scripts."""
    base = list(runs.pairs()[generator.integers(400)].target)
    letters = "abc äß\u3000界🙂"
    texts = ["", " ", "a", "🙂🎉", "aaaaaaaaaaaa", "界"]
    for _ in range(10):
        changed = [
            generator.choice(list(letters)) if generator.random() < 0.3 else letter
            for letter in base
        ]
        texts.append("".join(changed)[: generator.integers(1, 80)])
    return [
        texts[i] for i in generator.integers(0, len(texts), generator.integers(1, 24))
    ]


def test_chrf_is_that_of_sacrebleu():
    """Each pair gets sacreBLEU's sentence score."""
    generator = np.random.default_rng(1)
    for _ in range(20):
        texts = draw(generator)
        expected = [
            [METRIC.sentence_score(text, [other]).score for other in texts]
            for text in texts
        ]
        np.testing.assert_allclose(chrf(texts), expected, rtol=1e-12, atol=1e-12)


def test_expected_utility_is_the_mean_over_the_others():
    """Repetitions count as often as they come, and a text does not count for itself;
    the best of them is chosen.
    """
    generator = np.random.default_rng(2)
    chosen = set()
    for _ in range(40):
        texts = draw(generator)
        expected = slow_scores(texts)
        np.testing.assert_allclose(
            expected_utilities(texts), expected, rtol=1e-9, atol=1e-9
        )
        number = choose(texts)
        assert expected[number] >= max(expected) - 1e-7
        assert all(value < max(expected) - 1e-9 for value in expected[:number])
        chosen.add(number)
    assert len(chosen) > 5


@pytest.mark.parametrize(
    ("texts", "expected"),
    [(["a"], 0), ([""], 0), (["", ""], 0), (["b", "a", "a"], 1), (["ab", "ba"], 0)],
)
def test_ties_go_to_the_first(texts, expected):
    """Of equally good translations the first is taken, be there one, two that are
    equal, or none with text.
    """
    assert choose(texts) == expected


def test_blocks_of_features_change_nothing(monkeypatch):
    """Texts of more n-grams than are multiplied at once have the same scores."""
    texts = [pair.target for pair in runs.pairs()[:20]]
    whole = chrf(texts)
    monkeypatch.setattr(minimum_bayes_risk, "_COLUMNS", 7)
    np.testing.assert_array_equal(chrf(texts), whole)


def test_another_metric_serves():
    """A metric of sentences is asked once for all ordered pairs of different texts."""
    calls = []

    def score(hypotheses, references):
        calls.append(len(hypotheses))
        return [
            float(len(one) - 2 * len(other))
            for one, other in zip(hypotheses, references, strict=True)
        ]

    texts = ["aa", "b", "aa", "cccc"]
    found = expected_utilities(texts, pairwise(score))
    assert calls == [9]
    expected = [
        np.mean([len(text) - 2 * len(other) for j, other in enumerate(texts) if j != i])
        for i, text in enumerate(texts)
    ]
    np.testing.assert_allclose(found, expected)
    assert choose(texts, pairwise(score)) == 3
