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
    )
    assert [(each.word, each.text) for each in found] == [
        ("Seite", often),
        ("Datei", f"{rare} Seite"),
    ]
    for each, probability in zip(found, (0.5, 0.1), strict=True):
        tokens = len(runs.vocabulary().encode(f"Die {each.word}")) - before
        assert each.probability == pytest.approx(probability**tokens)
