#!/usr/bin/env python3
"""Print the size of the code: a line for each room of the package, then the package,
the tests and the documentation; and the lines to read for what docs/the-paper.md lists.
Fail where a room is above its limit.

    python scripts/measure_code.py
    python scripts/measure_code.py --lower

Tokens are those of the tokenizer without comments, docstrings, line ends and
indentation, so that neither the width of a line nor an explanation counts. The length
of a function is that from its ``def`` to its last line, docstring included.

``[tool.jaxformer.budget]`` in pyproject.toml has the limit of each and its aim. A limit
is the smallest size that was reached: ``--lower`` writes today's sizes where they are
below it.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import statistics
import sys
import tokenize
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple, cast

ROOT = Path(__file__).resolve().parents[1]
PROJECT = ROOT / "pyproject.toml"
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
}
LAYOUT |= {tokenize.ENCODING, tokenize.ENDMARKER}
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
INCLUDED = re.compile(r'(?ms)^```python title="([\w.]+)"\n.*?^```$')
LISTED = re.compile(r"(?m)^\| ([^|`]+) \| (`[^|]+`) \|$")


class Size(NamedTuple):
    """The size of a file.

    Attributes:
        lines: with blank ones and comments.
        tokens: of code.
        functions: the number of lines of each function, without those inside others.
    """

    lines: int
    tokens: int
    functions: list[int]


def measure(path: Path) -> Size:
    """Measure a file of Python."""
    source = path.read_bytes()
    tree = ast.parse(source)
    docstrings = {
        (node.body[0].lineno, node.body[0].col_offset)
        for node in ast.walk(tree)
        if isinstance(node, DOCUMENTED)
        and ast.get_docstring(node, clean=False) is not None
    }
    tokens = [
        token
        for token in tokenize.tokenize(io.BytesIO(source).readline)
        if token.type not in LAYOUT
        and not (token.type == tokenize.STRING and token.start in docstrings)
    ]
    functions = [
        (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return Size(source.count(b"\n"), len(tokens), functions)


def find(name: str) -> tuple[list[str], Any]:
    """Return the lines and the node of a module, class or function, which is named as
    in ``nn.blocks.Residual.__call__``.

    Raises:
        KeyError: the module defines no such name.
    """
    room, module, *path = name.split(".")
    source = (ROOT / "jaxformer" / room / f"{module}.py").read_text(encoding="utf-8")
    lines, node = source.splitlines(keepends=True), cast(Any, ast.parse(source))
    for part in path:
        node = {getattr(child, "name", ""): child for child in node.body}[part]
    return lines[node.lineno - 1 : node.end_lineno] if path else lines, node


def count_words() -> int:
    """Return the number of words of README and the pages, without included code."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    texts = (INCLUDED.sub("", page.read_text(encoding="utf-8")) for page in pages)
    return sum(len(text.split()) for text in texts)


def count_reading() -> None:
    """Print the lines to read for each row of a table of docs/the-paper.md."""
    page = (ROOT / "docs" / "the-paper.md").read_text(encoding="utf-8")
    for title, names in LISTED.findall(page):
        lines = sum(len(find(name)[0]) for name in re.findall("`(.+?)`", names))
        print(f"to read {title}: {lines:,} lines")


def show(name: str, sizes: list[Size], budget: dict[str, list[int]]) -> int:
    """Print a line of the table, and return the tokens."""
    functions = [length for size in sizes for length in size.functions] or [0]
    lines, tokens = (
        [size.lines for size in sizes],
        sum(size.tokens for size in sizes),
    )
    limit, aim = (f"{figure:,}" for figure in budget.get(name, (0, 0)))
    print(
        f"{name:16}{len(sizes):6}{sum(lines):8,}{tokens:9,}{limit:>9}{aim:>9}"
        f"{max(lines):9,}{statistics.median(functions):10.0f}{max(functions):9}"
    )
    return tokens


def lower(found: dict[str, int], budget: dict[str, list[int]]) -> None:
    """Write the sizes that are below their limits."""
    text = PROJECT.read_text(encoding="utf-8")
    start = text.index("[tool.jaxformer.budget]")
    head, table = text[:start], text[start:]
    for name, (limit, aim) in budget.items():
        size = min(limit, found.get(name, 0))
        table = re.sub(
            rf"^{name} = .*$", f"{name} = [{size}, {aim}]", table, flags=re.MULTILINE
        )
    if head + table != text:
        PROJECT.write_text(head + table, encoding="utf-8")


def main() -> int:
    """Print the table, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lower", action="store_true", help="lower the limits")
    options = parser.parse_args()
    budget = tomllib.loads(PROJECT.read_text(encoding="utf-8"))
    budget = budget["tool"]["jaxformer"]["budget"]
    rooms: dict[str, list[Size]] = defaultdict(list)
    for path in sorted((ROOT / "jaxformer").rglob("*.py")):
        inside = path.relative_to(ROOT / "jaxformer")
        rooms[inside.parts[0] if len(inside.parts) > 1 else "top"].append(measure(path))
    rooms["jaxformer"] = [size for sizes in rooms.values() for size in sizes]
    for name in ("tests", "scripts", "configs"):
        rooms[name] = [measure(path) for path in sorted((ROOT / name).rglob("*.py"))]
    print(
        f"{'':16}{'files':>6}{'lines':>8}{'tokens':>9}{'limit':>9}{'aim':>9}"
        f"{'longest':>9}{'function':>10}{'longest':>9}"
    )
    found = {name: show(name, sizes, budget) for name, sizes in rooms.items()}
    found["words"] = count_words()
    limit, aim = budget["words"]
    print(f"documentation: {found['words']:,} words (limit {limit:,}, aim {aim:,})")
    count_reading()
    if options.lower:
        lower(found, budget)
    above = [name for name, size in found.items() if size > budget.get(name, (0, 0))[0]]
    for name in above:
        print(
            f"{name} is above its limit: delete as much as came, or move the limit with"
            " that of a room that shrank",
            file=sys.stderr,
        )
    return int(bool(above))


if __name__ == "__main__":
    sys.exit(main())
