"""Ctrl-C and SIGTERM while text is read, before a run has anything to save: never lost, and never waited for.

Python raises KeyboardInterrupt wherever it happens to be. Where that is a callback of the garbage collector, and JAX
has one, the exception is printed and lost; and while compiled code runs it does not come at all.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Generic, TypeVar

Result = TypeVar("Result")
Item = TypeVar("Item")

_noted: list[int] = []
_left: list[threading.Event] = []
_PATIENCE = 0.5


@contextlib.contextmanager
def noted() -> Iterator[None]:
    """Note Ctrl-C and SIGTERM besides raising KeyboardInterrupt, for :func:`check`; a second one ends the process.

    Outside the main thread, where Python allows no handlers, nothing changes.
    """
    _noted.clear()
    before = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            before[number] = signal.signal(number, _note)
        except ValueError:
            break
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _noted.clear()


def check() -> None:
    """Raise KeyboardInterrupt if a signal was noted, whatever became of the one that was raised then.

    Raises:
        KeyboardInterrupt: one was.
    """
    if _noted:
        raise KeyboardInterrupt


def call(function: Callable[[], Result]) -> Result:
    """Call what compiled code keeps busy so that KeyboardInterrupt comes meanwhile, and leaves the call behind.

    Raises:
        BaseException: what the function raises.
    """
    results: list[Result] = []
    errors: list[BaseException] = []
    done = threading.Event()  # since a thread whose join is interrupted may call itself dead while it lives

    def work() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)
        finally:
            done.set()

    try:
        threading.Thread(target=work, daemon=True).start()  # may be interrupted too, with the function at work already
        done.wait()
    except BaseException:
        _left.append(done)
        raise
    if errors:
        raise errors[0]
    return results[0]


def is_busy() -> bool:
    """Say whether a call that was left behind still runs: the interpreter cannot end in order while it does."""
    return not all(done.wait(_PATIENCE) for done in _left)


class Feed(Generic[Item]):
    """Items for compiled code, which words every error in its own way: remembers the one that ended them."""

    def __init__(self, items: Iterable[Item]) -> None:
        """Give these items, as long as they are wanted."""
        self._items = items
        self.error: Exception | None = None
        """What reading them raised."""
        self.unwanted = threading.Event()
        """To be set once nobody waits for what is made of them."""

    def __iter__(self) -> Iterator[Item]:
        try:
            for item in self._items:
                if self.unwanted.is_set():
                    raise RuntimeError("nobody waits for what is made of this")
                yield item
        except Exception as error:
            self.error = error
            raise


def _note(number: int, frame: FrameType | None) -> None:
    _noted.append(number)
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_DFL)
    while frame is not None:
        if frame.f_code.co_name == "_xla_gc_callback":
            return  # raised in there, which is JAX's, it would only be printed
        frame = frame.f_back
    raise KeyboardInterrupt
