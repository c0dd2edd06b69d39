"""The signals that stop a run."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

from jaxformer.data import interruption


class WaitInterruptedError(Exception):
    """A signal came while the loop waited; see :meth:`StopSignal.interrupting`."""


class StopSignal:
    """Notes Ctrl-C, SIGTERM and SIGHUP, so that the loop can save before it ends; a
    second Ctrl-C ends it at once.

    Outside the main thread, where Python allows no handlers, it notes nothing.
    """

    def __init__(self) -> None:
        """Nothing was received yet."""
        self.received: str | None = None
        self._before: dict[int, Any] = {}
        self._interrupts = False

    def __enter__(self) -> StopSignal:
        """Begin to listen."""
        for number in interruption.signals():
            try:
                self._before[number] = signal.signal(number, self._note)
            except ValueError:
                break
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Restore what was there before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def __bool__(self) -> bool:
        """Return whether to stop."""
        return self.received is not None

    @contextlib.contextmanager
    def interrupting(self, active: bool = True) -> Iterator[None]:
        """Let a signal break off what waits here, and may wait for ever.

        Raises:
            WaitInterruptedError: a signal came, here or before.
        """
        self._interrupts = active
        try:
            if active and self:
                raise WaitInterruptedError
            yield
        finally:
            self._interrupts = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signal.Signals(number).name
        if number == signal.SIGHUP:
            interruption.leave_terminal()
        if self._interrupts:
            raise WaitInterruptedError
