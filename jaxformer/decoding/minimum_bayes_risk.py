"""Minimum Bayes risk: of several translations of a sentence, the one that is most like the others.

The samples of a sentence stand for the model's distribution, so that the mean utility of a translation against them
estimates its expected utility: the opposite of its risk (Kumar and Byrne 2004; Eikema and Aziz 2020, section 5).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from jaxformer.typing import Float

Utility: TypeAlias = Callable[[Sequence[str]], np.ndarray]
"""``utility(texts) -> Float[n n]``: in row i, how good text i is where text j is the truth."""

_ORDER, _BETA = 6, 2
_COLUMNS = 1 << 14
# Sums of the same utilities in another order differ by rounding.
_ROUNDING = 1e-9


def choose(texts: Sequence[str], utility: Utility | None = None) -> int:
    """Give the number of the text with the highest expected utility; of equally good ones the first.

    Args:
        texts: translations of one sentence, samples or an n-best list, at least one. Each counts once: what was drawn
            several times counts so often.
        utility: of some texts against each other; by default :func:`chrf`. :func:`pairwise` makes one of another
            metric.

    Example:
        >>> choose(["Das ist ein Haus.", "Das ist das Haus.", "Ein Haus ist das.", "Guten Tag."])
        1
    """
    values = expected_utilities(texts, utility)
    return int(np.argmax(values >= values.max() - _ROUNDING * max(1.0, abs(values.max()))))


def expected_utilities(texts: Sequence[str], utility: Utility | None = None) -> Float[np.ndarray, " n"]:
    """Give the mean utility of each text against all the others; 0 for one that is alone.

    Args:
        texts: translations of one sentence.
        utility: as for :func:`choose`; it gets each different text once.
    """
    counts = Counter(texts)
    place = {text: number for number, text in enumerate(counts)}
    matrix = np.asarray((utility or chrf)(list(counts)), np.float64)
    # A text is compared with the others, its repetitions among them, and not with itself.
    sums = matrix @ np.array(list(counts.values()), np.float64) - np.diag(matrix)
    return sums[[place[text] for text in texts]] / max(len(texts) - 1, 1)


def chrf(texts: Sequence[str]) -> Float[np.ndarray, "n n"]:
    """Give the chrF2 of each text against each as the reference, from 0 to 100 (Popović 2015).

    The numbers are those of sacreBLEU's sentence scores in its default settings. The n-grams of each text are counted
    once; what two texts share is then one product of matrices for each order.
    """
    precision = np.zeros((len(texts), len(texts)))
    recall, orders = precision.copy(), precision.copy()
    plain = ["".join(text.split()) for text in texts]
    for order in range(1, _ORDER + 1):
        totals = np.array([max(len(text) - order + 1, 0) for text in plain], np.float64)
        matches = _matches(plain, order)
        # An order counts where both texts are long enough for it.
        both = (totals[:, None] > 0) & (totals[None, :] > 0)
        precision += np.where(both, matches / np.maximum(totals[:, None], 1), 0)
        recall += np.where(both, matches / np.maximum(totals[None, :], 1), 0)
        orders += both
    precision, recall = precision / np.maximum(orders, 1), recall / np.maximum(orders, 1)
    weighted = _BETA**2 * precision + recall
    return 100 * (1 + _BETA**2) * precision * recall / np.where(weighted > 0, weighted, 1)


def pairwise(score: Callable[[Sequence[str], Sequence[str]], Sequence[float]]) -> Utility:
    """Turn a metric of sentences into a utility; it is called once, for all n * n pairs.

    Args:
        score: ``score(hypotheses, references)`` gives a number for each pair, more where it is better.
    """

    def utility(texts: Sequence[str]) -> Float[np.ndarray, "n n"]:
        hypotheses = [text for text in texts for _ in texts]
        values = score(hypotheses, list(texts) * len(texts))
        return np.asarray(values, np.float64).reshape(len(texts), len(texts))

    return utility


def _matches(texts: Sequence[str], order: int) -> Float[np.ndarray, "n n"]:
    """Count the n-grams that each two texts share.

    The k-th time that an n-gram comes in a text is a feature of its own: two texts share min(a, b) of an n-gram that
    comes a and b times.
    """
    columns: dict[tuple[str, int], int] = {}
    places: list[tuple[int, int]] = []
    for row, text in enumerate(texts):
        seen: Counter[str] = Counter()
        for start in range(len(text) - order + 1):
            gram = text[start : start + order]
            seen[gram] += 1
            places.append((row, columns.setdefault((gram, seen[gram]), len(columns))))
    matches = np.zeros((len(texts), len(texts)))
    if not places:
        return matches
    rows, features = np.array(places).T
    for first in range(0, len(columns), _COLUMNS):  # many long texts have more features than fit at once
        inside = (features >= first) & (features < first + _COLUMNS)
        has = np.zeros((len(texts), min(_COLUMNS, len(columns) - first)), np.float32)
        has[rows[inside], features[inside] - first] = 1
        matches += has @ has.T
    return matches
