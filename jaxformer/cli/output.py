"""Text in and out of a command: lines that are read lazily, and lines that are written
to standard output or to a file that appears when it is complete; what a person sees at
a terminal.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import itertools
import json
import os
import select
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import jax

from jaxformer.cli.main import wrap
from jaxformer.data.files import check_folder, open_lines, stream_lines
from jaxformer.errors import InputError, LineError, escape_controls, require
from jaxformer.files import (
    check_writable,
    find_descriptor,
    finite,
    open_whole,
)
from jaxformer.search.config import differing_settings

_STANDARD_INPUT = "standard input"
_PAUSE = 0.5  # seconds without a line, after which those that came are translated

Write = Callable[[str], object]
"""Writes a line."""


@contextlib.contextmanager
def open_output(path: Path | None) -> Iterator[Write]:
    """Open standard output or a file, and yield a function that writes a line as UTF-8.

    A file appears under its name when the block ends. Until then an older file is
    unchanged. If an error or an interruption ends the block, its lines stay in
    ``NAME.part``, or in ``NAME.part2`` and so on if that exists, and standard error
    says so. A pipe, a device or a descriptor of this process, as ``/dev/stdout``, is
    written at once.

    Raises:
        InputError: the file or standard output cannot be written.
    """
    if path is None:
        yield _print
    elif (own := find_descriptor(path)) is not None or (
        path.exists() and not path.is_file()
    ):
        with open(path if own is None else os.dup(own), "wb") as file:
            yield lambda line: _send(file, line)
    else:
        path = Path(os.path.realpath(path))
        with open_whole(path) as file:
            try:
                yield lambda line: file.write(_encode(line))
                file.flush()
                os.fsync(file.fileno())
            except BaseException:
                with contextlib.suppress(OSError):
                    file.flush()
                _keep(Path(file.name), path)
                raise


def _print(line: str) -> None:
    while _drawn:
        _drawn.pop()()
    _send(sys.stdout.buffer, line)


def _send(file: BinaryIO, line: str) -> None:
    try:
        file.write(_encode(line))
        file.flush()
    except BrokenPipeError:
        # The rest of the buffer would fail again when the file is closed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())
        raise


def _keep(unfinished: Path, path: Path) -> None:
    """Rename an unfinished file with lines to a free name."""
    with unfinished.open("rb") as file:
        count = sum(line.endswith(b"\n") for line in file)
    if count:
        names = (
            path.with_name(f"{path.name}.part{number}")
            for number in itertools.chain([""], itertools.count(2))
        )
        part = next(name for name in names if not os.path.lexists(name))
        unfinished.rename(part)
        sys.stderr.write(
            f"the first {count} lines are in {part}; {path.name} is not written\n"
        )


def _encode(line: str) -> bytes:
    return (line + "\n").encode("utf-8")


class _Waiting(io.FileIO):
    """A file that waits so many seconds for bytes; None: until there are some."""

    seconds: float | None = None
    ended = False

    def readinto(self, buffer: Any) -> Any:
        """Read what there is; None: nothing came; 0, from then on: the file ended.

        A terminal says its end once.
        """
        if self.ended:
            return 0
        if not select.select([self], [], [], self.seconds)[0]:
            return None
        count = super().readinto(buffer)
        self.ended = not count
        return count


def read_input(path: Path | None) -> Iterator[str]:
    """Read the lines of a file or of standard input lazily; both may be empty.

    Raises:
        InputError: see :func:`~jaxformer.data.files.open_lines`.
    """
    return open_input(path)[0]


def open_input(path: Path | None) -> tuple[Iterator[str], Callable[[], bool]]:
    """Return what :func:`read_input` does, and a function that waits for the next line
    of a pipe, and returns whether none comes within half a second.
    """
    if path is not None and (path.suffix or not path.is_fifo()):
        return open_lines([path], empty=True), lambda: False
    try:  # it is closed when the process ends
        handle = os.open(path, os.O_RDONLY) if path else sys.stdin.fileno()
    except io.UnsupportedOperation:  # in memory
        return stream_lines(sys.stdin.buffer, _STANDARD_INPUT), lambda: False
    raw = _Waiting(handle, closefd=False)
    stream = io.BufferedReader(raw, 1 << 16)

    def pause() -> bool:
        raw.seconds = _PAUSE
        held = stream.peek()
        raw.seconds = None
        if held and b"\n" not in held:  # a part of a line
            return not select.select([raw], [], [], _PAUSE)[0]
        return not held

    return stream_lines(stream, name_input(path)), pause


def read_document(path: Path | None) -> str:
    """Return all of a file or of standard input, with its line ends.

    Raises:
        InputError: it is not UTF-8.
    """
    try:
        return (path.read_bytes() if path else sys.stdin.buffer.read()).decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{name_input(path)} must be UTF-8: encode it so") from None


def name_input(path: Path | None) -> str:
    """Return the name of the text of :func:`read_input` in an error."""
    return _STANDARD_INPUT if path is None else str(path)


@contextlib.contextmanager
def name_lines(**files: str | Path | None) -> Iterator[None]:
    """Name the file in the error of a line.

    Args:
        **files: by the kinds of :class:`~jaxformer.errors.LineError`; None: the text is
            not from a file.
    """
    try:
        yield
    except LineError as error:
        name = files.get(error.kind)
        if name is None:
            raise
        raise error.within(str(name)) from None


def say(text: str) -> None:
    """Write a line to standard error, wrapped on a terminal."""
    sys.stderr.write(f"{wrap(escape_controls(text), sys.stderr)}\n")


def warn(text: str) -> None:
    """Write a warning in one line to standard error."""
    say(f"jaxformer: warning: {text}")


def check_output(path: Path | None, *inputs: Path | None) -> None:
    """Check before the work that inputs exist, and that the result can be written and
    is not one of them.

    Raises:
        InputError: an input or the folder of the file is missing or cannot be written,
            the file is a folder, or it is one of the inputs.
    """
    for given in filter(None, inputs):
        if not given.exists():
            raise InputError(f"no file {given}")
        if path and path.is_file() and path.samefile(given):
            raise InputError(f"{path} is the file that is read: name another to write")
    if path is None:
        return
    if not path.parent.is_dir():
        raise InputError(
            f"cannot write {path}: there is no folder {path.parent}; make it first"
        )
    if path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder; name a file")
    if find_descriptor(path) is None and (path.is_file() or not path.exists()):
        check_writable(Path(os.path.realpath(path)).parent)


def write_output(path: Path | None, lines: Iterable[str]) -> None:
    """Write lines as :func:`open_output` does, once all of them exist.

    Raises:
        InputError: the file or standard output cannot be written.
    """
    made = list(lines)
    with open_output(path) as write:
        if made:
            write("\n".join(made))


def write_record(record: Mapping[str, object], *, indent: int | None = None) -> None:
    """Write an object as JSON to standard output; numbers that are not finite are null.

    Raises:
        InputError: standard output cannot be written.
    """
    text = json.dumps(finite(record), indent=indent, ensure_ascii=False)
    write_output(None, [escape_controls(text)])


def add_format(
    parser: argparse.ArgumentParser,
    usual: str = "a table on a terminal, JSON elsewhere",
) -> None:
    """Declare the form of a result, for :func:`write_result`."""
    told = f"form of the result (default: {usual})"
    parser.add_argument("--format", choices=("table", "json"), help=told)


def write_result(
    record: dict[str, Any], form: str | None = None, *, indent: int | None = None
) -> None:
    """Write an object as :func:`write_record` does, or as a table for a person: without
    the hash of the text; of a search with its beam, alpha and what differs from usual.
    """
    if form == "json" or (form is None and not sys.stdout.isatty()):
        write_record(record, indent=indent)
        return
    size, rows = 2 + max(map(len, record)), []
    for key, value in record.items():
        if key == "text":
            continue
        if key == "decoding":
            unusual = differing_settings(value, beam_size=None, alpha=None)
            value = {name: own for name, (own, _) in unusual.items()}
        items = value.items() if isinstance(value, dict) else ()
        parts = {f"{name}: ": each for name, each in items if isinstance(each, dict)}
        parts = parts or {"": value}
        cells = {name: _cell(each) for name, each in parts.items()}
        rows += [f"{key:<{size}}{name}{cell}" for name, cell in cells.items() if cell]
    write_lines(rows, size)


def _cell(value: Any) -> str:
    """Write a value; of a result its scores, of an object what is not empty."""
    if type(value) is int:
        return f"{value:,}"
    if isinstance(value, float):
        return format(value, ".2f" if value >= 1.0 else ".6g")
    if not isinstance(value, dict):
        return str(value or "")
    scores = [key for key in value if f"{key}_signature" in value]
    cells = (f"{key} {_cell(value[key])}" for key in scores or value if value[key])
    return ", ".join(cells)


def picture_folder(output: Path | None, run: Path, name: str) -> Path:
    """Return the folder of pictures: ``output``, or that of a name in a run.

    Raises:
        InputError: it is a file, or cannot be written.
    """
    directory = output or run / name
    if run.is_dir():
        check_folder(directory, "--output")
        check_writable(run)
    return directory


def write_lines(lines: Iterable[str], indent: int) -> None:
    """Write lines to standard output, wrapped on a terminal."""
    lines = [wrap(escape_controls(line), sys.stdout, indent) for line in lines]
    write_output(None, lines)


_drawn: list[Callable[[], object]] = []
"""Erase what is drawn, before standard output has a line."""


def _draw(*columns: Any, transient: bool, hidden: bool = False) -> Any:
    """Return a display of rich on standard error, if that is a terminal."""
    console = require("rich.console", "train").Console(stderr=True)
    shown = require("rich.progress", "train").Progress(
        *columns,
        console=console,
        transient=transient,
        disable=hidden or not sys.stderr.isatty(),
    )
    _drawn.append(shown.stop)
    return shown


@contextlib.contextmanager
def phase(what: str) -> Iterator[None]:
    """Show on a terminal what the block does and for how long, after a second."""
    shown = _draw("{task.description} {task.elapsed:.0f} s", transient=True)
    shown.add_task(what)
    timer = threading.Timer(1.0, shown.start)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        shown.stop()


@functools.cache  # once, also for several runs
def announce_compilations() -> None:
    """Say on a terminal which program is compiled, where that takes more than a second,
    and then how long it took.
    """
    timers: dict[int, threading.Timer] = {}  # of the threads that compile

    def note(event: str, *seconds: Any, fun_name: Any = "", **_: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            line = f"compiling {'the search' if 'search' in fun_name else fun_name} ..."
            thread = threading.get_ident()
            if thread not in timers:  # it begins
                timers[thread] = threading.Timer(1.0, say, [line])
                timers[thread].start()
                return
            timers.pop(thread).cancel()
            if seconds[0] > 1.0:
                say(f"{line} {seconds[0]:.0f} s")

    if sys.stderr.isatty():
        jax.monitoring.register_scalar_listener(note)
        jax.monitoring.register_event_duration_secs_listener(note)


@contextlib.contextmanager
def show_progress(
    total: int | None, output: Path | None, unit: str = "sentences"
) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error if that is a terminal, and yield the function that
    advances it. If the results go to the same terminal, it ends at the first.

    Args:
        total: number of all sentences; None: unknown.
        output: file of the results; None: standard output.
        unit: what is counted.
    """
    mixed = output is None and sys.stdout.isatty()
    progress = require("rich.progress", "train")
    left = progress.TimeRemainingColumn(compact=True)
    columns = progress.BarColumn(), progress.MofNCompleteColumn(), unit, left
    hidden = mixed and total is None
    with _draw(*columns, transient=mixed, hidden=hidden) as shown:
        yield functools.partial(shown.advance, shown.add_task("", total=total))
