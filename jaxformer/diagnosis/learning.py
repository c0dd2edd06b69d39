"""Checks of the learning curves: whether training ended, diverged, stalled, or could
have gone on.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from jaxformer.diagnosis.findings import Opinion, grade, judge
from jaxformer.runs.config import RunConfig
from jaxformer.runs.records import Curve

Curves = Mapping[str, Curve]
Gaps = Mapping[str, Sequence[int]]

_JUMP = 0.5  # nats a token between two lines of the log
_DIVERGED = 1.0
# of the nats of a uniform guess: about what the frequencies of words alone give
_STALLED = 0.6
# nats a token, and the part of training after which they count
_FALLING, _FALLING_FROM = 0.05, 0.8
_RISING = 0.05
_STEADIER = (
    "a lower --config.training.learning_rate, a longer --config.training.warmup_steps,"
    " or --config.training.gradient_clip=1.0; look at the data around the jump"
)


def finished(config: RunConfig, curves: Curves, saved: Sequence[int]) -> Opinion:
    """Return whether the run made the steps that were asked for, and its log does not
    end before its checkpoints.
    """
    last = max((curve[-1][0] for curve in curves.values() if curve), default=0)
    steps, patience = config.training.steps, config.training.patience
    every = min(config.training.log_every, config.training.evaluate_every)
    if saved and last < saved[-1] and (saved[-1] >= steps or saved[-1] - last >= every):
        return judge(
            "look",
            f"metrics.jsonl ends with step {last:,}, and there is a checkpoint of step"
            f" {saved[-1]:,}",
            f"a line every {every:,} steps and at the end",
            "lines were lost, and what is said here of learning is of the rest: restore"
            " metrics.jsonl",
        )
    return judge(
        "ok" if last >= steps or _lost_patience(config, curves) else "look",
        f"step {last:,} of {steps:,}"
        + (f", patience {patience}" if patience is not None and last < steps else ""),
        "all steps of the configuration",
        "give the same jaxformer train command again: it goes on",
    )


def _lost_patience(config: RunConfig, curves: Curves) -> bool:
    """Return whether as many evaluations as ``training.patience`` came after the best
    one.
    """
    patience, metric = config.training.patience, config.evaluation.best_metric
    points = curves.get("valid/nll" if metric == "loss" else f"valid/{metric}", ())
    if patience is None or not points:
        return False
    sign = -1.0 if metric == "loss" else 1.0
    # of equals the first
    best = max(range(len(points)), key=lambda place: sign * points[place][1])
    return len(points) - 1 - best >= patience


def diverged(curves: Curves, gaps: Gaps) -> Opinion:
    """Look for jumps of the training loss, for one that never came back, and for a
    loss that is no finite number.
    """
    points, gone = curves.get("train/nll", ()), gaps.get("train/nll", ())
    if len(points) + len(gone) < 3:
        return Opinion("unseen", "fewer than three lines of training in metrics.jsonl")
    if gone:
        return _not_finite(points, gone)
    values = [value for _, value in points]
    jumps = [
        step
        for (_, before), (step, after) in itertools.pairwise(points)
        if after - before > _JUMP
    ]
    lost = values[-1] - min(values) > _DIVERGED
    found = f"training nll {values[-1]:.2f} at the end, {min(values):.2f} at best"
    if jumps:
        found += (
            f", {len(jumps)} jumps of more than {_JUMP} nats (the first by step"
            f" {jumps[0]:,})"
        )
    return judge(
        "wrong" if lost else "look" if jumps else "ok",
        found,
        f"no rise of {_JUMP} nats between two lines of the log",
        _STEADIER,
    )


def _not_finite(points: Curve, gone: Sequence[int]) -> Opinion:
    """Judge a training loss that is no finite number in some lines of the log, or in
    all from one on.
    """
    lost = _lost_since(points, gone)
    return judge(
        "look" if lost is None else "wrong",
        (
            f"no finite train/nll in {len(gone)} lines of the log (the first by step"
            f" {gone[0]:,})"
            if lost is None
            else f"no finite train/nll since step {lost:,}"
        ),
        "a finite number in each line",
        _STEADIER,
    )


def _lost_since(points: Curve, gone: Sequence[int]) -> int | None:
    """Return the first of the last steps that have no finite number; None where the
    last one has.
    """
    last = points[-1][0] if points else -1
    return min((step for step in gone if step > last), default=None)


def stalled(config: RunConfig, curves: Curves, gaps: Gaps) -> Opinion:
    """Look for a model that never learned more than how often words come."""
    points, vocabulary = curves.get("train/nll", ()), config.model.vocabulary_size
    lost = _lost_since(points, gaps.get("train/nll", ()))
    if lost is not None:
        return Opinion("unseen", f"no finite train/nll since step {lost:,}")
    settled = max(2 * config.training.warmup_steps, 500)
    if not points or points[-1][0] < settled:
        return Opinion(
            "unseen",
            f"the run has not made {settled:,} steps: twice its warm-up, 500 at least",
        )
    nll, guess = points[-1][1], math.log(vocabulary)
    return judge(
        "wrong" if nll > _STALLED * guess else "ok",
        f"training nll {nll:.2f}",
        f"well below {_STALLED * guess:.1f}, {_STALLED:.0%} of a uniform guess among"
        f" {vocabulary:,} pieces",
        "post-LN without enough warm-up stalls so: a longer"
        " --config.training.warmup_steps, or --config.model.norm_order=pre; else the"
        " sides of the training text do not belong together",
    )


def skipped(curves: Curves) -> Opinion:
    """Count the steps whose loss or gradient was not finite."""
    if "train/skipped" not in curves:
        return Opinion("unseen", "metrics.jsonl has no train/skipped")
    count, last = (
        sum(value for _, value in curves["train/skipped"]),
        curves["train/skipped"][-1][0],
    )
    return judge(
        grade(count / max(last, 1), 0.0, 0.01),
        f"{count:,.0f} of {last:,} steps skipped",
        "0; a few under model.dtype=float16, which looks for its scale",
        "a lower --config.training.learning_rate, or model.dtype=bfloat16; bad_batches/"
        " holds the batches",
    )


def falling(curves: Curves) -> Opinion:
    """Return whether the validation loss still fell when training ended."""
    points = curves.get("valid/nll", ())
    if len(points) < 3:
        return Opinion("unseen", "fewer than three evaluations in metrics.jsonl")
    last, value = points[-1]
    step, before = min(
        points[:-1], key=lambda point: abs(point[0] - _FALLING_FROM * last)
    )
    return judge(
        "look" if before - value > _FALLING else "ok",
        f"validation nll fell by {before - value:.3f} from step {step:,} to {last:,}",
        f"less than {_FALLING} from the evaluation nearest to {_FALLING_FROM:.0%} of"
        " training on",
        "the model has not converged: more --config.training.steps",
    )


def overfitted(curves: Curves) -> Opinion:
    """Return whether the validation loss rose again."""
    points = curves.get("valid/nll", ())
    if len(points) < 2:
        return Opinion("unseen", "fewer than two evaluations in metrics.jsonl")
    step, best = min(points, key=lambda point: point[1])
    return judge(
        "look" if points[-1][1] - best > _RISING else "ok",
        f"validation nll {points[-1][1]:.3f} at the end, {best:.3f} at best (step"
        f" {step:,})",
        f"at most {_RISING} above its best",
        "more text, more --config.model.dropout_rate, or fewer steps; --checkpoint=best"
        " goes by the run's best_metric",
    )
