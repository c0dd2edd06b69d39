"""Keep the batches of steps whose loss or gradient is not finite."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from jaxformer.errors import InputError
from jaxformer.files import open_whole

# Files of one host that a run keeps: the first bad steps tell why, and a run that
# diverges has thousands.
MOST_FILES = 10


def save_bad_batch(
    directory: Path,
    step: int,
    batch: Mapping[str, np.ndarray],
    *,
    host: int = 0,
    hosts: int = 1,
) -> Path | None:
    """Write a batch to ``bad_batches/step-N.npz`` in the directory of a run, one array
    a name.

    Args:
        directory: of the run.
        step: number of the step, counted from 1.
        batch: this host's rows, as the data gave them.
        host: this host's number; with several hosts it is part of the file's name.
        hosts: number of hosts.

    Returns:
        The file; None if this host has already kept ten, or if it cannot be written,
        which stops no training.
    """
    folder = directory / "bad_batches"
    ending = f".host-{host}.npz" if hosts > 1 else ".npz"
    path = folder / f"step-{step}{ending}"
    try:
        folder.mkdir(exist_ok=True)
        others = [file for file in folder.glob(f"step-*{ending}") if file != path]
        if len(others) >= MOST_FILES:
            return None
        with open_whole(path) as file:
            np.savez(
                file,
                allow_pickle=False,
                **{name: np.asarray(rows) for name, rows in batch.items()},
            )
    except (OSError, InputError):
        return None
    return path


def describe_bad_step(
    step: int, loss: float, gradient_norm: float, kept: Path | None
) -> str:
    """Describe a step that was skipped: why, and where its batch is.

    Args:
        step: number of the step.
        loss: its loss.
        gradient_norm: the norm of its gradient.
        kept: the file with its batch, if there is one.
    """
    where = f"; its batch is kept in {kept}" if kept is not None else ""
    return (
        f"step {step} is skipped: its loss is {loss:g} and its gradient norm"
        f" {gradient_norm:g}{where}"
    )
