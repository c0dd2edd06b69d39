"""The names of the reference: those without an underscore, in modules without one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from pages import ROOT

PACKAGE = ROOT / "jaxformer"
ROOMS = sorted(
    path.parent.name
    for path in PACKAGE.glob("*/__init__.py")
    if path.parent.name != "cli"
)
"""The packages of the reference: all but the command line."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Name(NamedTuple):
    """A public function, class or method: its path, its definition, and the
    docstring of its module.
    """

    path: str
    node: Definition
    module: str

    @property
    def docstring(self) -> str:
        return ast.get_docstring(self.node) or ""


def documented_names() -> list[Name]:
    """List every public function, class and method."""
    found: list[Name] = []
    for room in ROOMS:
        for path in sorted((PACKAGE / room).rglob("*.py")):
            if not path.stem.startswith("_"):
                module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
                found += names_of(module, path.read_text(encoding="utf-8"))
    return found


def names_of(module: str, source: str) -> list[Name]:
    """List the public names of one module."""
    tree = ast.parse(source)
    about = ast.get_docstring(tree) or ""
    return [Name(path, node, about) for path, node in _definitions(tree, module)]


def _definitions(
    parent: ast.Module | ast.ClassDef, path: str
) -> Iterator[tuple[str, Definition]]:
    for node in parent.body:
        if isinstance(node, Definition) and not node.name.startswith("_"):
            yield f"{path}.{node.name}", node
            if isinstance(node, ast.ClassDef):
                yield from _definitions(node, f"{path}.{node.name}")
