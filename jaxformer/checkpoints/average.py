"""Averages of a run's checkpoints (Vaswani et al. 2017, section 6.1), kept beside them in ``averages/``."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from jaxformer.checkpoints import folder
from jaxformer.checkpoints.manager import CheckpointManager
from jaxformer.errors import InputError
from jaxformer.typing import PyTree

_NEW, _OLD = ".new", ".old"


class Average(NamedTuple):
    """The mean of some checkpoints of a run.

    Attributes:
        name: that of its folder in ``averages/``.
        steps: those of the checkpoints that went in, ascending.
        vocabulary: the hash of the vocabulary that they were trained with.
        time: when it was made, in seconds since 1970.
    """

    name: str
    steps: list[int]
    vocabulary: str
    time: float


def last_steps(checkpoints: CheckpointManager, count: int) -> list[int]:
    """Choose the last checkpoints, by their numbers; ascending.

    Raises:
        InputError: there are fewer.
    """
    return _choose(checkpoints, checkpoints.steps[::-1], count, f"--last={count}", "training.keep_latest")


def best_steps(checkpoints: CheckpointManager, count: int) -> list[int]:
    """Choose the best checkpoints of those that were evaluated; ascending.

    Raises:
        InputError: fewer were evaluated.
    """
    return _choose(checkpoints, checkpoints.ranking(), count, f"--best={count}", "training.keep_best")


def these_steps(checkpoints: CheckpointManager, steps: Sequence[int]) -> list[int]:
    """Choose checkpoints by their steps; ascending.

    Raises:
        InputError: a step is given twice, or has no checkpoint.
    """
    for step in steps:
        checkpoints.find(str(step))
        if steps.count(step) > 1:
            raise InputError(f"--steps names {step} twice; each checkpoint counts once")
    return sorted(steps)


def average(checkpoints: CheckpointManager, steps: Sequence[int]) -> PyTree:
    """Give the arithmetic mean of the parameters of checkpoints.

    Summed in float64, one checkpoint in memory at a time; in the type that they have.

    Raises:
        InputError: the checkpoints are not of one model.
    """
    like = folder.read_shapes(checkpoints.path(steps[0]), "params")
    sums = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float64), like)
    for step in steps:
        params = checkpoints.restore(step, params=like)["params"]
        sums = jax.tree.map(lambda total, leaf: np.add(total, np.asarray(leaf, np.float64), out=total), sums, params)
    return jax.tree.map(lambda total, leaf: (total / len(steps)).astype(leaf.dtype), sums, like)


def save_average(run: Path, name: str, checkpoints: CheckpointManager, steps: Sequence[int]) -> Average:
    """Average checkpoints of a run and keep the result as ``averages/NAME``, instead of an older one of that name.

    Raises:
        InputError: the name cannot be that of a folder, or the checkpoints are not of one model.
    """
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,149}", name):
        raise InputError(f"--name must be 1 to 150 letters, digits, - and _, not {name!r}; choose another")
    vocabulary = checkpoints.progress(steps[-1])["vocabulary"]
    made = Average(name, list(steps), vocabulary, time.time())
    path = run / "averages" / name
    new, old = path.with_suffix(_NEW), path.with_suffix(_OLD)
    for leftover in path.parent.glob(f"{name}.*"):
        shutil.rmtree(leftover)
    record = {"steps": made.steps, "vocabulary": made.vocabulary, "time": made.time}
    folder.write(new, {"params": average(checkpoints, steps)}, record)
    # An average is replaced by names alone, so that a process killed in between leaves none that is half removed.
    if path.exists():
        path.rename(old)
    new.rename(path)
    shutil.rmtree(old, ignore_errors=True)
    return made


def list_averages(run: Path) -> list[Average]:
    """List the averages of a run, the oldest first.

    Raises:
        InputError: one is not whole.
    """
    paths = [path for path in (run / "averages").glob("*") if path.is_dir() and not path.suffix]
    return sorted(map(_read, paths), key=lambda each: each.time)


def _read(path: Path) -> Average:
    record = folder.read_record(path) or {}
    if record.keys() != {"steps", "vocabulary", "time"} or not (path / "params").is_dir():
        raise InputError(f"{path} is no whole average: remove it, and average again")
    return Average(path.name, **record)


def _choose(checkpoints: CheckpointManager, ordered: list[int], count: int, option: str, key: str) -> list[int]:
    if count < 1:
        raise InputError(f"{option} must be at least 1")
    if len(ordered) < count:
        kind = "evaluated checkpoint" if "best" in option else "checkpoint"
        there = f"{len(ordered)} {kind}{'' if len(ordered) == 1 else 's'}"
        raise InputError(
            f"{option} asks for {count} checkpoints and {checkpoints.directory} holds {there}: ask for fewer, or train "
            f"with a larger {key}"
        )
    return sorted(ordered[:count])
