"""Scores of labels, numbers, tags and answers, from 0 to 1 (correlations from -1)."""

from __future__ import annotations

import collections
import math
import re
import string
from collections.abc import Sequence

import numpy as np

from jaxformer.data.labelled import find_entities
from jaxformer.errors import InputError


def accuracy(predicted: Sequence[str], true: Sequence[str]) -> float:
    """Return the share of labels that are right.

    Raises:
        InputError: there are none, or not as many of both.
    """
    _check(predicted, true)
    pairs = zip(predicted, true, strict=True)
    return sum(one == other for one, other in pairs) / len(true)


def f1(predicted: Sequence[str], true: Sequence[str], label: str) -> float:
    """Return the harmonic mean of precision and recall of a label; 0 where neither side
    has it.
    """
    _check(predicted, true)
    right = sum(
        one == other == label for one, other in zip(predicted, true, strict=True)
    )
    return _f1(right, list(predicted).count(label), list(true).count(label))


def macro_f1(predicted: Sequence[str], true: Sequence[str]) -> float:
    """Return the mean of :func:`f1` over the labels of either side."""
    labels = {*predicted, *true}
    return math.fsum(f1(predicted, true, label) for label in labels) / len(labels)


def matthews(predicted: Sequence[str], true: Sequence[str]) -> float:
    """Return the correlation of Matthews, of any number of labels (Gorodkin 2004); 0
    where one side has a single label.
    """
    _check(predicted, true)
    count = len(true)
    right = sum(one == other for one, other in zip(predicted, true, strict=True))
    guessed, given = collections.Counter(predicted), collections.Counter(true)
    covariance = right * count - sum(guessed[label] * given[label] for label in given)
    spreads = [
        count**2 - sum(number**2 for number in side.values())
        for side in (guessed, given)
    ]
    return covariance / math.sqrt(math.prod(spreads)) if all(spreads) else 0.0


def pearson(predicted: Sequence[float], true: Sequence[float]) -> float:
    """Return the linear correlation; NaN where one side has a single value."""
    _check(predicted, true)
    sides = np.asarray([predicted, true], float)
    # The mean of equal values differs from them by rounding.
    if not np.ptp(sides, axis=1).all():
        return math.nan
    return float(np.corrcoef(sides)[0, 1])


def spearman(predicted: Sequence[float], true: Sequence[float]) -> float:
    """Return the correlation of the ranks; equal values share their mean rank."""
    from scipy.stats import rankdata  # JAX brings it

    return pearson(rankdata(predicted).tolist(), rankdata(true).tolist())


def entity_scores(
    predicted: Sequence[Sequence[str]], true: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Return precision, recall and F1 of whole entities, by the rules of seqeval and
    CoNLL-2003: one counts if its label and both its ends are right.

    Args:
        predicted: tags of the words of each text.
        true: as many.

    Raises:
        InputError: a text does not have as many tags on both sides.
    """
    right = guessed = given = 0
    for number, (one, other) in enumerate(zip(predicted, true, strict=True), start=1):
        if len(one) != len(other):
            raise InputError(
                f"text {number} has {len(one)} tags and {len(other)} true ones: give"
                " each word one"
            )
        found, wanted = {*find_entities(one)}, {*find_entities(other)}
        right += len(found & wanted)
        guessed, given = guessed + len(found), given + len(wanted)
    return {
        "precision": right / guessed if guessed else 0.0,
        "recall": right / given if given else 0.0,
        "f1": _f1(right, guessed, given),
    }


def _f1(right: int, guessed: int, given: int) -> float:
    return 2 * right / (guessed + given) if guessed + given else 0.0


def exact_match(answer: str, true: Sequence[str]) -> float:
    """Return whether an answer is one of the true ones, by the rules of SQuAD: without
    case, punctuation and articles. No true answer: it must be empty.
    """
    return float(any(_plain(answer) == _plain(each) for each in true or [""]))


def answer_f1(answer: str, true: Sequence[str]) -> float:
    """Return the largest F1 of the words of an answer against a true one, by the rules
    of SQuAD.
    """
    return max(_overlap(_plain(answer), _plain(each)) for each in true or [""])


def _overlap(one: list[str], other: list[str]) -> float:
    if not one or not other:
        return float(one == other)
    common = collections.Counter(one) & collections.Counter(other)
    return _f1(common.total(), len(one), len(other))


def _plain(text: str) -> list[str]:
    """Return the words that SQuAD compares."""
    text = "".join(each for each in text.lower() if each not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def _check(predicted: Sequence[object], true: Sequence[object]) -> None:
    if not true or len(predicted) != len(true):
        raise InputError(
            f"there are {len(predicted)} predictions for {len(true)} examples: give one"
            " for each of some"
        )
