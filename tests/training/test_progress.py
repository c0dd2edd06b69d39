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


def test_running_sums_do_not_stall():
    """Sums over many steps are Python floats: in float32 or bfloat16 they would stop
    growing.
    """
    progress = Progress()
    large = float(np.float32(20_000_001.0))
    for _ in range(2_000):
        progress.add({**GOOD, "loss": large, "tokens": large})
    assert progress.sums["steps"] == progress.sums["gradient_norm"] == 2_000.0
    assert progress.sums["loss"] == progress.sums["tokens"] == 2_000 * large
    assert {type(value) for value in progress.sums.values()} == {float}


def test_a_skipped_step_counts_and_adds_nothing():
    """Its loss is no number; means and padding are those of the other steps."""
    progress = Progress()
    progress.add(GOOD)
    bad = {"loss": math.nan, "nll": math.inf, "gradient_norm": math.nan, "skipped": 1.0}
    progress.add({**GOOD, **bad})
    assert progress.sums == {**GOOD, "skipped": 1.0, "steps": 2.0}


@pytest.mark.parametrize(
    ("metric", "values"),
    [("bleu", [3.0, 5.0, 5.0, 4.0]), ("loss", [5.0, 3.0, 3.0, 4.0])],
)
def test_the_best_score_and_the_evaluations_since(metric, values):
    """The highest score is the best, or the lowest loss; an equal one is no better."""
    progress = Progress()
    seen = []
    for step, value in enumerate(values, 1):
        progress.step = step
        progress.judge({metric: value, "other": 1.0}, metric)
        seen.append((progress.best, progress.stale))
    assert seen == [(values[0], 0), (values[1], 0), (values[1], 1), (values[1], 2)]
    assert progress.evaluated == 4
    assert progress.scores == {metric: values[3], "other": 1.0}
    progress.judge({"other": 1.0}, metric)
    assert (progress.best, progress.stale) == (values[1], 2)
    progress.judge({metric: math.nan}, metric)
    assert (progress.best, progress.stale) == (values[1], 3)


def test_another_score_forgets_the_best():
    """What was the best by one score says nothing of another, also where a resumed run
    asks for another.
    """
    progress = Progress()
    assert not progress.choose_by("bleu")
    for loss in (2.0, 1.0):
        progress.judge({"bleu": 0.0, "loss": loss}, "bleu")
    assert progress.stale == 1
    assert not progress.choose_by("bleu")
    assert progress.choose_by("loss")
    assert (progress.best, progress.stale) == (None, 0)
    progress.judge({"chrf": 40.0, "bleu": math.nan}, "chrf")
    assert (progress.best_metric, progress.best, progress.stale) == ("chrf", 40.0, 0)


def test_counters_go_through_json():
    """What a checkpoint keeps comes back equal."""
    progress = Progress(
        7, Position(1, 3), {"loss": 0.1}, 2, 5, {"bleu": 1.5}, "bleu", 1.5, 3
    )
    assert Progress.from_json(json.loads(json.dumps(progress.to_json()))) == progress


def test_each_score_knows_the_text_that_it_is_measured_on():
    """The loss that of all pairs, the others that of the translated ones; a name or
    a copy is no other text.
    """
    pairs = [Pair("a", "b"), Pair("c", "d")]
    whole, part = hash_validation(pairs, None), hash_validation(pairs, 1)
    assert whole == hash_validation([Pair(*pair) for pair in pairs], 2)
    assert whole["loss"] == part["loss"] == whole["bleu"] == whole["chrf"]
    first = hash_validation(pairs[:1], None)["bleu"]
    assert part["bleu"] == part["chrf"] == first != whole["bleu"]
    assert hash_validation([Pair("a", "bc"), Pair("", "d")], None) != whole
    progress = Progress(valid=whole)
    assert Progress.from_json(json.loads(json.dumps(progress.to_json()))) == progress
