"""The loop's own counters: sums, judgements, and their way through JSON."""

import math

import pytest

from jaxformer.training.progress import Progress


@pytest.mark.parametrize(
    ("metric", "values"),
    [("bleu", [3.0, 5.0, 5.0, 4.0]), ("loss", [5.0, 3.0, 3.0, 4.0])],
)
def test_the_best_score_and_the_evaluations_since(metric, values):
    """The highest score is the best, or the lowest loss; an equal one is no better.
    Another score, also of a resumed run, begins from nothing.
    """
    progress, seen = Progress(), []
    for step, value in enumerate(values, 1):
        progress.step = step
        progress.judge({metric: value, "chrf": 1.0}, metric)
        seen.append((progress.best, progress.stale))
    assert seen == [(values[0], 0), (values[1], 0), (values[1], 1), (values[1], 2)]
    assert progress.evaluated == 4
    assert progress.scores == {metric: values[3], "chrf": 1.0}
    progress.judge({"chrf": 1.0}, metric)
    assert (progress.best, progress.stale) == (values[1], 2)
    progress.judge({metric: math.nan}, metric)
    assert (progress.best, progress.stale) == (values[1], 3)
    assert [progress.choose_by(name) for name in (metric, "f1")] == [False, True]
    assert (progress.best, progress.stale) == (None, 0)
    progress.judge({"chrf": 40.0, metric: math.nan}, "chrf")
    assert (progress.best_metric, progress.best, progress.stale) == ("chrf", 40.0, 0)


@pytest.mark.parametrize(
    ("metric", "other", "values"),
    [
        ("bleu", "loss", (5.0, 4.0, 4.5, 4.0)),
        ("bleu", "chrf", (20.0, 30.0, 25.0, 30.0)),
        ("f1", "chrf", (20.0, 30.0, 25.0, 30.0)),
    ],
)
def test_equal_scores_go_by_another(metric, other, values):
    """By chrF; a BLEU below 1 says nothing, and the lowest loss is the best. A record
    of before there was ``best_scores`` continues.
    """
    progress, seen = Progress(), []
    score = 1.5 if other == "chrf" else 0.9
    for step, value in enumerate(values):
        same = score if other == "chrf" else score - step / 10
        progress.judge({metric: same, other: value}, metric)
        seen.append((progress.stale, progress.best_scores[other]))
    first, best = values[:2]
    assert seen == [(0, first), (0, best), (1, best), (2, best)]
    record = {**progress.to_json(), "best_chrf": 8.0}
    del record["best_scores"]
    for continued in (progress, Progress.from_json(record)):
        continued.judge({metric: 1.6, other: 8.0}, metric)
        assert (continued.best, continued.stale) == (1.6, 0)
        continued.judge({metric: 0.0, "loss": 0.0, "chrf": 99.0}, metric)
        assert (continued.best, continued.stale) == (1.6, 1)
