"""The words that may come next: of which translations, in which order."""

import math

import pytest

import runs
from jaxformer.serving.words import NextWords
from jaxformer.translation.results import Hypothesis


def hypothesis(text, score, probability):
    """Return a translation whose tokens are equally probable."""
    vocabulary = runs.vocabulary()
    ids = vocabulary.encode(text)
    tokens, value = vocabulary.pieces(ids), math.log(probability)
    values = [value] * len(ids)
    return Hypothesis(
        text, score, sum(values), tokens, True, token_log_probabilities=values
    )


def test_a_word_comes_once_with_the_best_of_its_translations():
    """Words are ordered by their own probability, and not by the translations'."""
    before = len(runs.vocabulary().encode("Die"))
    rare, often = "Die Datei", "Die Seite"
    found = NextWords(runs.vocabulary()).rank(
        [
            hypothesis(f"{often} Datei", -3.0, 0.5),
            hypothesis(f"{rare} Seite", -1.0, 0.1),
            hypothesis(often, -2.0, 0.5),
            hypothesis("Die", 0.0, 0.9),
        ],
        before,
        8,
        lambda ids: 1.0,
    )
    assert [(each.word, each.text) for each in found] == [
        ("Seite", often),
        ("Datei", f"{rare} Seite"),
    ]
    for each, probability in zip(found, (0.5, 0.1), strict=True):
        tokens = len(runs.vocabulary().encode(f"Die {each.word}")) - before
        assert each.probability == pytest.approx(probability**tokens)


def test_words_that_contain_each_other_are_a_distribution():
    """A word has the probability that it ends where it does, and not that of longer
    words that begin with it.
    """
    vocabulary = runs.vocabulary()
    before = len(vocabulary.encode("Die"))
    ends = {len(vocabulary.encode("Die Datei")): 0.25}
    found = NextWords(vocabulary).rank(
        [hypothesis("Die Datei", -1.0, 0.5), hypothesis("Die Datei.", -2.0, 0.5)],
        before,
        8,
        lambda ids: ends.get(len(ids), 1.0),
    )
    shorter, longer = (
        0.5 ** (len(vocabulary.encode(text)) - before)
        for text in ("Die Datei", "Die Datei.")
    )
    assert {each.word: each.probability for each in found} == {
        "Datei": pytest.approx(0.25 * shorter),
        "Datei.": pytest.approx(longer),
    }
