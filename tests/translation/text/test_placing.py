"""Which words of a source and of its translation belong together."""

import numpy as np
import pytest

from jaxformer.translation.results import Alignment
from jaxformer.translation.text.html_text import link_words


def attention(*rows):
    """Make an alignment of words of a piece; what a row lacks to 1 is for the end."""
    weights = np.array(rows, np.float32)
    weights = np.concatenate([weights, 1 - weights.sum(1, keepdims=True)], axis=1)
    targets, sources = weights.shape
    numbers = [*range(sources - 1), None]
    return Alignment([""] * sources, weights, numbers, list(range(targets)))


@pytest.mark.parametrize(
    ("rows", "sources", "targets", "links"),
    [
        # a word that attends to the end has none, as "Sie" in "Wählen Sie Datei"
        ([[0.9, 0], [0.1, 0.2], [0, 0.8]], "Choose File", "Wählen Sie Datei",
         [0, None, 1]),
        # unless it is the only one for its source word
        ([[0.9, 0], [0.1, 0.2]], "Choose File", "Wählen Sie", [0, 1]),
        # attention that a source word has from all counts less
        ([[0.9, 0.1], [0.9, 0.1], [0.5, 0.4]], "a b", "x y z", [0, 0, 1]),
        # a word that is the same on both sides belongs to itself
        ([[0.9, 0.1], [0.9, 0.1]], "Open GNOME", "GNOME öffnen", [1, 0]),
    ],
)  # fmt: skip
def test_which_source_word_a_word_belongs_to(rows, sources, targets, links):
    found = link_words(attention(*rows), sources.split(), targets.split())
    assert found == links
