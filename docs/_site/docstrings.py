"""What the reference makes of docstrings: roles become links, tables tables,
examples code; comments tell of fields.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

import griffe

from jaxformer.cli.config_file import field_comments

OUTSIDE = sys.stdlib_module_names | {"flax", "jax", "numpy", "optax", "orbax"}
"""Packages that docstrings may speak of without a link."""

_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod|obj):`(~?)([\w.]+)`")
_RULE = re.compile(r"=+(?: +=+)+")
_logger = griffe.get_logger(__name__)


class Docstrings(griffe.Extension):
    """Prepares the docstrings of the whole package once it is read."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Change the docstrings, and which attributes are shown."""
        del kwargs
        objects = list(walk(pkg))
        for found in objects:
            if is_dataclass(found):
                take_comments(found)
            elif is_linen(found):
                add_signature(found)
            hide_undocumented(found)
        for found in objects:
            if found.docstring is not None:
                text = write_tables(found.docstring.value)
                text = re.sub(
                    r"^(\s*)Example:$", r"\1Examples:", text, flags=re.MULTILINE
                )
                found.docstring.value = _ROLE.sub(
                    lambda role, at=found: link(role, at, pkg), text
                )


def walk(parent: griffe.Object) -> Iterator[griffe.Object]:
    """Go through an object and all that is defined in it."""
    yield parent
    for member in own_members(parent):
        yield from walk(member)


def own_members(parent: griffe.Object) -> list[griffe.Object]:
    """Return what is defined in an object, without what is imported."""
    return [
        member
        for member in parent.members.values()
        if isinstance(member, griffe.Object)
    ]


def is_dataclass(found: griffe.Object) -> bool:
    """Return whether an object is a class whose fields are the arguments that make
    it.
    """
    return isinstance(found, griffe.Class) and any(
        "dataclass" in str(mark.value) for mark in found.decorators
    )


def is_linen(found: griffe.Object) -> bool:
    """Return whether an object is a module of Flax's, which makes a dataclass of it
    without a decorator.
    """
    return isinstance(found, griffe.Class) and any(
        str(base) == "nn.Module" for base in found.bases
    )


def add_signature(found: griffe.Object) -> None:
    """Give a class the arguments that its fields are: their order, types and
    defaults.
    """
    parameters = griffe.Parameters(
        griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
    )
    for member in own_members(found):
        if isinstance(member, griffe.Attribute) and member.annotation is not None:
            parameters.add(
                griffe.Parameter(
                    member.name,
                    annotation=member.annotation,
                    default=None if member.value is None else str(member.value),
                    kind=griffe.ParameterKind.positional_or_keyword,
                )
            )
    found.set_member(
        "__init__",
        griffe.Function("__init__", parameters=parameters, lineno=found.lineno),
    )


def take_comments(found: griffe.Object) -> None:
    """Let the comment above a field be its docstring."""
    said = field_comments(found.source)
    for member in own_members(found):
        if member.is_attribute and member.docstring is None and said.get(member.name):
            member.docstring = griffe.Docstring(said[member.name], parent=member)


def hide_undocumented(found: griffe.Object) -> None:
    """Leave out constants without a word, and fields that the signature or the
    docstring of their class shows.
    """
    listed = found.docstring is not None and "Attributes:" in found.docstring.value
    signed = is_dataclass(found) or "__init__" in found.members
    for member in own_members(found):
        if (
            member.is_attribute
            and member.docstring is None
            and (found.is_module or listed or signed)
        ):
            member.public = False


def write_tables(text: str) -> str:
    """Write the tables of a docstring, columns under rules of ``===``, as Markdown
    has them.
    """
    written: list[str] = []
    rows: list[list[str]] | None = None
    columns: list[slice] = []
    line_under: list[str] = []
    for line in text.splitlines():
        if _RULE.fullmatch(line):
            if rows is None:
                starts = [found.start() for found in re.finditer("=+", line)]
                columns = [
                    slice(start, end)
                    for start, end in zip(starts, [*starts[1:], None], strict=True)
                ]
                rows, line_under = [], ["---"] * len(columns)
            elif len(rows) > 1:
                rows = (
                    rows
                    if rows[1] == line_under
                    else [[""] * len(columns), line_under, *rows]
                )
                written += [f"| {' | '.join(row)} |" for row in rows]
                rows = None
            else:
                rows.append(line_under)
        elif rows is None:
            written.append(line)
        elif line[columns[0]].strip():
            rows.append(
                [line[column].strip().replace("|", r"\|") for column in columns]
            )
        else:  # a line that goes on with the row above
            more = [line[column].strip() for column in columns]
            rows[-1] = [
                f"{cell} {rest}".strip()
                for cell, rest in zip(rows[-1], more, strict=True)
            ]
    return "\n".join(written)


def link(role: re.Match[str], at: griffe.Object, package: griffe.Module) -> str:
    """Turn a role into a link to the place in the reference, or into its name where
    that is of another package.
    """
    short, target = bool(role[1]), role[2]
    text = f"`{target.rpartition('.')[2] if short else target}`"
    found = find(target, at, package)
    if found is None and target.split(".")[0] not in OUTSIDE:
        _logger.warning(f"{at.path}: {role[0]} leads to nothing")
    return (
        text
        if found is None or not is_shown(found)
        else f"[{text}][{found.canonical_path}]"
    )


def find(
    target: str, at: griffe.Object, package: griffe.Module
) -> griffe.Object | None:
    """Find what a docstring of ``at`` names, from the class or module that it stands
    in outward.
    """
    scope: griffe.Object | None = at
    prefixes = [""]
    while scope is not None:
        prefixes.append(f"{scope.path}.")
        scope = scope.parent  # type: ignore[assignment]
    for prefix in prefixes:
        path = f"{prefix}{target}"
        if path.startswith(f"{package.path}."):
            try:
                found = package[path.removeprefix(f"{package.path}.")]
                return found.final_target if isinstance(found, griffe.Alias) else found
            except (KeyError, griffe.AliasResolutionError, griffe.CyclicAliasError):
                continue
    return None


def is_shown(found: griffe.Object) -> bool:
    """Return whether the reference has a place for what was found."""
    if found.path.startswith("jaxformer.cli"):
        return False  # the command line is shown by what it says of itself
    return found.is_module or bool(found.is_public)
