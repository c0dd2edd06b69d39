"""Lines that are written as they come: to standard output, or to a file that is whole or as it was."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

Write = Callable[[str], None]
"""Writes a line."""


@contextlib.contextmanager
def open_output(path: Path | None) -> Iterator[Write]:
    """Give a function that writes a line as UTF-8, to standard output or to a file.

    A file is written beside its place, as ``NAME.part``, and moved there at the end: what stood there before stays
    until all is written. Where an error or an interruption ends the work, the lines up to it stay in ``NAME.part``, and
    standard error says so. What is no plain file, such as a pipe, is written at once, as standard output is.
    """
    if path is None:
        with _standard_output() as write:
            yield write
    elif path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield lambda line: _send(file, line)
    else:
        with _whole_file(Path(os.path.realpath(path))) as write:
            yield write


@contextlib.contextmanager
def _standard_output() -> Iterator[Write]:
    try:
        yield lambda line: _send(sys.stdout.buffer, line)
    except BrokenPipeError:
        # Who read it has gone; what is left in the buffer would fail once more when the process ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


@contextlib.contextmanager
def _whole_file(path: Path) -> Iterator[Write]:
    part, count = path.with_name(path.name + ".part"), 0

    def write(line: str) -> None:
        nonlocal count
        file.write(_encode(line))
        count += 1

    with part.open("wb") as file:
        try:
            yield write
        except BaseException:
            file.close()
            if count:
                sys.stderr.write(f"the first {count} lines are in {part}; {path.name} is as it was\n")
            else:
                part.unlink()
            raise
    if path.exists():
        shutil.copymode(path, part)
    part.replace(path)


def _send(file: BinaryIO, line: str) -> None:
    file.write(_encode(line))
    file.flush()


def _encode(line: str) -> bytes:
    return (line + "\n").encode("utf-8")
