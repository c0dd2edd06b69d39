"""Ctrl-C, SIGTERM and SIGHUP while nothing has to be saved: they are never lost, and
nothing waits for them.

Python raises KeyboardInterrupt at the place where the main thread is. In a callback of
the garbage collector (JAX has one) or of an event loop (orbax has one) the exception is
printed and lost. While compiled code runs it is not raised.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Generic, NoReturn, TypeVar

Result = TypeVar("Result")
Item = TypeVar("Item")

INTERRUPTED = 130
"""The exit code of a command that a signal ended."""

PATIENCE = 3.0
"""Seconds after which a command that nothing has to be saved of is ended, if a
signal has not ended it yet.
"""

_noted: list[int] = []
_left: list[threading.Event] = []
_PATIENCE = 0.5


def signals() -> list[signal.Signals]:
    """List the signals that ask a command to end; SIGHUP is not one where it is
    ignored, as under ``nohup``.
    """
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if ignored else [signal.SIGHUP])]


@contextlib.contextmanager
def noted(patience: float | None = None) -> Iterator[None]:
    """Note the signals besides raising KeyboardInterrupt, for :func:`check`; a second
    one ends the process.

    Outside the main thread, where Python allows no handlers, nothing changes.

    Args:
        patience: seconds after which a signal ends the process with 130 if the block
            has not ended, because the exception was lost or compiled code does not
            return; None: no bound.
    """
    _noted.clear()
    before = {}
    for number in signals():
        try:
            before[number] = signal.signal(number, _note)
        except ValueError:
            break
    try:
        with (
            _bounded(patience)
            if before and patience is not None
            else contextlib.nullcontext()
        ):
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _noted.clear()


@contextlib.contextmanager
def _bounded(patience: float) -> Iterator[None]:
    """End the process some seconds after a signal, whatever the main thread does."""
    # The system's own handler writes to the pipe, also while compiled code keeps
    # Python's handler waiting.
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    ended, numbers = threading.Event(), signals()

    def watch() -> None:
        while (signalled := os.read(reading, 1)) and signalled[0] not in numbers:
            pass  # a signal that asks for something else
        os.close(reading)
        if signalled and not ended.wait(patience):
            end()

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        signal.set_wakeup_fd(before)
        os.close(writing)


def end(code: int = INTERRUPTED) -> NoReturn:
    """End the process without the interpreter's tidying, which threads of compiled
    code would crash.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def check() -> None:
    """Raise KeyboardInterrupt if a signal was noted, also if an earlier
    KeyboardInterrupt was lost.

    Raises:
        KeyboardInterrupt: a signal was noted.
    """
    if _noted:
        raise KeyboardInterrupt


def leave_terminal() -> None:
    """Send output nowhere after the terminal was closed: every write to it would
    fail.
    """
    for number in (1, 2):
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(number).st_mode):
                os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def call(function: Callable[[], Result]) -> Result:
    """Call what compiled code keeps busy so that KeyboardInterrupt comes meanwhile, and
    leaves the call behind.

    Raises:
        BaseException: what the function raises.
    """
    results: list[Result] = []
    errors: list[BaseException] = []
    # since a thread whose join is interrupted may call itself dead while it lives
    done = threading.Event()

    def work() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)
        finally:
            done.set()

    try:
        # may be interrupted too, with the function at work already
        threading.Thread(target=work, daemon=True).start()
        done.wait()
    except BaseException:
        _left.append(done)
        raise
    if errors:
        raise errors[0]
    return results[0]


def is_busy() -> bool:
    """Return whether a call that was left behind still runs: the interpreter cannot end
    in order while it does.
    """
    return not all(done.wait(_PATIENCE) for done in _left)


class Feed(Generic[Item]):
    """Items for compiled code, which words every error in its own way: remembers the
    one that ended them.
    """

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
    for each in signals():  # a closed terminal sends SIGHUP more than once
        signal.signal(each, signal.SIG_IGN if each == signal.SIGHUP else signal.SIG_DFL)
    if number == signal.SIGHUP:
        leave_terminal()
    while frame is not None:
        library = frame.f_globals.get("__name__", "").partition(".")[0]
        if frame.f_code.co_name == "_xla_gc_callback" or library in (
            "asyncio",
            "orbax",
        ):
            return  # raised in there it would be lost, or become another error
        frame = frame.f_back
    raise KeyboardInterrupt
