"""Which names of jaxformer a source text uses, and which of these are not public."""

from __future__ import annotations

import ast
import importlib
from types import ModuleType

ROOT = "jaxformer"


def private_uses(source: str) -> list[str]:
    """List the names of jaxformer that a text imports or reads off a module and that
    no ``__all__`` holds.
    """
    tree, known, wrong = ast.parse(source), {}, []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name.split(".")[0] == ROOT:
                    wrong += _follow(name.name.split("."))
                    known[name.asname or ROOT] = name.name if name.asname else ROOT
        elif (
            isinstance(node, ast.ImportFrom)
            and (node.module or "").split(".")[0] == ROOT
        ):
            for name in node.names:
                dotted = f"{node.module}.{name.name}"
                wrong += _follow(dotted.split("."))
                known[name.asname or name.name] = dotted
    for node in ast.walk(tree):
        chain = _chain(node)
        if len(chain) > 1 and chain[0] in known:
            wrong += _follow([*known[chain[0]].split("."), *chain[1:]])
    return sorted(set(wrong))


def _chain(node: ast.AST) -> list[str]:
    """Read ``a.b.c`` as a list of names; empty where it begins with something else."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute) and (before := _chain(node.value)):
        return [*before, node.attr]
    return []


def _follow(names: list[str]) -> list[str]:
    """Go from room to room as long as they are modules; what is read off anything
    else is its own business.
    """
    here = importlib.import_module(names[0])
    for number, name in enumerate(names[1:], 2):
        if name not in here.__all__:
            return [".".join(names[:number])]
        here = getattr(here, name)
        if not isinstance(here, ModuleType):
            break
    return []
