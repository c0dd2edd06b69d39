"""What engines share: batches that lie where the steps run, and how often a step was
compiled.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from jaxformer.training.state import TrainState
from jaxformer.training.step import SEGMENTS, Batch, Metrics, TrainStep
from jaxformer.typing import Array


class Placed(dict[str, Array | np.ndarray]):
    """A batch where the steps run, as an engine's ``put`` gives it."""


def fill(batch: Batch, multiple: int, pad_id: int) -> dict[str, np.ndarray]:
    """Add rows of padding, which weigh nothing, until their number is a multiple."""

    def filled(name: str, rows: Array | np.ndarray) -> np.ndarray:
        missing = -rows.shape[0] % multiple
        if not missing:
            return np.asarray(rows)
        return np.pad(
            rows,
            ((0, missing), (0, 0)),
            constant_values=0 if name in SEGMENTS else pad_id,
        )

    return {name: filled(name, rows) for name, rows in batch.items()}


def cut(batch: Batch, index: int, count: int, pad_id: int) -> dict[str, np.ndarray]:
    """Return one of ``count`` equal parts of a batch."""
    whole = fill(batch, count, pad_id)
    return {name: np.split(rows, count)[index] for name, rows in whole.items()}


def count_traces(step: TrainStep) -> tuple[TrainStep, Callable[[], int]]:
    """Return the step and what tells how often it was traced: no engine says how often
    it compiled.
    """
    traces = 0

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        nonlocal traces
        traces += 1
        return step(state, batch)

    return train_step, lambda: traces
