"""Lines that are written as they come: to standard output, or to a file that is
whole or as it was.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from jaxformer.files import cannot_write, open_whole

Write = Callable[[str], None]
"""Writes a line."""


@contextlib.contextmanager
def open_output(path: Path | None) -> Iterator[Write]:
    """Open standard output or a file, and yield a function that writes a line as UTF-8.

    A file appears under its name when the block ends: until then the older one is
    unchanged. Where an error or an interruption ends the block, the lines up to it stay
    in ``NAME.part``, or in ``NAME.part2`` and so on where that exists, and standard
    error says so. What is no plain file, such as a pipe, is written at once, as
    standard output is.

    Raises:
        InputError: the file or standard output cannot be written.
    """
    if path is None:
        yield lambda line: _send(sys.stdout.buffer, line, "standard output")
    elif path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield lambda line: _send(file, line, path)
    else:
        with _whole_file(Path(os.path.realpath(path))) as write:
            yield write


def _send(file: BinaryIO, line: str, name: Path | str) -> None:
    try:
        file.write(_encode(line))
        file.flush()
    except OSError as error:
        # What is left in the buffer would fail once more when the file is closed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        raise cannot_write(name, error) from None


@contextlib.contextmanager
def _whole_file(path: Path) -> Iterator[Write]:
    def write(line: str) -> None:
        file.write(_encode(line))

    with open_whole(path) as file:
        try:
            yield write
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            with contextlib.suppress(OSError):
                file.flush()
            _keep(Path(file.name), path)
            raise


def _keep(unfinished: Path, path: Path) -> None:
    """Rename an unfinished file that holds lines to a name that is free."""
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
