"""Keep the batches of steps whose loss or gradient is not finite."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np

# Files of one host that a run keeps: the first bad steps tell why, and a run that
# diverges has thousands.
MOST_FILES = 10


def save_bad_batch(
    directory: Path, step: int, batch: Mapping[str, np.ndarray]
) -> Path | None:
    """Write a batch to ``bad_batches/step-N.npz`` in the directory of a run, one array
    a name.

    Args:
        directory: of the run.
        step: number of the step, counted from 1.
        batch: this host's rows, as the data gave them. With several hosts the number
            of this one is part of the file's name.

    Returns:
        The file; None if this host has already kept ten.
    """
    folder = directory / "bad_batches"
    several = jax.process_count() > 1
    ending = f".host-{jax.process_index()}.npz" if several else ".npz"
    path = folder / f"step-{step}{ending}"
    folder.mkdir(exist_ok=True)
    if len([*folder.glob(f"step-*{ending}")]) >= MOST_FILES:
        return None
    np.savez(path, allow_pickle=False, **batch)
    return path
