#!/usr/bin/env python3
"""Print the size of the code: a line for each part of the package, then the package,
the tests and the documentation.

    python scripts/measure_code.py

Tokens are those of the tokenizer without comments, docstrings, line ends and
indentation, so that neither the width of a line nor an explanation counts. The length
of a function is that from its ``def`` to its last line, docstring included. Nothing
asserts these figures.
"""

from __future__ import annotations

import ast
import io
import statistics
import tokenize
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
}
LAYOUT |= {tokenize.ENCODING, tokenize.ENDMARKER}
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


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


def show(name: str, sizes: list[Size]) -> None:
    """Print a line of the table."""
    functions = [length for size in sizes for length in size.functions] or [0]
    lines, tokens = [size.lines for size in sizes], [size.tokens for size in sizes]
    print(
        f"{name:16}{len(sizes):6}{sum(lines):8,}{sum(tokens):9,}{max(lines):9,}"
        f"{statistics.median(functions):10.0f}{max(functions):9}"
    )


def main() -> None:
    """Print the table."""
    rooms: dict[str, list[Size]] = defaultdict(list)
    for path in sorted((ROOT / "jaxformer").rglob("*.py")):
        inside = path.relative_to(ROOT / "jaxformer")
        rooms[inside.parts[0] if len(inside.parts) > 1 else "."].append(measure(path))
    print(
        f"{'':16}{'files':>6}{'lines':>8}{'tokens':>9}{'longest':>9}{'function':>10}{'longest':>9}"
    )
    for name, sizes in sorted(
        rooms.items(), key=lambda room: -sum(size.tokens for size in room[1])
    ):
        show(name, sizes)
    show("jaxformer", [size for sizes in rooms.values() for size in sizes])
    for name in ("tests", "scripts", "configs"):
        show(name, [measure(path) for path in sorted((ROOT / name).rglob("*.py"))])
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    print(
        "documentation:"
        f" {sum(len(page.read_text(encoding='utf-8').split()) for page in pages):,}"
        " words"
    )


if __name__ == "__main__":
    main()
