"""IBM model 1, against the textbook's loops over dictionaries."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

import runs
from jaxformer.translation.shortlist import Side, learn_translations

NULL = -1


def side(sentences: list[list[int]], size: int) -> Side:
    offsets = np.concatenate([[0], np.cumsum([len(ids) for ids in sentences])]).astype(
        np.int64
    )
    tokens = np.array([token for ids in sentences for token in ids], np.uint16)
    return Side(tokens, offsets, size)


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


def draw(
    generator: np.random.Generator, pairs: int, size: int
) -> tuple[list[list[int]], list[list[int]]]:
    sources = [
        generator.integers(0, size, generator.integers(0, 8)).tolist()
        for _ in range(pairs)
    ]
    targets = [
        generator.integers(0, size + 3, generator.integers(0, 8)).tolist()
        for _ in range(pairs)
    ]
    return sources, targets


@pytest.mark.parametrize("iterations", [1, 2, 5])
def test_probabilities_are_those_of_the_textbook(iterations):
    """Also where tokens occur several times in a sentence."""
    generator = np.random.default_rng(iterations)
    for _ in range(5):
        sources, targets = draw(generator, 30, 9)
        found = learn_translations(
            side(sources, 12), side(targets, 12), iterations=iterations
        )
        expected = by_hand(sources, targets, iterations)
        assert len(found) == 12
        for token, translations in enumerate(found):
            row = {word: value for word, value in expected[token].items() if value > 0}
            assert sorted(translations.tokens.tolist()) == sorted(row)
            np.testing.assert_allclose(
                translations.probabilities,
                [row[word] for word in translations.tokens.tolist()],
                rtol=1e-9,
            )
            assert (np.diff(translations.probabilities) <= 0).all()


def test_few_candidates_are_kept():
    """A source token keeps its most probable translations, whose probabilities add
    up to 1.
    """
    sources, targets = draw(np.random.default_rng(3), 60, 12)
    once = learn_translations(side(sources, 15), side(targets, 15), iterations=1)
    for translations, every in zip(
        learn_translations(
            side(sources, 15), side(targets, 15), iterations=3, candidates=4
        ),
        once,
        strict=True,
    ):
        assert set(translations.tokens.tolist()) <= set(every.tokens[:4].tolist())
        assert sum(translations.probabilities) == pytest.approx(
            1 if len(translations.tokens) else 0
        )


def test_words_find_their_translations():
    """Pairs made from a hidden dictionary in shuffled order give the dictionary
    back.
    """
    generator = np.random.default_rng(5)
    dictionary = generator.permutation(40)
    sources = [generator.choice(40, 6).tolist() for _ in range(400)]
    targets = [generator.permutation(dictionary[ids]).tolist() for ids in sources]
    found = learn_translations(side(sources, 40), side(targets, 40))
    assert [translations.tokens[0] for translations in found] == dictionary.tolist()


def test_real_words():
    """In a few hundred real pairs, a word that names a thing finds its name."""
    pairs, vocabulary = runs.pairs(), runs.vocabulary()
    encoded = [[vocabulary.encode(pair[index]) for pair in pairs] for index in (0, 1)]
    found = learn_translations(
        *(side(sentences, vocabulary.size) for sentences in encoded)
    )
    question = vocabulary.encode("?")[-1]
    assert question in found[question].tokens[:5]
