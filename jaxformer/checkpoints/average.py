"""Averages of a run's checkpoints (Vaswani et al. 2017, section 6.1), kept next to
them in ``averages/``.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxformer import bucket
from jaxformer.checkpoints import folder
from jaxformer.checkpoints.saved import SavedCheckpoints
from jaxformer.data.files import make_folder
from jaxformer.errors import InputError, UsageError
from jaxformer.typing import PyTree

_NEW = ".unfinished"
"""How the folder of an average that is being written ends."""


class Average(NamedTuple):
    """The mean of some checkpoints of a run.

    Attributes:
        name: that of its folder in ``averages/``.
        steps: those of the checkpoints that went in, ascending.
        vocabulary: the hash of the vocabulary that they were trained with.
        time: when it was made, in seconds since 1970.
        base: of adapters, as their checkpoints name it; else None.
    """

    name: str
    steps: list[int]
    vocabulary: str
    time: float
    base: dict[str, Any] | None = None


def last_steps(checkpoints: SavedCheckpoints, count: int) -> list[int]:
    """Choose the last checkpoints, by their numbers; ascending.

    Raises:
        InputError: there are fewer.
    """
    return _choose(checkpoints, "last", checkpoints.steps[::-1], count)


def best_steps(checkpoints: SavedCheckpoints, count: int) -> list[int]:
    """Choose the best checkpoints of those that were evaluated; ascending.

    Raises:
        InputError: fewer were evaluated.
    """
    return _choose(checkpoints, "best", checkpoints.ranking(), count)


def these_steps(checkpoints: SavedCheckpoints, steps: Sequence[int]) -> list[int]:
    """Choose checkpoints by their steps; ascending.

    Raises:
        InputError: a step is given twice, or has no checkpoint.
    """
    for step in steps:
        checkpoints.find(str(step))
        if steps.count(step) > 1:
            raise InputError(f"--steps names {step} twice; each checkpoint counts once")
    return sorted(steps)


def average(checkpoints: SavedCheckpoints, steps: Sequence[int]) -> PyTree:
    """Return the arithmetic mean of the parameters of checkpoints; of adapters that of
    their factors, not of their products.

    Summed in float64, one checkpoint in memory at a time; in the type that they have.

    Raises:
        InputError: the checkpoints are not of one model, or one is damaged or has
            parameters that are not finite.
    """
    like = folder.read_shapes(checkpoints.path(steps[0]), "params")
    sums = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float64), like)
    for step in steps:
        params = checkpoints.restore(step, params=like)["params"]
        sums = jax.tree.map(
            lambda total, leaf: np.add(total, np.asarray(leaf, np.float64), out=total),
            sums,
            params,
        )
    return jax.tree.map(
        lambda total, leaf: (total / len(steps)).astype(leaf.dtype), sums, like
    )


def save_average(
    run: Path, name: str, checkpoints: SavedCheckpoints, steps: Sequence[int]
) -> Average:
    """Average checkpoints of a run and keep the result as ``averages/NAME``, instead of
    an older one of that name.

    Raises:
        UsageError: the name cannot be that of a folder.
        InputError: the checkpoints are not of one model or one is damaged, the average
            cannot be written.
    """
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,149}", name):
        raise UsageError(
            f"--name must be 1 to 150 letters, digits, - and _, not {name!r}; choose"
            " another"
        )
    path = run / "averages" / name
    make_folder(path.parent, "--workdir")
    last = checkpoints.progress(steps[-1])
    made = Average(name, list(steps), last["vocabulary"], time.time(), last.get("base"))
    new = path.with_suffix(_NEW)
    for leftover in path.parent.glob(f"{new.name}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    record = {key: value for key, value in made._asdict().items() if key != "name"}
    folder.write(new, {"params": average(checkpoints, steps)}, record)
    shutil.rmtree(path, ignore_errors=True)
    new.rename(path)
    bucket.push(run)
    return made


def average_folders(run: Path) -> list[Path]:
    """List the folders of the averages of a run, whole or damaged, by name."""
    return sorted(
        path
        for path in (run / "averages").glob("*")
        if path.is_dir() and not path.suffix
    )


def list_averages(run: Path) -> list[Average]:
    """List the averages of a run, the oldest first.

    Raises:
        InputError: one is damaged.
    """
    return sorted(map(read_average, average_folders(run)), key=lambda each: each.time)


def read_average(path: Path) -> Average:
    """Read what an average was made of.

    Args:
        path: its folder.

    Raises:
        InputError: it is damaged.
    """
    return Average(path.name, **folder.read_record(path))


def _choose(
    checkpoints: SavedCheckpoints, option: str, ordered: list[int], count: int
) -> list[int]:
    if len(ordered) < count:
        kind, key = ("evaluated ", "best") if option == "best" else ("", "latest")
        there = f"{len(ordered)} {kind}checkpoint{'s' * (len(ordered) != 1)}"
        raise InputError(
            f"--{option}={count} asks for {count} checkpoints and"
            f" {checkpoints.directory} holds {there}: ask for fewer, or train with a"
            f" larger training.keep_{key}"
        )
    return sorted(ordered[:count])
