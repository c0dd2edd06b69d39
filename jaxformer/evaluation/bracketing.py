"""Labelled bracketing F1 of linearised trees by EVALB's rules: the paper's Table 4."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from jaxformer import __version__
from jaxformer.errors import InputError
from jaxformer.evaluation.sentences import check_sentences
from jaxformer.evaluation.statistics import Metric, Score, SentenceStatistics
from jaxformer.typing import Float

PUNCTUATION = frozenset([",", ":", "``", "''", "."])
"""Parts of speech that EVALB deletes by COLLINS.prm; each is its own symbol."""

_DELETED = PUNCTUATION | {"TOP", "-NONE-"}
_EQUAL = {"PRT": "ADVP"}


@dataclass(frozen=True)
class LabelledBracketing:
    """F1 of labelled brackets; see :class:`jaxformer.evaluation.statistics.Metric`.

    A line is a tree in the symbols of ``scripts/trees.py``, such as ``(S (NP XX )NP
    . )S``. The rules are those of EVALB with COLLINS.prm. A bracket is a label with its
    first and last word. Punctuation is recognised in the reference and counts as no
    word. ``TOP`` and brackets of only punctuation do not count. ``ADVP`` equals
    ``PRT``. A label ends before ``-`` or ``=``. Each bracket of the reference matches
    once.

    EVALB leaves sentences with an error out of its totals. Here all opening symbols of
    a malformed tree, or of a tree with another number of words, are wrong brackets.

    Attributes:
        key: its name in options and records.
        higher_is_better: always.

    References:
        Black et al., "A Procedure for Quantitatively Comparing the Syntactic Coverage
        of English Grammars", 1991; Sekine and Collins, EVALB, 1997; Collins, "Three
        Generative, Lexicalised Models for Statistical Parsing", 1997.
    """

    key: str = "f1"
    higher_is_better: bool = True

    def prepare(self, references: int) -> None:
        """Check the number of references.

        Raises:
            InputError: there is more than one.
        """
        if references != 1:
            raise InputError(
                f"f1 compares with one tree a sentence, not with {references}: give"
                " one reference"
            )

    def statistics(
        self,
        hypotheses: Sequence[str],
        *references: Sequence[str],
        sources: Sequence[str] | None = None,
    ) -> SentenceStatistics:
        """Count matched brackets, those of the reference and those of the translation.

        Raises:
            InputError: see :func:`jaxformer.evaluation.sentences.check_sentences`;
                there are several references, or a reference is no tree.
        """
        check_sentences(hypotheses, references, sources)
        self.prepare(len(references))
        check_trees(references[0])
        rows = [
            _count(given.split(), wanted.split())
            for given, wanted in zip(hypotheses, references[0], strict=True)
        ]
        signature = (
            "f1|nrefs:1|rules:evalb-COLLINS.prm|malformed:wrong"
            f"|jaxformer:{__version__}"
        )
        return SentenceStatistics(np.asarray(rows, np.float64), signature)

    def score(self, total: Float[np.ndarray, " K"], signature: str) -> Score:
        """Score the sentences whose rows sum to ``total``: 0 without brackets."""
        matched, wanted, given = total
        value = float(200 * matched / (wanted + given)) if wanted + given else 0.0
        return Score("F1", value, signature)


F1: Metric = LabelledBracketing()
"""Labelled bracketing F1 of linearised trees, 0 to 100."""


def check_trees(references: Iterable[str]) -> None:
    """Check that every line is a linearised tree.

    Raises:
        InputError: a line is no tree.
    """
    for number, line in enumerate(references, start=1):
        if read_brackets(line.split()) is None:
            raise InputError(
                "f1 scores linearised trees such as '(S (NP XX )NP . )S', and"
                f" reference {number} is {line[:60]!r}: write the references"
                " by scripts/trees.py, or leave f1 out of --metrics and of"
                " evaluation.best_metric"
            )


def read_brackets(
    symbols: Sequence[str],
) -> tuple[list[str], list[tuple[str, int, int]]] | None:
    """Read the constituents of a tree of symbols.

    Returns:
        The symbols of the words, and label, start and end (exclusive) of each
        constituent, counted in words. None if the symbols are not one complete tree.

    Example:
        >>> read_brackets("(S (NP XX )NP . )S".split())
        (['XX', '.'], [('NP', 0, 1), ('S', 0, 2)])
        >>> read_brackets("(S XX )NP".split()) is None
        True
    """
    if not is_one_tree(symbols):
        return None
    leaves: list[str] = []
    opened: list[tuple[str, int]] = []
    found: list[tuple[str, int, int]] = []
    for symbol in symbols:
        kind, label = symbol[:1], symbol[1:]
        if kind == "(":
            opened.append((label, len(leaves)))
        elif kind != ")":
            leaves.append(symbol)
        elif not (label and opened and opened[-1][0] == label):
            return None
        else:
            found.append((*opened.pop(), len(leaves)))
    return (leaves, found) if leaves else None


def is_one_tree(symbols: Sequence[str]) -> bool:
    """Return whether symbols are one constituent or one word, and nothing follows."""
    depth = 0
    for place, symbol in enumerate(symbols, start=1):
        depth += symbol.startswith("(") - symbol.startswith(")")
        if depth == 0:
            return place == len(symbols)
    return False


def _count(given: Sequence[str], wanted: Sequence[str]) -> tuple[int, int, int]:
    """Count brackets: matched, in the reference, in the translation."""
    reference, found = read_brackets(wanted), read_brackets(given)
    assert reference is not None  # by check_trees
    leaves = reference[0]
    # words before each leaf
    starts = np.cumsum([0, *(leaf not in PUNCTUATION for leaf in leaves)])
    gold = _count_brackets(reference[1], starts)
    if found is None or len(found[0]) != len(leaves):
        wrong = sum(
            symbol[:1] == "(" and _normalize(symbol[1:]) not in _DELETED
            for symbol in given
        )
        return 0, gold.total(), wrong
    test = _count_brackets(found[1], starts)
    return (gold & test).total(), gold.total(), test.total()


def _count_brackets(
    brackets: Iterable[tuple[str, int, int]], starts: Sequence[int] | np.ndarray
) -> Counter[tuple[str, int, int]]:
    """Count the brackets that EVALB counts; positions leave out punctuation."""
    spans = (
        (_normalize(label), int(starts[start]), int(starts[end]))
        for label, start, end in brackets
    )
    return Counter(
        span for span in spans if span[0] not in _DELETED and span[1] < span[2]
    )


def _normalize(label: str) -> str:
    if label in _DELETED:
        return label
    plain = re.split("[-=]", label)[0] or label
    return _EQUAL.get(plain, plain)
