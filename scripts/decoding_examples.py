#!/usr/bin/env python3
r"""Run the examples of docs/decoding-examples.md, and show which outputs differ.

    python scripts/decoding_examples.py --workdir=runs/quickstart    # prints a diff
    python scripts/decoding_examples.py --workdir=runs/quickstart --write    # update it

An example is a block of the language console: lines that begin with "$ " are commands,
a backslash at the end continues one, and what follows is their output.
The commands run in a folder of their own, in which runs/quickstart is a copy of
--workdir, and in one process, so that JAX starts once. A command is a pipe of programs
that may end with "> FILE", which takes what they print but not what they say on
standard error; there is no other syntax of a shell. Another model than the page's gives
other translations.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from jaxformer.cli import main as command_line
from jaxformer.cli.main import DONE, FAILED, report
from jaxformer.errors import InputError

PAGE = Path(__file__).resolve().parents[1] / "docs" / "decoding-examples.md"
BLOCK = re.compile(r"(?<=^```console\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (?:.*\\\n)*.*\n", re.MULTILINE)


def commands_of(block: str) -> list[str]:
    """Return the commands of a block in order, without the "$ " before them."""
    return [found[2:-1] for found in COMMAND.findall(block)]


def split(command: str) -> tuple[list[list[str]], Path | None]:
    """Return the words of each program of a pipe, and the file that the output goes
    into.
    """
    lexer = shlex.shlex(command.replace("\\\n", ""), posix=True, punctuation_chars="|>")
    lexer.whitespace_split, lexer.commenters = True, ""
    stages: list[list[str]] = [[]]
    for word in lexer:
        if word == "|":
            stages.append([])
        else:
            stages[-1].append(word)
    target = Path(stages[-1][-1]) if stages[-1][-2:-1] == [">"] else None
    return [*stages[:-1], stages[-1] if target is None else stages[-1][:-2]], target


def run(command: str) -> str:
    """Run a command in this folder and return its output."""
    stages, target = split(command)
    data, shown = b"", io.BytesIO()
    for number, stage in enumerate(stages, 1):
        if stage[0] == "jaxformer":
            printed = (
                shown if number == len(stages) and target is None else io.BytesIO()
            )
            _run_here(stage[1:], data, printed, shown)
            data = b"" if printed is shown else printed.getvalue()
        else:
            data = subprocess.run(
                stage, input=data, stdout=subprocess.PIPE, check=True
            ).stdout
    if target is not None:
        target.write_bytes(data)
        data = b""
    return (shown.getvalue() + data).decode()


def replay(page: str) -> str:
    """Return a page with the output of its commands in this folder."""
    return BLOCK.sub(
        lambda block: "".join(
            f"$ {each}\n{run(each)}" for each in commands_of(block[0])
        ),
        page,
    )


@contextlib.contextmanager
def working_copy(workdir: Path) -> Iterator[None]:
    """Work in a temporary folder with a copy of a run as runs/quickstart.

    Raises:
        InputError: there is no such run.
    """
    if not (workdir / "config.json").is_file():
        raise InputError(
            f"no run in {workdir}: make quickstart trains one in runs/quickstart"
        )
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(workdir, Path(folder) / "runs" / "quickstart")
        with contextlib.chdir(folder):
            yield


def _run_here(
    arguments: list[str], data: bytes, printed: io.BytesIO, said: io.BytesIO
) -> None:
    """Run a command of jaxformer in this process, and record its output and its
    standard error.
    """
    given = sys.stdin
    out, error = (
        io.TextIOWrapper(file, encoding="utf-8", write_through=True)
        for file in (printed, said)
    )
    sys.stdin = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8")
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            command_line.main(arguments)
    finally:
        sys.stdin = given
        for text in (out, error):
            text.detach()  # otherwise the file closes with it


def examples(workdir: Path, *, write: bool) -> int:
    """Run all examples with a run; print what differs, or write it into the page."""
    page = PAGE.read_text(encoding="utf-8")
    with working_copy(workdir.resolve()):
        present = replay(page)
    if write:
        PAGE.write_text(present, encoding="utf-8")
        return DONE
    lines = difflib.unified_diff(
        page.splitlines(), present.splitlines(), "page", "present", lineterm="", n=1
    )
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return DONE if page == present else FAILED


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--workdir",
        type=Path,
        default=Path("runs/quickstart"),
        help="the run of make quickstart",
    )
    parser.add_argument(
        "--write", action="store_true", help="put what comes out into the page"
    )
    chosen = parser.parse_args()
    try:
        return examples(chosen.workdir, write=chosen.write)
    except InputError as error:
        return report(error)


if __name__ == "__main__":
    sys.exit(main())
