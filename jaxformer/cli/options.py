"""What several commands have in common: the arguments that choose a model, and text in and out."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from jaxformer.data.files import open_lines, stream_lines
from jaxformer.errors import InputError


def add_model(parser: argparse.ArgumentParser) -> None:
    """Declare which run and which checkpoint."""
    parser.add_argument("--workdir", required=True, type=Path, metavar="DIR", help="directory of a trained run")
    parser.add_argument(
        "--checkpoint",
        default="best",
        metavar="WHICH",
        help="best (default), latest, a step, average (the newest) or average/NAME",
    )
    parser.add_argument(
        "--target_language", metavar="CODE", help="what to translate into, for a run of several languages"
    )


def read_input(path: Path | None) -> Iterator[str]:
    """Read the lines of a file, or of standard input, as they are asked for.

    Raises:
        InputError: see :func:`~jaxformer.data.files.open_lines`.
    """
    return stream_lines(sys.stdin.buffer, "standard input") if path is None else open_lines([path])


def check_output(path: Path | None) -> None:
    """Find out before the work that its result could not be written.

    Raises:
        InputError: the folder of the file is missing, or it is itself a folder.
    """
    if path is not None and not path.parent.is_dir():
        raise InputError(f"cannot write {path}: there is no folder {path.parent}; make it first")
    if path is not None and path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder; name a file")


def write_output(path: Path | None, lines: Iterable[str]) -> None:
    """Write lines as UTF-8 to a file, or to standard output."""
    content = "".join(line + "\n" for line in lines).encode("utf-8")
    if path is None:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    else:
        path.write_bytes(content)
