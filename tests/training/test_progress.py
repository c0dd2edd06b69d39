"""The loop's own counters: sums, judgements, and their way through JSON."""

import json
import math

import numpy as np
import pytest

from jaxformer.data.pipeline import Position
from jaxformer.data.records import Pair
from jaxformer.training.progress import Progress, hash_validation

GOOD = {"loss": 6.0, "nll": 5.0, "tokens": 2.0, "source_tokens": 3.0, "slots": 8.0}
GOOD |= {"gradient_norm": 1.0, "learning_rate": 0.5, "skipped": 0.0}


def test_running_sums():
    """Sums over many steps are Python floats: in float32 they would stop growing. A
    skipped step, whose loss is no number, counts and adds nothing.
    """
    progress, large = Progress(), float(np.float32(20_000_001.0))
    for _ in range(2_000):
        progress.add({**GOOD, "loss": large})
    bad = {"loss": math.nan, "nll": math.inf, "gradient_norm": math.nan, "skipped": 1.0}
    progress.add({**GOOD, **bad})
    expected = {name: 2_000 * value for name, value in {**GOOD, "loss": large}.items()}
    last = {"learning_rate": 0.5, "skipped": 1.0, "steps": 2_001.0}
    assert progress.sums == {**expected, **last}
    assert {type(value) for value in progress.sums.values()} == {float}


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


@pytest.mark.parametrize("metric", ["bleu", "f1"])
def test_equal_scores_go_by_chrf(metric):
    """BLEU of short sentences is 0 however good they are. A record of before there was
    ``best_chrf`` continues.
    """
    progress, seen = Progress(), []
    for chrf in (20.0, 30.0, 25.0, 30.0):
        progress.judge({metric: 0.0, "chrf": chrf}, metric)
        seen.append((progress.stale, progress.best_chrf))
    assert seen == [(0, 20.0), (0, 30.0), (1, 30.0), (2, 30.0)]
    progress.judge({metric: 0.1, "chrf": 10.0}, metric)
    assert (progress.best, progress.stale) == (0.1, 0)
    progress.judge({metric: 0.0, "chrf": 40.0}, metric)
    assert (progress.best, progress.stale) == (0.1, 1)
    record = {**Progress(best_metric="chrf", best=9.0).to_json(), "stale": 3}
    del record["best_chrf"]
    before = Progress.from_json(record)
    before.judge({"bleu": 0.0, "chrf": 8.0}, "chrf")
    assert (before.best, before.stale) == (9.0, 4)


def test_each_score_knows_the_text_that_it_is_measured_on():
    """The loss that of all pairs, the others that of the translated ones; a name or
    a copy is no other text. All counters go through JSON.
    """
    pairs = [Pair("a", "b"), Pair("c", "d")]
    whole, part = hash_validation(pairs, None), hash_validation(pairs, 1)
    assert whole == hash_validation([Pair(*pair) for pair in pairs], 2)
    assert whole["loss"] == part["loss"] == whole["bleu"] == whole["chrf"]
    first = hash_validation(pairs[:1], None)["bleu"]
    assert part["bleu"] == part["chrf"] == first != whole["bleu"]
    assert hash_validation([Pair("a", "bc"), Pair("", "d")], None) != whole
    scores = {"bleu": 1.5}
    progress = Progress(7, Position(1, 3), {"loss": 0.1}, 2, 5, scores, "bleu", 1.5, 3)
    progress.valid = whole
    assert Progress.from_json(json.loads(json.dumps(progress.to_json()))) == progress
