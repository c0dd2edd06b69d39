#!/usr/bin/env python3
r"""Run the examples of README and docs, and show which outputs differ.

    python scripts/examples.py --workdir=runs/quickstart    # prints a diff
    python scripts/examples.py --workdir=runs/quickstart --write    # update the pages

An example is a block of the language console: lines that begin with "$ " are commands,
a backslash at the end continues one, and what follows is their output.
Each runs in a bash of its own, in a folder with the package as in a clone, in which
runs/quickstart is a copy of --workdir; what it says on standard error is shown too.
Another model than the pages' gives other translations and scores. --write also takes
over the pictures of the run. Blocks of Python whose title is a function of the package
show its code; they come first, and need no run.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

from measure_code import INCLUDED, find

from jaxformer.cli.main import DONE, FAILED, report
from jaxformer.errors import InputError

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PICTURES = {
    "curve.png": "quickstart-curve.png",
    "attention/cross.png": "quickstart-attention.png",
    "attention/animation.gif": "quickstart-animation.gif",
}
BLOCK = re.compile(r"(?<=^```console\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (?:.*\\\n)*.*\n", re.MULTILINE)


def read_code(name: str) -> str:
    """Return the code of a function of the package without its docstring."""
    lines, node = find(name)
    said = node.body[0]
    del lines[said.lineno - node.lineno : said.end_lineno - node.lineno + 1]
    return textwrap.dedent("".join(lines))


def include(page: str) -> str:
    """Return a page with the code of the functions that its blocks name."""
    return INCLUDED.sub(
        lambda block: f'```python title="{block[1]}"\n{read_code(block[1])}```', page
    )


def commands_of(block: str) -> list[str]:
    """Return the commands of a block in order, without the "$ " before them."""
    return [found[2:-1] for found in COMMAND.findall(block)]


def run(command: str) -> str:
    """Run a command in this folder and return its output."""
    own = f'jaxformer() {{ {shlex.quote(sys.executable)} -m jaxformer.cli.main "$@"; }}'
    done = subprocess.run(
        ["bash", "-c", f"{own}\n{command}"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return done.stdout.decode()


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
        (Path(folder) / "jaxformer").symlink_to(ROOT / "jaxformer")
        with contextlib.chdir(folder):
            yield


def examples(workdir: Path, *, write: bool) -> int:
    """Run all examples with a run; print what differs, or write it into the pages."""
    code, workdir = DONE, workdir.resolve()
    pages = {path: path.read_text(encoding="utf-8") for path in PAGES}
    for path, page in sorted(pages.items(), key=lambda item: "```console" in item[1]):
        present = include(page)
        if BLOCK.search(page):
            with working_copy(workdir):
                present = replay(present)
        if write:
            path.write_text(present, encoding="utf-8")
        elif page != present:
            code, lines = FAILED, (page.splitlines(), present.splitlines())
            diff = difflib.unified_diff(*lines, path.name, "present", lineterm="", n=1)
            sys.stdout.writelines(f"{line}\n" for line in diff)
    for made, shown in PICTURES.items() if write else ():
        shutil.copy(workdir / made, ROOT / "docs" / "images" / shown)
    return code


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
        "--write", action="store_true", help="put what comes out into the pages"
    )
    chosen = parser.parse_args()
    try:
        return examples(chosen.workdir, write=chosen.write)
    except InputError as error:
        return report(error)


if __name__ == "__main__":
    sys.exit(main())
