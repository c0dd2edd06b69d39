"""The translations of parts become one line."""

import doctest

import numpy as np
import pytest

from jaxformer.translation import paragraphs as joining
from jaxformer.translation import results
from jaxformer.translation.paragraphs import join, spacing
from jaxformer.translation.results import Alignment, Hypothesis


@pytest.mark.parametrize(
    ("left", "right", "source", "between"),
    [
        ("Eins.", "Zwei.", " ", " "),
        ("Eins.", "Zwei.", "\u00a0 ", "\u00a0 "),
        ("Eins.", "Zwei.", "\u2028", "\u2028"),
        ("Eins.", "Zwei.", "\r", " "),
        ("One.", "Two.", "", " "),
        ("一。", "二。", " ", ""),
        ("はい。", "「いいえ」", "  ", ""),
        ("네.", "아니요.", "", " "),
        ("一。", "Two.", " ", " "),
        ("", "Zwei.", " ", ""),
        ("Eins.", "", " ", ""),
    ],
)
def test_spacing(left, right, source, between):
    """The source's own white space; a space where it has none; nothing in scripts
    without spaces; one line always.
    """
    assert spacing(left, right, source) == between


def hypothesis(text, score, aligned=True):
    words = text.split()
    weights = np.eye(len(words) + 1, dtype=np.float32)
    numbers = [*range(len(words)), None]
    alignment = (
        Alignment([*words, "</s>"], weights, numbers, numbers) if aligned else None
    )
    return Hypothesis(text, score, 2 * score, [*words, "</s>"], score > -2, alignment)


def test_parts_add_up():
    """Scores and log-probabilities are sums, pieces follow each other, the whole is
    finished where all parts are.
    """
    parts = [
        [hypothesis("a b", -1.0), hypothesis("a", -3.0)],
        [hypothesis("c", -1.5), hypothesis("d", -1.0)],
    ]
    best, second = join(parts, ["", "  "])
    assert best == Hypothesis(
        "a b  c", -2.5, -5.0, ["a", "b", "</s>", "c", "</s>"], finished=True
    )
    assert second == Hypothesis(
        "a  d", -4.0, -8.0, ["a", "</s>", "d", "</s>"], finished=False
    )
    assert join([parts[0], []], ["", " "]) == []
    assert join([parts[0]], [""]) == parts[0]


@pytest.mark.parametrize(("space", "last"), [(" ", 2), ("", 1)])
def test_alignments_stand_end_to_end(space, last):
    """Each part looks at its own source alone; where the source has no space, its
    word goes on.
    """
    (whole,) = join([[hypothesis("a b", -1.0)], [hypothesis("c", -1.0)]], ["", space])
    assert whole.alignment is not None
    np.testing.assert_array_equal(whole.alignment.weights, np.eye(5))
    assert whole.alignment.source_tokens == whole.tokens
    assert whole.alignment.links() == [(0, 0), (1, 1), (3, 3)]
    assert whole.alignment.word_links() == [(0, 0), (1, 1), (last, 2)]


def test_the_examples_run():
    for module in (joining, results):
        assert doctest.testmod(module).attempted
        assert not doctest.testmod(module).failed
