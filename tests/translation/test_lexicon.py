"""IBM model 1, against the textbook's loops over dictionaries."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from jaxformer.data.store import Sentences
from jaxformer.translation.shortlist import learn_translations

NULL = -1


def side(sentences: list[list[int]]) -> Sentences:
    return Sentences.from_lists(sentences, 0)


def by_hand(
    sources: list[list[int]], targets: list[list[int]], iterations: int
) -> dict[int, dict[int, float]]:
    """Do what Brown et al. 1993 say, pair by pair and link by link."""
    t: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(lambda: 1.0))
    for _ in range(iterations):
        counts: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        for source, target in zip(sources, targets, strict=True):
            for word in target:
                total = sum(t[origin][word] for origin in [NULL, *source])
                for origin in [NULL, *source]:
                    counts[origin][word] += t[origin][word] / total
        t = defaultdict(lambda: defaultdict(float))
        for origin, row in counts.items():
            for word, count in row.items():
                t[origin][word] = count / sum(row.values())
    return t


def draw(seed: int, pairs: int, size: int) -> tuple[list[list[int]], list[list[int]]]:
    rng = np.random.default_rng(seed)
    sides = [
        [rng.integers(0, most, rng.integers(0, 8)).tolist() for _ in range(pairs)]
        for most in (size, size + 3)
    ]
    return sides[0], sides[1]


@pytest.mark.parametrize("iterations", [1, 5])
def test_probabilities_are_those_of_the_textbook(iterations):
    """Also for tokens that occur several times in a sentence."""
    for seed in range(3):
        sources, targets = draw(seed, 30, 9)
        sides = side(sources), side(targets), (12, 12)
        found = learn_translations(*sides, iterations=iterations)
        expected = by_hand(sources, targets, iterations)
        assert len(found) == 12
        for token, translations in enumerate(found):
            row = {word: value for word, value in expected[token].items() if value > 0}
            tokens = translations.tokens.tolist()
            assert sorted(tokens) == sorted(row)
            values = [row[word] for word in tokens]
            np.testing.assert_allclose(translations.probabilities, values, rtol=1e-9)
            assert (np.diff(translations.probabilities) <= 0).all()


def test_few_candidates_are_kept():
    """A source token keeps its most probable translations, whose probabilities add up
    to 1.
    """
    sources, targets = draw(3, 60, 12)
    sides = side(sources), side(targets), (15, 15)
    once = learn_translations(*sides, iterations=1)
    few = learn_translations(*sides, iterations=3, candidates=4)
    for kept, every in zip(few, once, strict=True):
        assert set(kept.tokens.tolist()) <= set(every.tokens[:4].tolist())
        total = 1 if len(kept.tokens) else 0
        assert sum(kept.probabilities) == pytest.approx(total)
