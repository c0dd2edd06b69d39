"""Checkpoints of a run: saved in the background by orbax; the latest, the best and every k-th of them kept."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
from jax.experimental import multihost_utils

from jaxformer.checkpoints import folder
from jaxformer.errors import InputError, require
from jaxformer.typing import PyTree

_TEMPORARY = ".orbax-checkpoint-tmp"
# What a checkpoint that is being saved again is called until the new one is whole.
_REPLACED = ".replaced"


class CheckpointManager:
    """The checkpoints under one directory.

    A checkpoint is a pytree of parameters, a pytree of what else training changes, a JSON record of the loop's own
    counters, and the scores of its evaluation, if it was evaluated. What a killed save left behind is ignored.

    On several processes all of them make the same calls in the same order: each saves and restores its own shards of
    the arrays, and the first alone renames and removes folders.
    """

    def __init__(
        self,
        directory: Path,
        *,
        keep_latest: int = 2,
        keep_best: int = 1,
        keep_every: int | None = None,
        best_metric: str = "bleu",
        on_failure: Callable[[InputError], None] | None = None,
    ) -> None:
        """Open a directory of checkpoints; it is made where it is missing.

        Args:
            directory: where the checkpoints lie, each in a folder named by its step.
            keep_latest: how many of the latest to keep.
            keep_best: how many of the best to keep besides, by ``best_metric``.
            keep_every: keep every checkpoint whose step this divides, besides.
            best_metric: name of a score; higher is better, but for ``loss``.
            on_failure: what :meth:`save` calls with the error of a save that failed, and goes on; None: it raises it.
                On several processes it is always raised, since after a failure they no longer save in step.
        """
        self._orbax = require("orbax.checkpoint", "train").v1
        # Its failures come as exceptions too; it would print the traceback of each of its threads besides.
        logging.getLogger("absl").setLevel(logging.CRITICAL)
        self._best_metric = best_metric
        self._on_failure = on_failure if jax.process_count() == 1 else None
        # The error of the last save, once it was given to on_failure.
        self._failed: InputError | None = None
        self.directory = directory.absolute()
        policies = self._orbax.training.preservation_policies
        keep = [
            policies.LatestN(keep_latest),
            policies.BestN(get_metric_fn=self._rank, n=keep_best, keep_checkpoints_without_metrics=False),
        ]
        if keep_every is not None:
            keep.append(policies.EveryNSteps(keep_every))
        self._checkpointer = self._orbax.training.Checkpointer(
            self.directory,
            save_decision_policy=self._orbax.training.save_decision_policies.FixedIntervalPolicy(1),
            preservation_policy=policies.AnyPreservationPolicy(keep),
        )

    def remove_leftovers(self) -> None:
        """Remove what killed saves left behind; only for the run that writes this directory."""
        _first_alone(self._tidy, "remove leftovers")
        self._checkpointer.reload()

    @property
    def steps(self) -> list[int]:
        """The steps of the checkpoints that are whole, ascending."""
        return [checkpoint.step for checkpoint in self._checkpointer.checkpoints]

    def ranking(self) -> list[int]:
        """Give the steps that were evaluated, the best first, of equals the later."""
        scored = [c for c in self._checkpointer.checkpoints if c.metrics and self._best_metric in c.metrics]
        return [c.step for c in sorted(scored, key=lambda c: (self._rank(c.metrics), c.step), reverse=True)]

    def best(self) -> int | None:
        """Give the step with the best score, the later of equals; None where nothing was evaluated."""
        return next(iter(self.ranking()), None)

    def find(self, which: str) -> int:
        """Resolve ``best`` (the latest where nothing was evaluated), ``latest`` or a number to a step.

        Raises:
            InputError: there is no such checkpoint.
        """
        steps = self.steps
        if not steps:
            raise InputError(f"{self.directory} holds no checkpoint yet; train the run first")
        if which == "latest":
            return steps[-1]
        if which == "best":
            best = self.best()
            return steps[-1] if best is None else best
        if not which.isdecimal() or int(which) not in steps:
            listed = ", ".join(map(str, steps))
            raise InputError(f"there is no checkpoint {which!r} in {self.directory}; there are best, latest, {listed}")
        return int(which)

    def path(self, step: int) -> Path:
        """Give the folder of a step."""
        return self.directory / str(step)

    def save(
        self,
        step: int,
        params: PyTree,
        training: PyTree,
        progress: Mapping[str, Any],
        scores: Mapping[str, float] | None,
    ) -> None:
        """Begin to save a checkpoint; the arrays may change as soon as this returns.

        The arrays may be sharded over any devices. A step that is already saved is saved again only to add scores.

        Raises:
            InputError: this save, or the one before it, failed: no space, no permission. With ``on_failure`` it is
                called instead, and the next save tries again; the last good checkpoint stays.
        """
        metrics = None if scores is None else dict(scores)
        self._attempt(self._finish)
        known = {checkpoint.step: checkpoint.metrics for checkpoint in self._checkpointer.checkpoints}
        if step in known and (metrics is None or known[step]):
            return
        checkpoint = {"params": params, "training": training}
        if self._failed is not None:
            self._tidy()
            self._failed = None
        if step in known:
            self._attempt(lambda: self._replace(step, checkpoint, progress, metrics))
        else:
            self._attempt(lambda: self._save(step, checkpoint, progress, metrics))

    def wait(self) -> None:
        """Wait until everything is saved.

        Raises:
            InputError: the last save failed, whatever ``on_failure``.
        """
        self._finish()
        if self._failed is not None:
            raise self._failed

    def progress(self, step: int) -> dict[str, Any]:
        """Read the loop's counters at a step."""
        return self._checkpointer.checkpointables_metadata(step).custom_metadata

    def scores(self, step: int) -> dict[str, float]:
        """Read the scores of a step's evaluation; empty if it was not evaluated."""
        by_step = {checkpoint.step: checkpoint.metrics for checkpoint in self._checkpointer.checkpoints}
        return dict(by_step[step] or {})

    def restore(self, step: int, **like: PyTree) -> dict[str, PyTree]:
        """Read ``params``, ``training`` or both in the shapes, types and placement of the trees given by name.

        Whatever devices saved them: a ``jax.ShapeDtypeStruct`` with a sharding is read straight into that sharding,
        replicated or sharded over a mesh of any size; everything else comes to the first device of this process.

        Raises:
            InputError: the checkpoint is of another model.
        """
        return folder.restore(self.path(step), like, f"checkpoint {step} in {self.directory}")

    def close(self) -> None:
        """Finish what is being saved and let the directory go.

        Raises:
            InputError: a save failed, and no call before has told it.
        """
        try:
            self._finish()
        finally:
            self._checkpointer.close()

    def _attempt(self, action: Callable[[], None]) -> None:
        try:
            action()
        except InputError as error:
            if self._on_failure is None:
                raise
            self._failed = error
            self._on_failure(error)

    def _finish(self) -> None:
        try:
            self._checkpointer.wait()
        except Exception as error:
            raise self._failure(error) from error

    def _save(self, step: int, checkpoint: PyTree, progress: Mapping[str, Any], metrics: PyTree) -> None:
        try:
            self._checkpointer.save_checkpointables_async(
                step, checkpoint, force=True, metrics=metrics, custom_metadata=dict(progress)
            )
        except Exception as error:
            raise self._failure(error) from error

    def _replace(self, step: int, checkpoint: PyTree, progress: Mapping[str, Any], metrics: PyTree) -> None:
        # Orbax overwrites by deleting first: a process killed in between would leave half a checkpoint, or none.
        replaced = self.directory / f"{step}{_REPLACED}"
        _first_alone(lambda: self.path(step).rename(replaced), f"replace {step}")
        self._checkpointer.reload()
        try:
            self._save(step, checkpoint, progress, metrics)
            self._finish()
        finally:
            _first_alone(lambda: _settle(replaced), f"settle {step}")
            self._checkpointer.reload()

    def _rank(self, metrics: Mapping[str, float]) -> float:
        value = metrics.get(self._best_metric, math.nan)
        if math.isnan(value):
            return -math.inf
        return -value if self._best_metric == "loss" else value

    def _tidy(self) -> None:
        # After a failed save its other writes may still come to their ends, and make folders while they are removed.
        for unfinished in self.directory.glob(f"*{_TEMPORARY}*"):
            shutil.rmtree(unfinished, ignore_errors=True)
        for replaced in self.directory.glob(f"*{_REPLACED}"):
            _settle(replaced)

    def _failure(self, error: Exception) -> InputError:
        _expect_late_failures()
        if jax.process_index() == 0:
            self._tidy()
        # What the failed save was to push out is still there.
        self._checkpointer.reload()
        last = f"the last good checkpoint is step {self.steps[-1]}" if self.steps else "no checkpoint is saved yet"
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return InputError(f"could not save a checkpoint in {self.directory}: {reason}; {last}")


