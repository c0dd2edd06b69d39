"""Save the checkpoints of a run, in the background by orbax; keep the latest, the best
and every k-th.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxformer import bucket
from jaxformer.checkpoints import folder
from jaxformer.checkpoints.saved import SavedCheckpoints
from jaxformer.errors import InputError, first_line
from jaxformer.typing import PyTree

# The suffix of a checkpoint that is saved again, until the new one is whole.
_REPLACED = ".replaced"


class CheckpointManager(SavedCheckpoints):
    """The checkpoints under one directory, to be written. What a killed save left is
    ignored.

    On several processes all make the same calls in the same order. Each saves and
    restores its own shards of the arrays, and only the first renames and removes
    folders. In the mirror of a bucket each process has a directory of its own, which
    gets whole arrays; the first writes to the bucket.
    """

    def __init__(
        self,
        directory: Path,
        *,
        keep_latest: int = 2,
        keep_best: int = 1,
        keep_every: int | None = None,
        best_metric: str = "bleu",
    ) -> None:
        """Open a directory of checkpoints; it is made where it is missing.

        Args:
            directory: of the checkpoints, each in a folder named by its step.
            keep_latest: how many of the latest to keep.
            keep_best: how many of the best to keep too, by ``best_metric``.
            keep_every: keep every checkpoint whose step this divides, too.
            best_metric: name of a score; higher is better, except for ``loss``.

        Raises:
            InputError: the scores of a checkpoint are damaged.
        """
        super().__init__(directory, best_metric)
        for step in super().steps:
            folder.read_scores(self.path(step))  # orbax would fail on damaged ones
        self._orbax = folder.open_orbax()
        self._sealing: threading.Thread | None = None
        # Why the last checkpoint is not in its bucket.
        self._unsent: Exception | None = None
        # Whether each of several processes has a directory of its own.
        self._apart = jax.process_count() > 1 and bucket.is_mirror(directory)
        self._keep = keep_latest, keep_best, keep_every
        every_save = self._orbax.training.save_decision_policies.FixedIntervalPolicy(1)
        apart = self._orbax.options.MultiprocessingOptions(primary_host=None)
        self._checkpointer = self._orbax.training.Checkpointer(
            self.directory,
            save_decision_policy=every_save,
            preservation_policy=self,
            context=self._orbax.Context(multiprocessing_options=apart)
            if self._apart
            else None,
        )

    def should_preserve(
        self, checkpoints: Sequence[Any], *, context: Any
    ) -> Sequence[bool]:
        """Return which checkpoints to keep, as a preservation policy of orbax."""
        latest, best, every = self._keep
        # Those that orbax knows, or else those of the loop's counters.
        scores = {
            each.step: each.metrics or self.scores(each.step) for each in checkpoints
        }
        kept = {*sorted(scores)[-latest:], *self._order(scores)[:best]}
        return [
            step in kept or (every is not None and step % every == 0) for step in scores
        ]

    def remove_leftovers(self) -> None:
        """Remove what killed saves left; only for the run that writes here."""
        self._change(self._tidy, "remove leftovers")
        self._checkpointer.reload()

    @property
    def steps(self) -> list[int]:
        """The steps of the checkpoints, also of one being saved, ascending."""
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
            InputError: the save before it failed: no space, no permission. The last
                good checkpoint stays.
        """
        trees = {"params": params, "training": training}
        if self._apart:
            trees = jax.tree.map(_gather, trees)

        def save() -> None:
            self._save(step, trees, progress, scores)

        self.wait()
        known = {each.step: each.metrics for each in self._checkpointer.checkpoints}
        if step in known and (scores is None or known[step]):
            return
        if step in known:
            self._replace(step, save)
        else:
            save()

    def close(self) -> None:
        """Finish what is being saved and let the directory go.

        Raises:
            InputError: a save failed, and no call before has told it.
        """
        try:
            self.wait()
        finally:
            self._checkpointer.close()

    def wait(self) -> None:
        """Wait until everything is saved.

        Raises:
            InputError: the last save failed.
        """
        try:
            self._checkpointer.wait()
        except Exception as error:
            raise self._failure(error) from error
        finally:
            if self._sealing is not None:
                self._sealing.join()
        unsent, self._unsent = self._unsent, None
        if unsent is not None:
            raise self._failure(unsent) from unsent

    def _save(
        self,
        step: int,
        trees: Mapping[str, PyTree],
        progress: Mapping[str, Any],
        scores: Mapping[str, float] | None,
    ) -> None:
        saved = self._checkpointer.save_checkpointables_async(
            step,
            trees,
            force=True,
            metrics=None if scores is None else dict(scores),
            custom_metadata=dict(progress),
        )
        if jax.process_index() == 0:
            self._sealing = threading.Thread(
                target=self._seal, args=(self.path(step), saved)
            )
            self._sealing.start()

    def _replace(self, step: int, save: Callable[[], None]) -> None:
        # Orbax overwrites by deleting first: a process killed in between would leave
        # half a checkpoint, or none.
        replaced = self.directory / f"{step}{_REPLACED}"
        bucket.fetch(self.path(step))
        self._change(lambda: self.path(step).rename(replaced), f"replace {step}")
        self._checkpointer.reload()
        try:
            if jax.process_index() == 0:
                bucket.push(self.directory)
            save()
            self.wait()
        finally:
            self._change(lambda: _settle(replaced), f"settle {step}")
            self._checkpointer.reload()

    def _seal(self, path: Path, saved: Any) -> None:
        """Write the checksums of a checkpoint once it is saved; without them it loads
        unchecked. Then write it to its bucket.
        """
        try:
            saved.result()
        except Exception:
            return  # reported where it is waited for
        try:
            folder.seal(path)
            bucket.push(path)
        except Exception as error:
            if bucket.is_mirror(path):
                self._unsent = error

    def _change(self, change: Callable[[], object], name: str) -> None:
        """Change the directory, on the first process where they share it."""
        if self._apart:
            change()
        else:
            _on_first_process(change, name)

    def _tidy(self) -> None:
        # The other writes of a failed save may still make folders.
        for unfinished in self.directory.glob(f"*{folder.TEMPORARY}*"):
            shutil.rmtree(unfinished, ignore_errors=True)
        for replaced in self.directory.glob(f"*{_REPLACED}"):
            _settle(replaced)

    def _failure(self, error: Exception) -> InputError:
        if self._apart or jax.process_index() == 0:
            self._tidy()
        # What the failed save was to replace still exists.
        self._checkpointer.reload()
        names = bucket.list_saved(self.directory)
        steps = [int(name) for name in names or () if name.isdecimal()]
        saved = self.steps if names is None else sorted(steps)
        last = (
            f"the last good checkpoint is step {saved[-1]}"
            if saved
            else "no checkpoint is saved yet"
        )
        return InputError(
            f"could not save a checkpoint in {self.directory}:"
            f" {first_line(error)}; {last}"
        )


def _gather(leaf: Any) -> np.ndarray:
    """Copy an array over the devices of all processes to this host, whole."""
    if leaf.is_fully_replicated:
        return np.array(leaf.addressable_data(0))
    return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))


def _on_first_process(change: Callable[[], object], name: str) -> None:
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
        bucket.fetch(replaced)
        replaced.rename(current)
