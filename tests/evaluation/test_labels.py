"""Scores of labels, numbers, tags and answers against cases computed by hand."""

import itertools
import math

import numpy as np
import pytest

from jaxformer.data.labelled import find_entities, marks_entities
from jaxformer.errors import InputError
from jaxformer.evaluation import labels

# 3 true of each of a and b; 4 are called a.
PREDICTED, TRUE = list("aaabab"), list("aaabbb")


def test_labels():
    """Two of b and three of a are right: F1 of a is 6/7, of b 4/5."""
    assert labels.accuracy(PREDICTED, TRUE) == 5 / 6
    assert labels.f1(PREDICTED, TRUE, "a") == pytest.approx(6 / 7)
    assert labels.f1(PREDICTED, TRUE, "b") == pytest.approx(4 / 5)
    assert labels.macro_f1(PREDICTED, TRUE) == pytest.approx((6 / 7 + 4 / 5) / 2)
    # (TP TN - FP FN) / sqrt((TP+FP)(TP+FN)(TN+FP)(TN+FN))
    correlation = (3 * 2 - 1 * 0) / math.sqrt(4 * 3 * 3 * 2)
    assert labels.matthews(PREDICTED, TRUE) == pytest.approx(correlation)
    assert labels.matthews("aaaa", "abab") == 0.0
    with pytest.raises(InputError, match="2 predictions for 1 examples"):
        labels.accuracy(["a", "b"], ["a"])


def test_matthews_of_many_labels():
    """It is the correlation of the one-hot rows, summed over the labels."""
    rng = np.random.default_rng(0)
    one, other = rng.integers(0, 4, (2, 50))
    rows = [np.eye(4)[side] - np.eye(4)[side].mean(0) for side in (one, other)]
    norms = [np.sqrt((side**2).sum()) for side in rows]
    expected = (rows[0] * rows[1]).sum() / math.prod(norms)
    assert labels.matthews(one.tolist(), other.tolist()) == pytest.approx(expected)


def test_numbers():
    assert labels.pearson([1, 2, 3], [2, 4, 6]) == pytest.approx(1)
    # Ranks 1, 2.5, 2.5, 4 and 1, 2, 3, 4.
    assert labels.spearman([0, 5, 5, 9], [1, 2, 3, 40]) == pytest.approx(
        4.5 / math.sqrt(4.5 * 5)
    )
    for value in (1, 0.1, -1e-9, 1e9 / 3):  # most means of them are rounded
        for sides in ([value] * 7, range(7)), (range(7), [value] * 7):
            assert math.isnan(labels.pearson(*sides))
            assert math.isnan(labels.spearman(*sides))
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(1)
    one, other = rng.integers(0, 9, (2, 40)).tolist()
    for own, name in ((labels.pearson, "pearsonr"), (labels.spearman, "spearmanr")):
        expected = getattr(stats, name)(one, other).statistic
        assert own(one, other) == pytest.approx(expected)


def as_seqeval(tags):
    """Return entities by seqeval's two tables: what ends and what begins a chunk."""
    ends = {*("BB", "BS", "BO", "IB", "IS", "IO")}
    begins = {*("EE", "EI", "SE", "SI", "OE", "OI")}
    found, start, before, label = [], 0, "O", ""
    for place, tag in enumerate([*tags, "O"]):
        mark, own = tag[0], tag[1:].split("-", maxsplit=1)[-1] or "_"
        other, both = label != own, before + mark
        if both in ends or before in "ES" or (before != "O" and other):
            found.append((label, start, place))
        if mark in "BS" or both in begins or (mark != "O" and other):
            start = place
        before, label = mark, own
    return found


@pytest.mark.parametrize(
    "alphabet",
    [
        ["B-A", "I-A", "E-A", "S-A", "O"],
        ["B-A", "I-A", "E-B", "S-B", "O", "I-B"],
        ["B", "I", "E", "S", "O"],
        ["B-A-x", "I-A-x", "I-A", "B-A"],
    ],
)
def test_entities_are_those_of_seqeval(alphabet):
    for length in range(1, 5):
        for tags in itertools.product(alphabet, repeat=length):
            assert find_entities(tags) == as_seqeval(tags), tags


def test_tags_that_marks_entities():
    """Parts of speech may have the names of bare marks."""
    marked = "O B-A", "O S-A E-A", "O B I", "B-A X"
    others = "NOUN VERB", "O NOUN", "I NN", "O X"
    assert all(marks_entities(tags.split()) for tags in marked)
    assert not any(marks_entities(tags.split()) for tags in others)


def test_scores_of_whole_entities():
    """One of two found entities is right, and one of three wanted: a part counts
    nothing.
    """
    found = [["B-PER", "I-PER", "O", "O"], ["B-LOC"]]
    wanted = [["B-PER", "I-PER", "I-PER", "B-LOC"], ["B-LOC"]]
    scores = labels.entity_scores(found, wanted)
    assert scores == pytest.approx({"precision": 1 / 2, "recall": 1 / 3, "f1": 2 / 5})
    halved = labels.entity_scores([["B-A", "O", "O"]], [["B-A", "E-A", "O"]])
    assert halved == {"precision": 0, "recall": 0, "f1": 0}
    nothing = labels.entity_scores([["O"]], [["O"]])
    assert nothing == {"precision": 0, "recall": 0, "f1": 0}
    with pytest.raises(InputError, match="text 1 has 1 tags and 2 true ones"):
        labels.entity_scores([["O"]], [["O", "O"]])


@pytest.mark.parametrize(
    ("answer", "true", "exact", "f1"),
    [
        ("The Norman, duke!", ["norman duke"], 1, 1),
        ("a big dog", ["the dog", "cat"], 0, 2 / 3),
        ("dog dog", ["dog"], 0, 2 / 3),
        ("", [], 1, 1),
        ("dog", [], 0, 0),
        ("", ["dog"], 0, 0),
        ("the", ["a"], 1, 1),
    ],
)
def test_answers(answer, true, exact, f1):
    """By the rules of SQuAD."""
    assert labels.exact_match(answer, true) == exact
    assert labels.answer_f1(answer, true) == pytest.approx(f1)
