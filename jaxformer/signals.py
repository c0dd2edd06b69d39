"""Ctrl-C, SIGTERM and SIGHUP: what a process does when it is asked to end.

A command passes through three states. While libraries load, Ctrl-C ends it at once
(:func:`end_while_loading`). While nothing has to be saved, a signal raises
KeyboardInterrupt and is noted (:func:`noted`, :func:`check`). While a run trains, a
signal is only noted, and the loop saves before it ends (:class:`StopSignal`).

Python raises KeyboardInterrupt wherever the main thread is. In a callback of the
garbage collector (JAX has one) it would be printed and lost: there a signal waits until
the callback is done. In one of an event loop (orbax has one) it is lost: the command
ends with 130 all the same once it is done. While compiled code runs it is not raised: a
line says so, and a second Ctrl-C ends the process.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import gc
import os
import signal
import stat
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import NoReturn, TypeVar

from jaxformer import bucket

Result = TypeVar("Result")

INTERRUPTED = 130
"""The exit code of a command that a signal ended."""

_noted: list[int] = []
_handled = threading.Semaphore(0)


def signals() -> list[signal.Signals]:
    """List the signals that ask a command to end. SIGHUP is left out where it is
    ignored, as under ``nohup``. Outside the main thread Python allows no handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        return []
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if ignored else [signal.SIGHUP])]


def end(code: int = INTERRUPTED) -> NoReturn:
    """End the process without the interpreter's cleanup, in which threads of compiled
    code would crash. Mirrors of buckets are removed.
    """
    bucket.close()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def end_while_loading() -> None:
    """Let Ctrl-C end the process at once, until another handler is set. Some libraries
    lose an exception that is raised while they load.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: end())


@contextlib.contextmanager
def noted() -> Iterator[None]:
    """Raise KeyboardInterrupt on a signal and note it for :func:`check`. A second one
    ends the process.

    Outside the main thread, where Python allows no handlers, nothing changes.
    """
    if not signals():
        yield
        return
    out, into = os.pipe()
    os.set_blocking(into, False)
    threading.Thread(target=_watch, args=[out], daemon=True).start()
    signal.set_wakeup_fd(into)
    _noted.clear()
    try:
        with handled(_note):
            yield
    finally:
        signal.set_wakeup_fd(-1)
        os.close(into)
        _noted.clear()


@contextlib.contextmanager
def handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Let a function handle the signals. In a callback of the garbage collector it
    waits for the next event elsewhere.

    Outside the main thread, where Python allows no handlers, nothing changes.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        codes = [getattr(each, "__code__", None) for each in gc.callbacks]
        if any(each.f_code in codes for each, _ in traceback.walk_stack(frame)):
            sys.setprofile(lambda frame, *_: handle(number, frame))
            return
        sys.setprofile(None)
        if number == signal.SIGINT:
            _handled.release()
            _leave_line()
        handler(number, frame)

    before = {number: signal.signal(number, handle) for number in signals()}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def check() -> None:
    """Raise KeyboardInterrupt if a signal was noted, also if an earlier
    KeyboardInterrupt was lost.

    Raises:
        KeyboardInterrupt: a signal was noted.
    """
    if _noted:
        raise KeyboardInterrupt


def leave_terminal() -> None:
    """Redirect output to nowhere after the terminal was closed. Every write to it would
    fail.
    """
    for number in (1, 2):
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(number).st_mode):
                os.dup2(os.open(os.devnull, os.O_WRONLY), number)


class WaitInterruptedError(Exception):
    """A signal came while the loop waited; see :meth:`StopSignal.interrupting`."""


class StopSignal:
    """Notes a signal, so that the training loop can save before it ends. A second
    Ctrl-C raises KeyboardInterrupt.

    Outside the main thread, where Python allows no handlers, it notes nothing.
    """

    def __init__(self) -> None:
        """Begin without a signal."""
        self.received: str | None = None
        self._handled = handled(self._note)
        self._interrupts = False

    def __enter__(self) -> StopSignal:
        """Begin to listen."""
        self._handled.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the handlers of before."""
        self._handled.__exit__(None, None, None)

    def __bool__(self) -> bool:
        """Return whether a signal was received."""
        return self.received is not None

    @contextlib.contextmanager
    def interrupting(self, active: bool = True) -> Iterator[None]:
        """Let a signal interrupt a wait that may never end.

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
            leave_terminal()
        if self._interrupts:
            raise WaitInterruptedError


def call(function: Callable[[], Result]) -> Result:
    """Call compiled code in a thread, so that KeyboardInterrupt is raised meanwhile and
    the call is abandoned.

    Raises:
        BaseException: what the function raises.
    """
    future = concurrent.futures.Future[Result]()

    def work() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future.result()


class Feed:
    """Lines for compiled code, which words every error in its own way. It remembers the
    error that ended them.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        """Yield these lines while they are wanted."""
        self._lines = lines
        self.error: Exception | None = None
        """What reading them raised."""
        self.unwanted = threading.Event()
        """Set it once nobody waits for the result."""

    def __iter__(self) -> Iterator[str]:
        try:
            for line in self._lines:
                if self.unwanted.is_set():
                    raise RuntimeError("nobody waits for the result")
                yield line
        except Exception as error:
            self.error = error
            raise


def _watch(out: int) -> None:
    """Answer Ctrl-C while Python cannot call the handler."""
    late = False
    with open(out, "rb", buffering=0) as numbers:
        for number in iter(lambda: numbers.read(1), b""):
            if ord(number) != signal.SIGINT:
                continue
            if late and not _handled.acquire(blocking=False):
                end()
            late = not _handled.acquire(timeout=1.0)
            if late:
                _leave_line()
                sys.stderr.write("stopping after this program; Ctrl-C again ends now\n")


def _leave_line() -> None:
    """Show the cursor, which a bar hides, and leave the line in which the terminal has
    written ``^C``; a bar is drawn over it.
    """
    terminal = sys.__stderr__
    if terminal is not None and sys.stderr.isatty():
        terminal.write("\x1b[?25h" + "\n" * (sys.stderr is terminal))
        terminal.flush()


def _note(number: int, _: FrameType | None) -> None:
    _noted.append(number)
    for each in signals():  # a closed terminal sends SIGHUP more than once
        signal.signal(each, signal.SIG_IGN if each == signal.SIGHUP else signal.SIG_DFL)
    if number == signal.SIGHUP:
        leave_terminal()
    raise KeyboardInterrupt
