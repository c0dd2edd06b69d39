"""The arguments that say what each translation begins with, what it holds, and what
it never holds.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from jaxformer.data.files import open_lines
from jaxformer.translation.options import SearchOptions


def add_constraints(parser: argparse.ArgumentParser) -> None:
    """Declare them."""
    parser.add_argument(
        "--ban",
        action="append",
        default=[],
        metavar="TEXT",
        help="a word or phrase that never comes; may be repeated",
    )
    parser.add_argument(
        "--prefix",
        type=Path,
        metavar="FILE",
        help=(
            "what the translations begin with, one line for each line of input;"
            " alternatives are separated by tabs"
        ),
    )
    parser.add_argument(
        "--require",
        type=Path,
        metavar="FILE",
        help=(
            "phrases that the translations hold, separated by tabs, one line for each"
            " line of input"
        ),
    )


def read_constraints(options: argparse.Namespace) -> SearchOptions:
    """Return what is asked for; the files are opened anew each time, and read beside
    the input.
    """
    return {
        "ban": options.ban,
        "prefixes": _fields(options.prefix),
        "required": _fields(options.require),
    }


def _fields(path: Path | None) -> Iterator[list[str]] | None:
    """Read the parts of each line between tabs."""
    return None if path is None else (line.split("\t") for line in open_lines([path]))
