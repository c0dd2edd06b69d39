"""Find and read the checkpoints of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxformer.checkpoints import folder
from jaxformer.errors import InputError
from jaxformer.typing import PyTree

IMPORTED = "imported"
"""The key of a checkpoint's record for the name of the folder that it was made from."""


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
        """Return the steps that were evaluated, the best first by :func:`rank`, of
        equals the later.

        Raises:
            InputError: the scores of a checkpoint cannot be read.
        """
        return self._order({step: self.scores(step) for step in self.steps})

    def best(self) -> int | None:
        """Return the first step of :meth:`ranking`; None where nothing was evaluated.

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
        return folder.read_record(self.path(step))

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
        return kept or folder.read_scores(self.path(step))

    def restore(self, step: int, **like: PyTree) -> dict[str, PyTree]:
        """Read ``params``, ``training`` or both in the shapes, types and placement of
        the trees given by name.

        Whatever devices saved them: a ``jax.ShapeDtypeStruct`` with a sharding is read
        straight into that sharding, replicated or sharded over a mesh of any size;
        everything else goes to the first device of this process.

        Raises:
            InputError: the checkpoint is of another model, it is damaged or was
                removed, or a parameter is not finite.
        """
        return folder.restore(self.path(step), like)

    def _order(self, scores: Mapping[int, Mapping[str, float]]) -> list[int]:
        """Return the evaluated steps, as :meth:`ranking`."""
        metric = self._best_metric
        ranks = [(rank(x, metric), step) for step, x in scores.items() if metric in x]
        return [step for _, step in sorted(ranks, reverse=True)]


def rank(scores: Mapping[str, float], metric: str) -> tuple[float, float]:
    """Return what orders evaluations, the greatest for the best: by a metric, of equals
    by chrF; where BLEU is below 1, by the loss.
    """
    value = -scores[metric] if metric == "loss" else scores[metric]
    second = scores.get("chrf", 0.0)
    if deciding(metric, value) != metric:
        value, second = 0.0, -scores.get("loss", math.inf)
    # The order of the arguments matters: NaN is the least.
    return max(-math.inf, value), max(-math.inf, second)


def deciding(metric: str, value: float) -> str:
    """Return the metric that compares evaluations of such a value with each other: the
    loss for a BLEU below 1, which is chance.
    """
    return "loss" if metric == "bleu" and value < 1.0 else metric


def open_to_read(directory: Path, best_metric: str) -> SavedCheckpoints:
    """Open checkpoints to read them: nothing is made or removed.

    Raises:
        InputError: there is no such directory.
    """
    if not directory.is_dir():
        raise InputError(f"{directory} holds no checkpoint yet; train the run first")
    return SavedCheckpoints(directory, best_metric)
