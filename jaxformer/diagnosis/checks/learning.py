"""Checks of the learning curves."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from jaxformer.diagnosis.evidence import Evidence, UnseenError, find_curve
from jaxformer.diagnosis.findings import Finding, grade, judge
from jaxformer.runs.config import RunConfig
from jaxformer.runs.records import Curve

_JUMP = 0.5  # nats a token between two lines of the log
_DIVERGED = 1.0
# Share of the nats of a uniform guess; word frequencies alone reach about as much.
_STALLED = 0.6
_CHANCE = 0.95  # the same of labels, which a model may know from the first
# Nats a token, and the part of training after which they count.
_FALLING, _FALLING_FROM = 0.05, 0.8
_RISING = 0.05
_STEADIER = (
    "a lower --config.training.learning_rate, a longer --config.training.warmup_steps,"
    " or --config.training.gradient_clip=1.0; look at the data around the jump"
)


def check_finished(run: Evidence) -> Finding:
    """Check that the run made all steps and that its log is complete."""
    training, curves, saved = run.config.training, run.curves, run.saved
    last = max((curve[-1][0] for curve in curves.values() if curve), default=0)
    steps, every = training.steps, min(training.log_every, training.evaluate_every)
    if saved and last < saved[-1] and (saved[-1] >= steps or saved[-1] - last >= every):
        return judge(
            "look",
            f"metrics.jsonl ends with step {last:,}, and there is a checkpoint of step"
            f" {saved[-1]:,}",
            f"a line every {every:,} steps and at the end",
            "lines are lost, and the findings on learning use the rest: restore"
            " metrics.jsonl",
        )
    patience = training.patience
    early = "" if patience is None or last >= steps else f", patience {patience}"
    return judge(
        "ok" if last >= steps or _lost_patience(run) else "look",
        f"step {last:,} of {steps:,}{early}",
        "all steps of the configuration",
        "run the same jaxformer train command again: it continues",
    )


def _lost_patience(run: Evidence) -> bool:
    """Return whether the best evaluation is ``training.patience`` evaluations old."""
    patience, (key, sign) = run.config.training.patience, best_curve(run.config)
    scores = [sign * value for _, value in run.curves.get(key, ())]
    if patience is None or not scores:
        return False
    return len(scores) - 1 - scores.index(max(scores)) >= patience


def best_curve(config: RunConfig) -> tuple[str, float]:
    """Return the key of the metric that chooses the best checkpoint, and its sign:
    -1.0 where less is better.
    """
    metric = config.evaluation.best_metric
    return ("valid/nll", -1.0) if metric == "loss" else (f"valid/{metric}", 1.0)


def check_diverged(run: Evidence) -> Finding:
    """Check the training loss for jumps, divergence and numbers that are not finite."""
    points, gone = run.curves.get("train/nll", ()), run.gaps.get("train/nll", ())
    if len(points) + len(gone) < 3:
        raise UnseenError("fewer than three lines of training in metrics.jsonl")
    if gone:
        lost = _lost_since(points, gone)
        where = f"in {len(gone)} lines of the log (the first by step {gone[0]:,})"
        return judge(
            "look" if lost is None else "wrong",
            f"no finite train/nll {where if lost is None else f'since step {lost:,}'}",
            "a finite number in each line",
            _STEADIER,
        )
    values = [value for _, value in points]
    jumps = [
        step
        for (_, before), (step, after) in itertools.pairwise(points)
        if after - before > _JUMP
    ]
    found = f"training nll {values[-1]:.2f} at the end, {min(values):.2f} at best"
    if jumps:
        found += (
            f", {len(jumps)} jumps of more than {_JUMP} nats (the first by step"
            f" {jumps[0]:,})"
        )
    lost = values[-1] - min(values) > _DIVERGED
    return judge(
        "wrong" if lost else "look" if jumps else "ok",
        found,
        f"no rise of {_JUMP} nats between two lines of the log",
        _STEADIER,
    )


def _lost_since(points: Curve, gone: Sequence[int]) -> int | None:
    """Return the step from which on no line has a finite number, or None."""
    last = points[-1][0] if points else -1
    return min((step for step in gone if step > last), default=None)


def check_stalled(run: Evidence) -> Finding:
    """Check that the model learned more than word frequencies, or is not at chance
    level with its labels.
    """
    training, size = run.config.training, run.config.model.vocabulary_size
    if training.objective in ("regression", "span"):
        raise UnseenError(f"training.objective={training.objective} has no such loss")
    points = run.curves.get("train/nll", ())
    lost = _lost_since(points, run.gaps.get("train/nll", ()))
    if lost is not None:
        raise UnseenError(f"no finite train/nll since step {lost:,}")
    labels = training.objective in ("classification", "tagging")
    least, share, what = (1, _CHANCE, "labels") if labels else (500, _STALLED, "pieces")
    settled = max(2 * training.warmup_steps, least)
    if not points or points[-1][0] < settled:
        raise UnseenError(f"the run has made fewer than {settled:,} steps")
    nll, limit = points[-1][1], share * math.log(size)
    cure = (
        "post-LN needs warm-up: a longer --config.training.warmup_steps, or"
        " --config.model.norm_order=pre"
    )
    if training.objective == "translation":
        cure += "; else the sides of the training text do not belong together"
    if labels:
        cure = (
            "a lower --config.training.learning_rate, a longer"
            " --config.training.warmup_steps, or another --config.training.seed: some"
            " fine-tuned encoders stay at chance level"
        )
    return judge(
        "wrong" if nll > limit else "ok",
        f"training nll {nll:.2f}",
        f"well below {limit:.1f}, {share:.0%} of a uniform guess among {size:,} {what}",
        cure,
    )


def check_skipped(run: Evidence) -> Finding:
    """Count the steps whose loss or gradient was not finite."""
    points = find_curve(run, "train/skipped")
    count, last = sum(value for _, value in points), points[-1][0]
    return judge(
        grade(count / max(last, 1), 0.0, 0.01),
        f"{count:,.0f} of {last:,} steps skipped",
        "0; a few under model.dtype=float16, which searches its scale",
        "a lower --config.training.learning_rate, or model.dtype=bfloat16; bad_batches/"
        " holds the batches",
    )


def check_still_falling(run: Evidence) -> Finding:
    """Check whether the validation loss still fell at the end of training."""
    points = find_curve(run, "valid/nll", 3)
    last, value = points[-1]
    step, before = min(
        points[:-1], key=lambda point: abs(point[0] - _FALLING_FROM * last)
    )
    return judge(
        "look" if before - value > _FALLING else "ok",
        f"validation nll fell by {before - value:.3f} from step {step:,} to {last:,}",
        f"less than {_FALLING} from the evaluation nearest to {_FALLING_FROM:.0%} of"
        " training",
        "train on by the same command with more --config.training.steps"
        if not run.config.training.fixes_steps
        else "train on in another --workdir with --config.training.initial_run=RUN,"
        " which is this run",
    )


def check_overfitted(run: Evidence) -> Finding:
    """Check whether the validation loss rose after its minimum."""
    points = find_curve(run, "valid/nll", 2)
    step, best = min(points, key=lambda point: point[1])
    return judge(
        "look" if points[-1][1] - best > _RISING else "ok",
        f"validation nll {points[-1][1]:.3f} at the end, {best:.3f} at best (step"
        f" {step:,})",
        f"at most {_RISING} above its best",
        "more text, more --config.model.dropout_rate, or fewer steps; --checkpoint=best"
        " goes by the run's best_metric",
    )
