"""Labelled bracketing F1 by EVALB's rules, on trees whose brackets are counted by
hand.
"""

import pytest

from jaxformer.errors import InputError
from jaxformer.evaluation.bracketing import F1
from jaxformer.evaluation.metrics import score

GOLD = "(S (NP XX XX )NP (VP XX (ADVP XX )ADVP )VP . )S"
"""Words 0 to 3, then a period. Four brackets: NP 0-2, ADVP 3-4, VP 2-4, S 0-4."""


@pytest.mark.parametrize(
    # brackets matched, of the reference, of the translation
    ("given", "wanted", "counts"),
    [
        (GOLD, GOLD, (4, 4, 4)),
        (GOLD.replace("NP", "PP"), GOLD, (3, 4, 4)),  # PP 0-2 is wrong
        ("(S (NP XX XX )NP XX (ADVP XX )ADVP . )S", GOLD, (3, 4, 3)),  # VP is missing
        (GOLD.replace("ADVP", "PRT"), GOLD, (4, 4, 4)),
        (f"(TOP {GOLD} )TOP", GOLD, (4, 4, 4)),
        (GOLD.replace("NP", "NP-SBJ"), GOLD, (4, 4, 4)),
        # The period is inside VP, or written as a word: neither moves a bracket.
        ("(S (NP XX XX )NP (VP XX (ADVP XX )ADVP . )VP )S", GOLD, (4, 4, 4)),
        (GOLD.replace(".", "XX"), GOLD, (4, 4, 4)),
        # A bracket of only punctuation does not count. A comma before a word moves no
        # word: S 0-1, NP 0-1.
        ("(S (PRN , )PRN (NP XX )NP )S", "(S , (NP XX )NP )S", (2, 2, 2)),
        # Equal brackets match once each: NP 0-1 twice against once, S once.
        ("(S (NP (NP XX )NP )NP )S", "(S (NP XX )NP )S", (2, 2, 3)),
        ("(S (NP XX )NP )S", "(S (NP (NP XX )NP )NP )S", (2, 3, 2)),
        ("(S (NP (NP XX )NP )NP )S", "(S (NP (NP XX )NP )NP )S", (3, 3, 3)),
        # Malformed: all opening symbols are wrong brackets. Left open, wrong end, two
        # trees, another number of words.
        ("(S (NP XX XX )NP (VP XX XX", GOLD, (0, 4, 3)),
        ("(S XX XX XX XX . )NP", GOLD, (0, 4, 1)),
        ("(S XX XX )S (S XX XX . )S", GOLD, (0, 4, 2)),
        ("(TOP (S XX XX XX )S )TOP", GOLD, (0, 4, 1)),
        ("( XX XX XX XX . )", GOLD, (0, 4, 1)),
        (")S XX (S", "(S XX )S", (0, 1, 1)),
        ("", GOLD, (0, 4, 0)),
        ("XX", "XX", (0, 0, 0)),
    ],
)
def test_brackets_are_counted_by_evalbs_rules(given, wanted, counts):
    """Counts are those by hand, and F1 is 200 matched / (reference + translation)."""
    (row,) = F1.statistics([given], [wanted]).rows
    assert tuple(row) == counts
    value = 200 * counts[0] / sum(counts[1:]) if sum(counts[1:]) else 0.0
    assert score(F1, [given], [wanted]).value == pytest.approx(value)


def test_a_corpus_is_scored_by_its_sums():
    """Counts of sentences are summed before the division; the signature names rules
    and malformed trees. References that are no trees, or several, are refused.
    """
    found = score(F1, [GOLD, "(S XX )S", ""], [GOLD, "(S (NP XX )NP )S", "(S XX )S"])
    assert found.value == pytest.approx(200 * (4 + 1 + 0) / ((4 + 2 + 1) + (4 + 1 + 0)))
    assert found.name == "F1"
    assert "rules:evalb-COLLINS.prm|malformed:wrong" in found.signature
    said = r"f1 scores linearised trees .* reference 2 is 'a house'"
    with pytest.raises(InputError, match=said):
        F1.statistics([GOLD, GOLD], [GOLD, "a house"])
    with pytest.raises(InputError, match="one tree a sentence, not with 2"):
        F1.statistics([GOLD], [GOLD], [GOLD])
