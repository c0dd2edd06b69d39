"""The training loop. :mod:`jaxformer.training.train` puts its parts together."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from jaxformer.checkpoints.manager import CheckpointManager
from jaxformer.checkpoints.saved import deciding
from jaxformer.data.batching import Batch
from jaxformer.data.pipeline import TrainingData
from jaxformer.errors import InputError
from jaxformer.runs.config import RunConfig
from jaxformer.runs.records import Validator
from jaxformer.signals import StopSignal, WaitInterruptedError
from jaxformer.training.bad_steps import save_bad_batch
from jaxformer.training.compilations import Compilations, read_memory
from jaxformer.training.display import Display
from jaxformer.training.engines import Engine
from jaxformer.training.hosts import StopVote, any_host
from jaxformer.training.log import Log
from jaxformer.training.meter import Meter
from jaxformer.training.profile import Profile
from jaxformer.training.progress import Progress
from jaxformer.training.state import TrainState
from jaxformer.training.step import Metrics


class Outcome(NamedTuple):
    """How training ended: finished, or interrupted by a signal."""

    step: int
    finished: bool
    signal: str | None


@dataclasses.dataclass(frozen=True)
class LoopParts:
    """What :func:`run_loop` works with."""

    config: RunConfig
    directory: Path
    engine: Engine
    data: TrainingData
    valid: list[Batch]
    checkpoints: CheckpointManager
    log: Log
    display: Display
    validate: Validator | None
    stop: StopSignal
    profile: Profile
    compilations: Compilations


def run_loop(parts: LoopParts, state: TrainState, progress: Progress) -> Outcome:
    """Train to the configured number of steps, to the end of patience, or to a signal.

    Every host runs it, and all make the same turns.
    """
    engine, stop, meter = parts.engine, parts.stop, _make_meter(parts)
    host, hosts = engine.share
    # Steps whose metrics are still on the devices.
    unread: list[tuple[int, Metrics, Batch]] = []
    vote, shapes = StopVote(), set[tuple[int, ...]]()
    batches = parts.data.batches(progress.position, host=host, hosts=hosts)
    left = parts.config.training.steps - progress.step
    ahead = parts.data.blanks(progress.position, left)
    with contextlib.closing(batches):
        while True:
            if _must_evaluate(parts, progress):
                with meter.paused():
                    evaluate(parts, state, progress)
                    save(parts, state, progress)
            _profile(parts, state, progress)
            # The one place that decides to stop.
            interrupted = _must_evaluate(parts, progress)
            if _is_done(parts, progress) or interrupted or vote(bool(stop)):
                break

            asked = time.monotonic()
            try:
                # Hosts that wait for each other stop together: the others may have
                # their batch already.
                with stop.interrupting(jax.process_count() == 1):
                    batch, position = next(batches)
            except WaitInterruptedError:
                continue
            meter.wait(time.monotonic() - asked)

            # A new shape is compiled. The meter leaves that step out.
            shape = tuple(itertools.chain.from_iterable(map(np.shape, batch.values())))
            compiles = shape not in shapes
            if compiles:
                shapes.add(shape)
                read(parts, unread, progress, meter)
            with meter.compiling() if compiles else contextlib.nullcontext():
                if compiles:
                    _compile(engine, batch, ahead)
                state, metrics = engine.step(state, batch)
                progress.step, progress.position = progress.step + 1, position
                unread.append((progress.step, metrics, batch))
                log_due, evaluation_due, save_due = _due_now(parts, progress)
                # Metrics are read a step late: the devices work on this step while the
                # host gets the next batch.
                at_rest = compiles or log_due or evaluation_due or save_due
                read(parts, unread, progress, meter, leave=0 if at_rest else 1)
            entry = {}
            if log_due or (parts.display.live and progress.sums):
                entry = write_log(parts, progress, meter, keep=not log_due)
            parts.display.advance(progress.step, entry)
            if save_due and not evaluation_due:
                save(parts, state, progress)
        read(parts, unread, progress, meter)
        _profile(parts, state, progress)
    return _end(parts, state, progress)


def _compile(engine: Engine, batch: Batch, ahead: Iterator[Batch]) -> None:
    """Compile a step, and meanwhile begin with those that follow."""
    compiling = engine.compile(batch)
    for other in ahead:
        engine.compile(other)
        if compiling.done():
            break
    compiling.result()


def _make_meter(parts: LoopParts) -> Meter:
    training, (_, hosts) = parts.config.training, parts.engine.share
    return Meter(
        parts.config.model,
        parts.engine.devices / hosts,
        passes=2 if training.r_drop else 1,
        predicted=training.mask_rate if training.masks else 1.0,
    )


def read(
    parts: LoopParts,
    unread: list[tuple[int, Metrics, Batch]],
    progress: Progress,
    meter: Meter,
    *,
    leave: int = 0,
) -> None:
    """Wait for the metrics of all but the last ``leave`` steps, and add them up.

    Raises:
        InputError: too many steps in a row had no finite loss and gradient.
    """
    while len(unread) > leave:
        step, metrics, batch = unread.pop(0)
        # All copies from the device begin together.
        values = {name: float(value) for name, value in jax.device_get(metrics).items()}
        _check_finite(parts, step, values, batch, progress)
        progress.add(values)
        if parts.config.training.masks and "source" in batch:
            batch = {"target": batch["source"]}  # whose words are predicted
        meter.add(values["tokens"], batch)


def write_log(
    parts: LoopParts, progress: Progress, meter: Meter, *, keep: bool = False
) -> dict[str, float]:
    """Write and return the means of the metrics since the last line of the log, and
    their latest rate and loss scale; where they are to be kept, only return them.
    """
    sums = progress.sums
    entry, tokens = {}, sums.get("tokens", 0.0)
    good = sums["steps"] - sums["skipped"]
    if good and tokens:
        entry = {
            "train/loss": sums["loss"] / tokens,
            "train/nll": sums["nll"] / tokens,
            **_perplexity(parts, "train", sums["nll"] / tokens),
            "train/gradient_norm": sums["gradient_norm"] / good,
            "train/padding": 1.0 - (tokens + sums["source_tokens"]) / sums["slots"],
        }
    entry |= {
        "train/learning_rate": sums["learning_rate"],
        "train/tokens": tokens,
        "train/skipped": sums["skipped"],
        "train/epoch": float(progress.position.epoch),
        **meter.read(parts.config.training.steps - progress.step, keep=keep),
        **parts.compilations.read(),
        **read_memory(),
    }
    if keep:
        return entry
    progress.sums = {}
    if "loss_scale" in sums:
        entry["train/loss_scale"] = sums["loss_scale"]
        if not good:
            parts.display.say(
                f"step {progress.step}: no step since the last line updated the"
                f" parameters, at a loss scale that is down to {sums['loss_scale']:g};"
                " train longer, or lower training.loss_scale"
            )
    parts.log.write(progress.step, entry)
    return entry


def evaluate(parts: LoopParts, state: TrainState, progress: Progress) -> None:
    """Measure loss and translations of the validation set; return early on a signal."""
    parts.display.doing("evaluating")
    begun = time.monotonic()
    sums: dict[str, float] = {}
    for batch in parts.valid:
        if any_host(bool(parts.stop)):
            return
        parts.engine.compile(batch, train=False).result()
        for name, value in parts.engine.evaluate(state, batch).items():
            sums[name] = sums.get(name, 0.0) + float(value)
    nll = sums["nll"] / sums["tokens"]
    scores = {
        "smoothed_loss": sums["loss"] / sums["tokens"],
        "accuracy": sums["correct"] / sums["tokens"],
    }
    if "texts" in sums:
        for name in ("nll", "accuracy"):
            scores[f"next_{name}"] = sums[f"next_{name}"] / sums["texts"]
    samples = []
    if parts.validate is not None:
        weights = parts.engine.weights(state)
        validation = parts.validate(
            weights, lambda: bool(parts.stop), parts.display.doing
        )
        if validation is None:
            return
        scores |= validation.scores
        samples = validation.samples
    entry = {"valid/nll": nll, **_perplexity(parts, "valid", nll)}
    entry |= {f"valid/{name}": value for name, value in scores.items()}
    parts.log.write(progress.step, entry)
    parts.log.write_samples(progress.step, samples)
    objective = parts.config.training.objective
    entry["seconds"] = time.monotonic() - begun
    parts.display.say(describe_evaluation(progress.step, entry, samples, objective))
    # Checkpoints and evaluation.best_metric call it the loss.
    metric = parts.config.evaluation.best_metric
    progress.judge({"loss": nll, **scores}, metric)
    if progress.best is not None and deciding(metric, progress.best) != metric:
        parts.display.say("BLEU is below 1: the best checkpoint has the lowest loss")


def save(parts: LoopParts, state: TrainState, progress: Progress) -> None:
    """Begin to save a checkpoint, with the scores if the step was evaluated."""
    collected = parts.engine.collect(state)
    parts.checkpoints.save(
        progress.step,
        collected.weights,
        collected.rest(),
        progress.to_json(),
        progress.scores if progress.evaluated == progress.step else None,
    )


def _end(parts: LoopParts, state: TrainState, progress: Progress) -> Outcome:
    if progress.step not in parts.checkpoints.steps:
        save(parts, state, progress)
    parts.checkpoints.wait()
    finished = _is_done(parts, progress) and progress.evaluated == progress.step
    if not finished:
        parts.display.say(
            f"{parts.stop.received or 'another host'}: saved at step {progress.step};"
            " the same command continues from there"
        )
        return Outcome(progress.step, False, parts.stop.received)
    if progress.step < parts.config.training.steps:
        metric = parts.config.evaluation.best_metric
        better = f"a finite {metric}"
        if progress.best is not None:
            by = deciding(metric, progress.best)
            better = (
                f"a better {by} than {progress.best_scores.get(by, progress.best):.4g}"
            )
        parts.display.say(
            f"step {progress.step} is the last: {progress.stale} evaluations without"
            f" {better}"
        )
    return Outcome(progress.step, True, None)


def _is_done(parts: LoopParts, progress: Progress) -> bool:
    training = parts.config.training
    return progress.step >= training.steps or (
        training.patience is not None and progress.stale >= training.patience
    )


def _due_now(parts: LoopParts, progress: Progress) -> tuple[bool, bool, bool]:
    """Return whether a line of the log, an evaluation and a checkpoint are due."""
    training, step = parts.config.training, progress.step
    last = step >= training.steps
    return (
        last or step % training.log_every == 0,
        last or step % training.evaluate_every == 0,
        last or step % training.checkpoint_every == 0,
    )


def _must_evaluate(parts: LoopParts, progress: Progress) -> bool:
    """Return whether an evaluation is due and not made, since it was interrupted or is
    next.
    """
    _, due, _ = _due_now(parts, progress)
    return progress.step > 0 and due and progress.evaluated < progress.step


def _check_finite(
    parts: LoopParts,
    step: int,
    values: dict[str, float],
    batch: Batch,
    progress: Progress,
) -> None:
    """Note a step that was skipped, and stop after too many in a row."""
    if not values["skipped"]:
        progress.bad_steps = 0
        return
    if values.get("loss_scale", 1.0) > 1.0 and math.isfinite(values["loss"]):
        return  # float16 looks for its scale
    progress.bad_steps += 1
    kept = save_bad_batch(parts.directory, step, batch)
    parts.display.say(
        f"step {step} is skipped: its loss is {values['loss']:g} and its gradient norm"
        f" {values['gradient_norm']:g}"
        + (f"; its batch is kept in {kept}" if kept else "")
    )
    if progress.bad_steps >= parts.config.training.max_bad_steps:
        raise InputError(
            f"{progress.bad_steps} steps in a row up to step {step} had no finite loss"
            " and gradient: training diverged; lower"
            " training.learning_rate or lengthen training.warmup_steps, and train in a"
            " new --workdir"
        )


def _profile(parts: LoopParts, state: TrainState, progress: Progress) -> None:
    written = parts.profile.at(progress.step, state)
    if written is not None:
        parts.display.say(f"profile up to step {progress.step}: {written}")


# Metrics of an evaluation that are shown.
_SHOWN = {
    "ppl": "valid/perplexity",
    "BLEU": "valid/bleu",
    "chrF": "valid/chrf",
    "F1": "valid/f1",
    "next accuracy": "valid/next_accuracy",
}
_ACCURACY = {"accuracy": "valid/accuracy"}
_SHOWN_OF = {
    **dict.fromkeys(("classification", "tagging", "span"), _ACCURACY),
    "regression": {},
}


def _perplexity(parts: LoopParts, split: str, nll: float) -> dict[str, float]:
    """Return the perplexity of words, by its name in the log; labels have none."""
    if not parts.config.training.predicts_words:
        return {}
    return {f"{split}/perplexity": math.exp(min(nll, 700.0))}


def describe_evaluation(
    step: int, entry: dict[str, float], samples: list[dict[str, str]], objective: str
) -> str:
    """Format what an evaluation found, for a reader.

    Args:
        step: of the run.
        entry: of the log, and the ``seconds`` that it took.
        samples: translations, of which the first two are shown.
        objective: of the run, which decides the metrics that are shown.
    """
    loss = "squared error" if objective == "regression" else "nll"
    words = [f"{loss} {entry['valid/nll']:.3f}"]
    for label, name in _SHOWN_OF.get(objective, _SHOWN).items():
        if name in entry:
            digits = 3 if "accuracy" in label else 2
            words.append(f"{label} {entry[name]:.{digits}f}")
    lines = [f"evaluation at step {step}: {', '.join(words)}, {entry['seconds']:.1f} s"]
    for sample in samples[:2]:
        names = ("source", "translation", "reference")
        lines += [f"  {name:<11}\t{sample[name]}" for name in names]
    return "\n".join(lines)
