"""Checkpoints of a run: saved in the background by orbax, the latest and the best of them kept."""

from __future__ import annotations

import functools
import logging
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from jaxformer.errors import InputError, require
from jaxformer.typing import PyTree

_TEMPORARY = ".orbax-checkpoint-tmp"
# What a checkpoint that is being saved again is called until the new one is whole.
_REPLACED = ".replaced"


class CheckpointManager:
    """The checkpoints under one directory.

    A checkpoint is a pytree of parameters, a pytree of what else training changes, a JSON record of the loop's own
    counters, and the scores of its evaluation, if it was evaluated. What a killed save left behind is ignored.
    """

    def __init__(self, directory: Path, *, keep_latest: int = 2, keep_best: int = 1, best_metric: str = "bleu") -> None:
        """Open a directory of checkpoints; it is made by the first save.

        Args:
            directory: where the checkpoints lie, each in a folder named by its step.
            keep_latest: how many of the latest to keep.
            keep_best: how many of the best to keep besides, by ``best_metric``.
            best_metric: name of a score; higher is better, but for ``loss``.
        """
        self._orbax = require("orbax.checkpoint", "train").v1
        # Its failures come as exceptions too; it would print the traceback of each of its threads besides.
        logging.getLogger("absl").setLevel(logging.CRITICAL)
        self._best_metric = best_metric
        self.directory = directory.absolute()
        policies = self._orbax.training.preservation_policies
        keep = [
            policies.LatestN(keep_latest),
            policies.BestN(get_metric_fn=self._rank, n=keep_best, keep_checkpoints_without_metrics=False),
        ]
        self._checkpointer = self._orbax.training.Checkpointer(
            self.directory,
            save_decision_policy=self._orbax.training.save_decision_policies.FixedIntervalPolicy(1),
            preservation_policy=policies.AnyPreservationPolicy(keep),
        )

    def remove_leftovers(self) -> None:
        """Remove what killed saves left behind; only for the process that writes this directory."""
        for leftover in self.directory.glob(f"*{_TEMPORARY}*"):
            shutil.rmtree(leftover)
        for replaced in self.directory.glob(f"*{_REPLACED}"):
            self._settle(replaced)

    @property
    def steps(self) -> list[int]:
        """The steps of the checkpoints that are whole, ascending."""
        return [checkpoint.step for checkpoint in self._checkpointer.checkpoints]

    def best(self) -> int | None:
        """Give the step with the best score, the later of equals; None where nothing was evaluated."""
        scored = [c for c in self._checkpointer.checkpoints if c.metrics and self._best_metric in c.metrics]
        return max(scored, key=lambda c: (self._rank(c.metrics), c.step)).step if scored else None

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

    def save(
        self,
        step: int,
        params: PyTree,
        training: PyTree,
        progress: Mapping[str, Any],
        scores: Mapping[str, float] | None,
    ) -> None:
        """Begin to save a checkpoint; the arrays may change as soon as this returns.

        A step that is already saved is saved again only to add scores.

        Raises:
            InputError: this save, or the one before it, failed: no space, no permission.
        """
        metrics = None if scores is None else dict(scores)
        known = {checkpoint.step: checkpoint.metrics for checkpoint in self._checkpointer.checkpoints}
        if step in known and (metrics is None or known[step]):
            return
        checkpoint = {"params": params, "training": training}
        if step in known:
            self._replace(step, checkpoint, progress, metrics)
        else:
            self._save(step, checkpoint, progress, metrics)

    def wait(self) -> None:
        """Wait until everything is saved.

        Raises:
            InputError: the save failed.
        """
        try:
            self._checkpointer.wait()
        except Exception as error:
            raise self._failure(error) from error

    def progress(self, step: int) -> dict[str, Any]:
        """Read the loop's counters at a step."""
        return self._checkpointer.checkpointables_metadata(step).custom_metadata

    def scores(self, step: int) -> dict[str, float]:
        """Read the scores of a step's evaluation; empty if it was not evaluated."""
        by_step = {checkpoint.step: checkpoint.metrics for checkpoint in self._checkpointer.checkpoints}
        return dict(by_step[step] or {})

    def restore(self, step: int, **like: PyTree) -> dict[str, PyTree]:
        """Read ``params``, ``training`` or both in the shapes, types and placement of the trees given by name.

        Raises:
            InputError: the checkpoint is of another model.
        """
        saved = self._checkpointer.checkpointables_metadata(step).metadata
        for name, tree in like.items():
            _check_shapes(saved[name], tree, f"checkpoint {step} in {self.directory}")
        device = jax.local_devices()[0]
        sharding = jax.sharding.SingleDeviceSharding(device)
        abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), like)
        return self._checkpointer.load_checkpointables(step, abstract)

    def close(self) -> None:
        """Finish what is being saved and let the directory go."""
        self._checkpointer.close()

    def _save(self, step: int, checkpoint: PyTree, progress: Mapping[str, Any], metrics: PyTree) -> None:
        try:
            self._checkpointer.save_checkpointables_async(
                step, checkpoint, force=True, metrics=metrics, custom_metadata=dict(progress)
            )
        except Exception as error:
            raise self._failure(error) from error

    def _replace(self, step: int, checkpoint: PyTree, progress: Mapping[str, Any], metrics: PyTree) -> None:
        # Orbax overwrites by deleting first: a process killed in between would leave half a checkpoint, or none.
        self.wait()
        replaced = self.directory / f"{step}{_REPLACED}"
        (self.directory / str(step)).rename(replaced)
        self._checkpointer.reload()
        try:
            self._save(step, checkpoint, progress, metrics)
            self.wait()
        finally:
            self._settle(replaced)

    def _settle(self, replaced: Path) -> None:
        """Remove a replaced checkpoint if the new one is whole, and put it back if not."""
        current = replaced.with_suffix("")
        if current.exists():
            shutil.rmtree(replaced)
        else:
            replaced.rename(current)
            self._checkpointer.reload()

    def _rank(self, metrics: Mapping[str, float]) -> float:
        value = metrics.get(self._best_metric, float("-inf"))
        return -value if self._best_metric == "loss" else value

    def _failure(self, error: Exception) -> InputError:
        _expect_late_failures()
        last = f"the last good checkpoint is step {self.steps[-1]}" if self.steps else "no checkpoint is saved yet"
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return InputError(f"could not save a checkpoint in {self.directory}: {reason}; {last}")


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


def _check_shapes(saved: PyTree, wanted: PyTree, where: str) -> None:
    def shapes(tree: PyTree) -> dict[str, tuple[int, ...]]:
        leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda node: hasattr(node, "shape"))
        return {
            "/".join(str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in path): tuple(leaf.shape)
            for path, leaf in leaves
        }

    there, here = shapes(saved), shapes(wanted)
    for name in sorted(there.keys() | here.keys()):
        if there.get(name) != here.get(name):
            raise InputError(
                f"{where} is of another model: {name} is {there.get(name, 'absent')} there and "
                f"{here.get(name, 'absent')} by the configuration"
            )
