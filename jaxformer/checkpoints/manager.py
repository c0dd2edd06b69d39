"""Checkpoints of a run: saved in the background by orbax; the latest, the best and
every k-th of them kept.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.experimental import multihost_utils

from jaxformer.checkpoints import folder
from jaxformer.errors import InputError
from jaxformer.typing import PyTree

# What a checkpoint that is being saved again is called until the new one is whole.
_REPLACED = ".replaced"


class SavedCheckpoints:
    """The checkpoints under one directory, to be read.

    A checkpoint is a pytree of parameters, a pytree of what else training changes, a
    JSON record of the loop's own counters, and the scores of its evaluation, if it was
    evaluated. One that is damaged is refused where it is read, and the others are not.
    """

    def __init__(self, directory: Path, best_metric: str = "bleu") -> None:
        """Name a directory of checkpoints.

        Args:
            directory: it holds the checkpoints, each in a folder named by its step.
            best_metric: name of a score; higher is better, except for ``loss``.
        """
        self.directory = directory.absolute()
        self._best_metric = best_metric

    @property
    def steps(self) -> list[int]:
        """The steps of the checkpoints, ascending. Unfinished saves are in folders
        of other names.
        """
        found = [
            path.name
            for path in self.directory.glob("*")
            if path.name.isdecimal() and path.is_dir()
        ]
        return sorted(int(name) for name in found if str(int(name)) == name)

    def ranking(self) -> list[int]:
        """Return the steps that were evaluated, the best first, of equals the later.

        Raises:
            InputError: the scores of a checkpoint cannot be read.
        """
        scored = {
            step: scores
            for step, scores in self._all_scores().items()
            if self._best_metric in scores
        }
        return sorted(
            scored, key=lambda step: (self._rank(scored[step]), step), reverse=True
        )

    def best(self) -> int | None:
        """Return the step with the best score, the later of equals; None where nothing
        was evaluated.

        Raises:
            InputError: the scores of a checkpoint cannot be read.
        """
        return next(iter(self.ranking()), None)

    def find(self, which: str) -> int:
        """Resolve ``best`` (the latest where nothing was evaluated), ``latest`` or a
        number to a step.

        Raises:
            InputError: there is no such checkpoint.
        """
        steps = self.steps
        if not steps:
            raise InputError(
                f"{self.directory} holds no checkpoint yet; train the run first"
            )
        if which == "latest":
            return steps[-1]
        if which == "best":
            best = self.best()
            return steps[-1] if best is None else best
        if not which.isdecimal() or int(which) not in steps:
            listed = ", ".join(map(str, steps))
            raise InputError(
                f"there is no checkpoint {which!r} in {self.directory}; there are best,"
                f" latest, {listed}"
            )
        return int(which)

    def path(self, step: int) -> Path:
        """Return the folder of a step."""
        return self.directory / str(step)

    def progress(self, step: int) -> dict[str, Any]:
        """Read the loop's counters at a step.

        Raises:
            InputError: the checkpoint is damaged, or was removed.
        """
        return folder.read_record(self.path(step), self._where(step))

    def scores(self, step: int) -> dict[str, float]:
        """Read the scores of a step's evaluation; empty if it was not evaluated.

        The loop's counters have them too: one lost file does not make another
        checkpoint the best.

        Raises:
            InputError: they are damaged.
        """
        try:
            progress = self.progress(step)
        except InputError:
            progress = {}
        kept = progress.get("scores") if progress.get("evaluated") == step else None
        return kept or folder.read_scores(self.path(step), self._where(step))

    def check(self, step: int) -> None:
        """Check that a checkpoint is whole, by the names and sizes of its files.

        Raises:
            InputError: it is damaged, or was removed.
        """
        folder.check(
            self.path(step), self._where(step), ["params", "training"], contents=False
        )

    def restore(self, step: int, **like: PyTree) -> dict[str, PyTree]:
        """Read ``params``, ``training`` or both in the shapes, types and placement of
        the trees given by name.

        Whatever devices saved them: a ``jax.ShapeDtypeStruct`` with a sharding is read
        straight into that sharding, replicated or sharded over a mesh of any size;
        everything else comes to the first device of this process.

        Raises:
            InputError: the checkpoint is of another model, it is damaged or was
                removed, or a parameter is not finite.
        """
        return folder.restore(self.path(step), like, self._where(step))

    def _where(self, step: int) -> str:
        return f"checkpoint {step} in {self.directory}"

    def _all_scores(self) -> dict[int, dict[str, float]]:
        return {step: self.scores(step) for step in self.steps}

    def _rank(self, metrics: Mapping[str, float]) -> float:
        value = metrics.get(self._best_metric, math.nan)
        if math.isnan(value):
            return -math.inf
        return -value if self._best_metric == "loss" else value


class CheckpointManager(SavedCheckpoints):
    """The checkpoints under one directory, to be written. What a killed save left is
    ignored.

    On several processes all of them make the same calls in the same order: each saves
    and restores its own shards of the arrays, and the first alone renames and removes
    folders.
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
            best_metric: name of a score; higher is better, except for ``loss``.
            on_failure: what :meth:`save` calls with the error of a save that failed,
                and goes on; None: it raises it. On several processes it is always
                raised, since after a failure they no longer save in step.

        Raises:
            InputError: the scores of a checkpoint are damaged.
        """
        super().__init__(directory, best_metric)
        for step in super().steps:
            # orbax would fail on damaged ones
            folder.read_scores(self.path(step), self._where(step))
        self._orbax = folder.open_orbax()
        self._on_failure = on_failure if jax.process_count() == 1 else None
        # The error of the last save, once it was given to on_failure.
        self._failed: InputError | None = None
        self._sealing: threading.Thread | None = None
        policies = self._orbax.training.preservation_policies
        best = policies.BestN(
            get_metric_fn=self._rank,
            n=keep_best,
            keep_checkpoints_without_metrics=False,
        )
        keep = [policies.LatestN(keep_latest), _WithScores(best, self.scores)]
        if keep_every is not None:
            keep.append(policies.EveryNSteps(keep_every))
        self._checkpointer = self._orbax.training.Checkpointer(
            self.directory,
            save_decision_policy=self._orbax.training.save_decision_policies.FixedIntervalPolicy(
                1
            ),
            preservation_policy=policies.AnyPreservationPolicy(keep),
        )

    def remove_leftovers(self) -> None:
        """Remove what killed saves left behind; only for the run that writes this
        directory.
        """
        _first_alone(self._tidy, "remove leftovers")
        self._checkpointer.reload()

    @property
    def steps(self) -> list[int]:
        """The steps of the checkpoints, that which is being saved included,
        ascending.
        """
        return [checkpoint.step for checkpoint in self._checkpointer.checkpoints]

    def save(
        self,
        step: int,
        params: PyTree,
        training: PyTree,
        progress: Mapping[str, Any],
        scores: Mapping[str, float] | None,
    ) -> None:
        """Begin to save a checkpoint; the arrays may change as soon as this returns.

        The arrays may be sharded over any devices. A step that is already saved is
        saved again only to add scores.

        Raises:
            InputError: this save, or the one before it, failed: no space, no
                permission. With ``on_failure`` it is called instead, and the next save
                tries again; the last good checkpoint stays.
        """
        metrics = None if scores is None else dict(scores)
        self._attempt(self._finish)
        known = {
            checkpoint.step: checkpoint.metrics
            for checkpoint in self._checkpointer.checkpoints
        }
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
        finally:
            if self._sealing is not None:
                self._sealing.join()

    def _save(
        self,
        step: int,
        checkpoint: PyTree,
        progress: Mapping[str, Any],
        metrics: PyTree,
    ) -> None:
        try:
            saved = self._checkpointer.save_checkpointables_async(
                step,
                checkpoint,
                force=True,
                metrics=metrics,
                custom_metadata=dict(progress),
            )
        except Exception as error:
            raise self._failure(error) from error
        if jax.process_index() == 0:
            self._sealing = threading.Thread(
                target=_seal, args=(self.path(step), saved)
            )
            self._sealing.start()

    def _replace(
        self,
        step: int,
        checkpoint: PyTree,
        progress: Mapping[str, Any],
        metrics: PyTree,
    ) -> None:
        # Orbax overwrites by deleting first: a process killed in between would leave
        # half a checkpoint, or none.
        replaced = self.directory / f"{step}{_REPLACED}"
        _first_alone(lambda: self.path(step).rename(replaced), f"replace {step}")
        self._checkpointer.reload()
        try:
            self._save(step, checkpoint, progress, metrics)
            self._finish()
        finally:
            _first_alone(lambda: _settle(replaced), f"settle {step}")
            self._checkpointer.reload()

    def _all_scores(self) -> dict[int, dict[str, float]]:
        return {
            each.step: each.metrics or self.scores(each.step)
            for each in self._checkpointer.checkpoints
        }

    def _tidy(self) -> None:
        # After a failed save its other writes may still come to their ends, and make
        # folders while they are removed.
        for unfinished in self.directory.glob(f"*{folder.TEMPORARY}*"):
            shutil.rmtree(unfinished, ignore_errors=True)
        for replaced in self.directory.glob(f"*{_REPLACED}"):
            _settle(replaced)

    def _failure(self, error: Exception) -> InputError:
        if jax.process_index() == 0:
            self._tidy()
        # What the failed save was to push out is still there.
        self._checkpointer.reload()
        last = (
            f"the last good checkpoint is step {self.steps[-1]}"
            if self.steps
            else "no checkpoint is saved yet"
        )
        return InputError(
            f"could not save a checkpoint in {self.directory}:"
            f" {folder.first_line(error)}; {last}"
        )


@dataclasses.dataclass(frozen=True)
class _WithScores:
    """A preservation policy that takes the scores which orbax has not from where
    else they are.
    """

    policy: Any
    scores: Callable[[int], Mapping[str, float]]

    def should_preserve(
        self, checkpoints: Sequence[Any], *, context: Any
    ) -> Sequence[bool]:
        scored = [
            dataclasses.replace(each, metrics=each.metrics or self._find(each.step))
            for each in checkpoints
        ]
        return self.policy.should_preserve(scored, context=context)

    def _find(self, step: int) -> dict[str, float] | None:
        return dict(self.scores(step)) or None


def open_to_read(directory: Path, best_metric: str) -> SavedCheckpoints:
    """Open checkpoints to read them: nothing is made or removed.

    Raises:
        InputError: there is no such directory.
    """
    if not directory.is_dir():
        raise InputError(f"{directory} holds no checkpoint yet; train the run first")
    return SavedCheckpoints(directory, best_metric)


def _seal(path: Path, saved: Any) -> None:
    """Write the checksums of a checkpoint once it is saved; without them it loads
    unchecked.
    """
    # of a save that failed, which whoever waits for it learns
    with contextlib.suppress(Exception):
        saved.result()
        folder.seal(path)


def _first_alone(change: Callable[[], object], name: str) -> None:
    """Let the first process change the directory, and the others wait until it has."""
    try:
        if jax.process_index() == 0:
            change()
    finally:
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices(f"checkpoints: {name}")


def _settle(replaced: Path) -> None:
    """Remove a replaced checkpoint if the new one is whole, and put it back if not;
    it may be settled already.
    """
    current = replaced.with_suffix("")
    if not replaced.exists():
        return
    if current.exists():
        shutil.rmtree(replaced)
    else:
        replaced.rename(current)
