"""A profiler trace of chosen steps, for TensorBoard, XProf or Perfetto."""

from __future__ import annotations

from pathlib import Path

import jax

from jaxformer.typing import PyTree

STEPS = 5


class Profile:
    """Traces :data:`STEPS` steps of a run, on its first host; it ends cleanly if the
    run does before.
    """

    def __init__(self, directory: Path, first: int | None) -> None:
        """Choose what to trace.

        Args:
            directory: where the trace is written: ``plugins/profile/`` and the time.
            first: number of the first step that is traced, counted from 1; None:
                nothing is.
        """
        self._directory = directory
        self._first = first if jax.process_index() == 0 else None
        self._tracing = False

    def at(self, step: int, state: PyTree) -> Path | None:
        """Begin before the first step, or end after the last.

        Args:
            step: steps made.
            state: what they gave; it is waited for, so that the trace holds whole steps
                and no other.

        Returns:
            The directory of the trace when it has just been written.
        """
        if self._first is None:
            return None
        if step == self._first - 1 and not self._tracing:
            jax.block_until_ready(state)
            jax.profiler.start_trace(str(self._directory))
            self._tracing = True
        elif self._tracing and step == self._first - 1 + STEPS:
            jax.block_until_ready(state)
            self.close()
            return self._directory
        return None

    def close(self) -> None:
        """Write what has been traced, if the run ends within."""
        if self._tracing:
            self._tracing = False
            jax.profiler.stop_trace()
