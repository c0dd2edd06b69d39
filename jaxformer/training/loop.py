"""The one training loop, from top to bottom; :mod:`jaxformer.training.train` puts
its parts together.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxformer.checkpoints.manager import CheckpointManager
from jaxformer.data.batching import Batch
from jaxformer.data.pipeline import Position, TrainingData
from jaxformer.errors import InputError
from jaxformer.runs.config import RunConfig
from jaxformer.runs.records import Validator
from jaxformer.training.bad_steps import describe_bad_step, save_bad_batch
from jaxformer.training.compilations import Compilations, read_memory
from jaxformer.training.display import Display
from jaxformer.training.engines import Engine
from jaxformer.training.hosts import any_host
from jaxformer.training.log import Log
from jaxformer.training.meter import Meter
from jaxformer.training.placement import Placed
from jaxformer.training.profile import Profile
from jaxformer.training.progress import Progress
from jaxformer.training.signals import StopSignal, WaitInterruptedError
from jaxformer.training.stalls import Watched, describe_stall
from jaxformer.training.state import TrainState
from jaxformer.training.step import Metrics


class Outcome(NamedTuple):
    """How training ended: finished, or interrupted by a signal."""

    step: int
    finished: bool
    signal: str | None


class Unread(NamedTuple):
    """A step whose metrics were not read yet."""

    step: int
    metrics: Metrics
    batch: Batch
    stop: Any
    """Whether any host was to stop, as :func:`any_host` says it."""


@dataclasses.dataclass(frozen=True)
class Loop:
    """The parts of a run that trains; :meth:`run` is the loop.

    Every host runs it, and all take the same turns: what decides them is the same on
    each.
    """

    config: RunConfig
    directory: Path
    engine: Engine
    data: TrainingData
    valid: list[Batch]
    checkpoints: CheckpointManager
    log: Log
    display: Display
    validate: Validator | None
    identity: dict[str, str]
    stop: StopSignal
    profile: Profile
    compilations: Compilations

    def run(self, state: TrainState, progress: Progress) -> Outcome:
        """Train from ``state`` to the configured number of steps, to the end of
        patience, or to a signal.
        """
        training = self.config.training
        if (
            self._due(progress.step, training.evaluate_every)
            and progress.evaluated < progress.step
        ):
            self._evaluate(state, progress)
            self._save(state, progress)
        host, hosts = self.engine.share
        made = self.data.batches(progress.position, host=host, hosts=hosts)
        with contextlib.closing(
            Watched(made, training.stall_seconds, self._report_stall)
        ) as watched:
            passes = 2 if training.r_drop else 1
            meter = Meter(
                self.config.model,
                self.engine.devices / hosts,
                passes=passes,
                waited=lambda: watched.waited,
            )
            return self._end(
                self._train(state, progress, _ahead(watched, self.engine), meter),
                progress,
            )

    def _train(
        self,
        state: TrainState,
        progress: Progress,
        batches: Iterator[tuple[Batch, Placed, Position]],
        meter: Meter,
    ) -> TrainState:
        training = self.config.training
        # Metrics are read a step late, so that the devices work while the host gets the
        # next batch; but in time for the log, and before anything is evaluated or
        # saved.
        unread: list[Unread] = []
        stopping = bool(any_host(bool(self.stop)))
        # A single host needs no agreement.
        while not (
            stopping
            or self._is_done(progress)
            or (jax.process_count() == 1 and self.stop)
        ):
            self._profile(progress, state)
            try:
                # Hosts that wait for each other stop together: the others may have
                # their batch already.
                with self.stop.interrupting(jax.process_count() == 1):
                    batch, placed, position = next(batches)
            except WaitInterruptedError:
                break
            begun, compiled = time.monotonic(), self.engine.compilations()
            state, metrics = self.engine.step(state, placed)
            if self.engine.compilations() > compiled:
                # The call may last until the step is made: freed_memory.py.
                meter.leave_out(max(self.compilations.ended - begun, 0.0))
            progress.step, progress.position = progress.step + 1, position
            unread.append(
                Unread(progress.step, metrics, batch, any_host(bool(self.stop)))
            )
            logged, evaluated = (
                self._due(progress.step, n)
                for n in (training.log_every, training.evaluate_every)
            )
            saved = evaluated or self._due(progress.step, training.checkpoint_every)
            stopping = self._read(
                unread, progress, meter, leave=int(is_late() and not (logged or saved))
            )
            entry = self._log(progress, meter) if logged else {}
            self.display.advance(progress.step, entry)
            if evaluated:
                self._evaluate(state, progress)
                # interrupted, on all hosts alike
                stopping = stopping or progress.evaluated < progress.step
                meter.pause()
            if saved:
                self._save(state, progress)
        self._read(unread, progress, meter, leave=0)
        self._profile(progress, state)
        return state

    def _end(self, state: TrainState, progress: Progress) -> Outcome:
        if progress.step not in self.checkpoints.steps:
            self._save(state, progress)
        self.checkpoints.wait()
        finished = self._is_done(progress) and progress.evaluated == progress.step
        if finished and progress.step < self.config.training.steps:
            metric = self.config.evaluation.best_metric
            better = (
                f"a finite {metric}"
                if progress.best is None
                else f"a better {metric} than {progress.best:.4g}"
            )
            self.display.say(
                f"step {progress.step} is the last: {progress.stale} evaluations"
                f" without {better}"
            )
        if not finished:
            self.display.say(
                f"{self.stop.received or 'another host'}: saved at step"
                f" {progress.step}; the same command goes on from there"
            )
        return Outcome(
            progress.step, finished, None if finished else self.stop.received
        )

    def _is_done(self, progress: Progress) -> bool:
        patience = self.config.training.patience
        return progress.step >= self.config.training.steps or (
            patience is not None and progress.stale >= patience
        )

    def _due(self, step: int, every: int) -> bool:
        return step > 0 and (step % every == 0 or step >= self.config.training.steps)

    def _read(
        self, unread: list[Unread], progress: Progress, meter: Meter, *, leave: int
    ) -> bool:
        """Take in the metrics of all but the last ``leave`` steps; say whether to
        stop.
        """
        stopping = False
        while len(unread) > leave:
            step, metrics, batch, stop = unread.pop(0)
            stopping = stopping or bool(stop)
            # The copies of all from the device begin together.
            values = {
                name: float(value) for name, value in jax.device_get(metrics).items()
            }
            self._judge(step, values, batch, progress)
            progress.add(values)
            meter.add(values["tokens"], batch)
        return stopping

    def _judge(
        self, step: int, values: dict[str, float], batch: Batch, progress: Progress
    ) -> None:
        """Note a step that was skipped, and stop when there were too many in a row."""
        if not values["skipped"]:
            progress.bad_steps = 0
            return
        if values.get("loss_scale", 1.0) > 1.0 and math.isfinite(values["loss"]):
            return  # float16 looks for its scale
        progress.bad_steps += 1
        kept = save_bad_batch(
            self.directory,
            step,
            batch,
            host=jax.process_index(),
            hosts=jax.process_count(),
        )
        self.display.say(
            describe_bad_step(step, values["loss"], values["gradient_norm"], kept)
        )
        if progress.bad_steps >= self.config.training.max_bad_steps:
            raise InputError(
                f"{progress.bad_steps} steps in a row up to step {step} had no finite"
                f" loss and gradient (the last: {values['loss']:g} and"
                f" {values['gradient_norm']:g}): training diverged; lower"
                " training.learning_rate or lengthen training.warmup_steps, and train"
                " in a new --workdir"
            )

    def _log(self, progress: Progress, meter: Meter) -> dict[str, float]:
        sums, progress.sums = progress.sums, {}
        entry = {}
        good = sums["steps"] - sums["skipped"]
        if good and sums["tokens"]:
            entry["train/loss"] = sums["loss"] / sums["tokens"]
            entry["train/nll"] = sums["nll"] / sums["tokens"]
            entry["train/perplexity"] = _perplexity(sums["nll"] / sums["tokens"])
            entry["train/gradient_norm"] = sums["gradient_norm"] / good
        entry |= {
            "train/learning_rate": sums["learning_rate"],
            "train/tokens": sums.get("tokens", 0.0),
            "train/padding": (
                1.0 - (sums.get("tokens", 0.0) + sums["source_tokens"]) / sums["slots"]
            ),
            "train/skipped": sums["skipped"],
            "train/epoch": float(progress.position.epoch),
            **meter.read(self.config.training.steps - progress.step),
            **self.compilations.read(),
            **read_memory(),
        }
        if "loss_scale" in sums:
            entry["train/loss_scale"] = sums["loss_scale"] / good
        self.log.write(progress.step, entry)
        return entry

    def _evaluate(self, state: TrainState, progress: Progress) -> None:
        """Measure loss and translations of the validation set, unless a signal comes
        in between.
        """
        sums: dict[str, float] = {}
        for batch in self.valid:
            if any_host(bool(self.stop)):
                return
            for name, value in self.engine.evaluate(state, batch).items():
                sums[name] = sums.get(name, 0.0) + float(value)
        nll = sums["nll"] / sums["tokens"]
        scores = {
            "loss": nll,
            "smoothed_loss": sums["loss"] / sums["tokens"],
            "accuracy": sums["correct"] / sums["tokens"],
        }
        samples = []
        if self.validate is not None:
            validation = self.validate(
                self.engine.weights(state), lambda: bool(self.stop)
            )
            if validation is None:
                return
            scores.update(validation.scores)
            samples = validation.samples
        entry = {
            f"valid/{'nll' if name == 'loss' else name}": value
            for name, value in scores.items()
        }
        entry["valid/perplexity"] = _perplexity(nll)
        self.log.write(progress.step, entry)
        self.log.write_samples(progress.step, samples)
        self.display.say(_report(progress.step, entry, samples))
        progress.judge(scores, self.config.evaluation.best_metric)

    def _save(self, state: TrainState, progress: Progress) -> None:
        collected = self.engine.collect(state)
        self.checkpoints.save(
            progress.step,
            collected.weights,
            collected.rest(),
            {**progress.to_json(), **self.identity},
            progress.scores if progress.evaluated == progress.step else None,
        )

    def _profile(self, progress: Progress, state: TrainState) -> None:
        written = self.profile.at(progress.step, state)
        if written is not None:
            self.display.say(f"profile up to step {progress.step}: {written}")

    def _report_stall(self, seconds: float) -> None:
        self.display.warn(describe_stall(seconds, self.config.data.train))


def is_late() -> bool:
    """Return whether metrics are read a step late.

    A CPU is its own host, and its steps may be made when the call returns
    (``jaxformer/freed_memory.py``): read a step later, they would be measured from the
    end of the next one on.
    """
    return jax.default_backend() != "cpu"


def _ahead(
    batches: Iterator[tuple[Batch, Position]], engine: Engine
) -> Iterator[tuple[Batch, Placed, Position]]:
    """Put each batch where the steps run before it is asked for, one at a time."""
    waiting = None
    for batch, position in batches:
        placed = batch, engine.put(batch), position
        if waiting is not None:
            yield waiting
        waiting = placed


def _perplexity(nll: float) -> float:
    return math.exp(min(nll, 700.0))


def _report(step: int, entry: dict[str, float], samples: list[dict[str, str]]) -> str:
    words = [
        f"valid nll {entry['valid/nll']:.3f}",
        f"ppl {entry['valid/perplexity']:.2f}",
    ]
    for name, label in (
        ("valid/bleu", "BLEU"),
        ("valid/chrf", "chrF"),
        ("valid/f1", "F1"),
    ):
        if name in entry:
            words.append(f"{label} {entry[name]:.2f}")
    lines = [f"evaluation at step {step}: {', '.join(words)}"]
    for sample in samples[:2]:
        lines += [
            f"  source      {sample['source']}",
            f"  translation {sample['translation']}",
        ]
    return "\n".join(lines)