@contextlib.contextmanager
def open_to_read(directory: Path, best_metric: str) -> Iterator[CheckpointManager]:
    """Open checkpoints to read them: nothing is made or removed.

    Raises:
        InputError: there is no such directory.
    """
    if not directory.is_dir():
        raise InputError(f"{directory} holds no checkpoint yet; train the run first")
    checkpoints = CheckpointManager(directory, best_metric=best_metric)
    try:
        yield checkpoints
    finally:
        checkpoints.close()


def _first_alone(change: Callable[[], object], name: str) -> None:
    """Let the first process change the directory, and the others wait until it has."""
    try:
        if jax.process_index() == 0:
            change()
    finally:
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices(f"checkpoints: {name}")


def _settle(replaced: Path) -> None:
    """Remove a replaced checkpoint if the new one is whole, and put it back if not; it may be settled already."""
    current = replaced.with_suffix("")
    if not replaced.exists():
        return
    if current.exists():
        shutil.rmtree(replaced)
    else:
        replaced.rename(current)


@functools.cache
def _expect_late_failures() -> None:
    """Keep quiet the writes that fail after the first one of a save did.

    Their threads report to an event loop that orbax has closed by then. Nobody can catch that, and Python would print
    a traceback for each.
    """
    before = sys.unraisablehook

    def hook(report: sys.UnraisableHookArgs) -> None:
        if not (isinstance(report.exc_value, RuntimeError) and str(report.exc_value) == "Event loop is closed"):
            before(report)

    sys.unraisablehook = hook
