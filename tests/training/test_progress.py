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
