r"""Text of one side by name: files, documents, source code.

A data set has a name of the form ``scheme:rest`` as in :mod:`jaxformer.data.sources`,
with the same patterns and compressions. It has one text an example
(``data.kind`` text, masked or documents):

=============================== ================================================
name                            data
=============================== ================================================
``text:FILE``                   one text a line
``documents:FILE``              texts of several lines, a blank line between them
``files:src/**/*.py``           each file is a text
``jsonl:FILE``                  the field ``text``; ``jsonl:FILE#body`` another one
``hf:NAME/SPLIT``               the column ``text``; ``hf:NAME/SPLIT#body``
``tfds:NAME/SPLIT``             the feature ``text``; ``tfds:NAME/SPLIT#body``
``python:train``                each source file of the standard library of the Python
                                that runs, without its tests; also ``:valid``,
                                ``:test``. Licence: PSF. The text, and so any number
                                measured on it, depends on the version of Python.
``bundled:en-de/train``         the lines of both languages
=============================== ================================================

Every example is a :class:`~jaxformer.data.records.Pair` of the text and itself.
"""

from __future__ import annotations

import functools
import hashlib
import re
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from jaxformer.data import hub
from jaxformer.data.files import open_lines, open_parallel
from jaxformer.data.records import Pair, read_field
from jaxformer.data.sources import (
    BUNDLED,
    SPLITS,
    Opened,
    find_files,
    read_records,
    split_known,
)
from jaxformer.errors import InputError, did_you_mean

Records: TypeAlias = Callable[[], Iterable[tuple[object, str]]]
"""Reads records, each with what an error calls it."""

# Folders of the standard library without code that the language needs.
_NOT_LIBRARY = {"test", "tests", "idle_test", "site-packages", "dist-packages"}


def _open_one_sided(
    scheme: str, read: Callable[[Path], Iterable[str]], rest: str
) -> Opened:
    if re.search(r"(?<!\\),", rest):
        raise InputError(
            rf"'{scheme}:{rest}' must name one file or pattern, since its texts have"
            r" one side (a comma in a path: \,)"
        )
    paths = find_files(rest.replace(r"\,", ","), f"{scheme}:{rest}")
    return functools.partial(_read_files, read, paths), tuple(paths)


def _read_files(
    read: Callable[[Path], Iterable[str]], paths: Sequence[Path]
) -> Iterator[Pair]:
    for path in paths:
        yield from _both(read(path))


def _both(texts: Iterable[str]) -> Iterator[Pair]:
    return (Pair(text, text) for text in texts)


def _lines(path: Path) -> Iterator[str]:
    return open_lines([path])


def _documents(path: Path) -> Iterator[str]:
    lines: list[str] = []
    for line in open_lines([path]):
        if line.strip():
            lines.append(line)
        elif lines:
            yield "\n".join(lines)
            lines = []
    if lines:
        yield "\n".join(lines)


def _whole(path: Path) -> Iterator[str]:
    """Yield the text of a file; none of an empty one, which projects of code have."""
    try:
        size = path.stat().st_size
    except OSError:
        size = 1  # what reads it words the error
    if size:
        yield "\n".join(open_lines([path]))


def _open_library(rest: str) -> Opened:
    if rest not in SPLITS:
        known = [f"python:{split}" for split in SPLITS]
        raise InputError(
            f"no data set 'python:{rest}': there are {', '.join(known)}"
            f"{did_you_mean(f'python:{rest}', known)}"
        )
    paths = library_files(rest)
    if not paths:
        raise InputError(
            f"no data set python:{rest}: this Python has no source of its library in"
            f" {sysconfig.get_path('stdlib')}"
        )
    return functools.partial(_read_files, _whole, paths), tuple(paths)


def library_files(split: str) -> list[Path]:
    """Return the files of a split of the standard library, sorted by their paths.

    The SHA-256 of a file's path chooses its split: one of 20 is for ``valid``, another
    for ``test``. Tests, packages of others and what was generated for one machine
    (``_sysconfigdata``) are left out.
    """
    root = Path(sysconfig.get_path("stdlib"))
    found = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        name = "/".join(parts)
        if _NOT_LIBRARY.isdisjoint(parts) and not name.startswith("_sysconfigdata"):
            number = hashlib.sha256(name.encode()).digest()[0] % 20
            if {0: "valid", 1: "test"}.get(number, "train") == split:
                found.append(path)
    return found


def _open_both_languages(rest: str) -> Opened:
    split_known("bundled", rest, ["en-de"])
    return functools.partial(read_languages, rest, labelled=False), ()


def read_languages(rest: str, *, labelled: bool) -> Iterator[Pair]:
    """Yield the lines of both sides of a bundled corpus in turn: as texts, or with the
    code of their language as a label.
    """
    corpus, split = split_known("bundled", rest, ["en-de"])
    codes = corpus.split("-")
    files = [[BUNDLED / corpus / f"{split}.{code}"] for code in codes]
    for lines in open_parallel(*files):
        for line, code in zip(lines, codes, strict=True):
            yield Pair(line, code if labelled else line)


def split_columns(rest: str) -> tuple[str, list[str]]:
    """Split ``FILE#COLUMN,COLUMN``; without columns there are none."""
    name, _, columns = rest.partition("#")
    return name, [column.strip() for column in columns.split(",") if column.strip()]


def _split_hub(rest: str) -> tuple[str, list[str]]:
    """Split ``NAME/SPLIT#COLUMN,COLUMN``, where NAME may have a ``#`` too."""
    found = re.fullmatch(r"(.+/[^#/]+)#([^/]+)", rest)
    if not found:
        return rest, []
    return found[1], split_columns(f"#{found[2]}")[1]


def _open_text_records(scheme: str, rest: str) -> Opened:
    records, columns, files = open_records(scheme, rest)
    if len(columns) > 1:
        raise InputError(
            f"'{scheme}:{rest}' must name one field for a text, not {len(columns)}"
        )
    return functools.partial(_read_text_records, records, *columns), files


def _read_text_records(records: Records, name: str = "text") -> Iterator[Pair]:
    for record, place in records():
        text = read_field(record, name, place)
        yield Pair(text, text)


def open_records(scheme: str, rest: str) -> tuple[Records, list[str], tuple[Path, ...]]:
    """Find what ``jsonl:``, ``hf:`` or ``tfds:`` names; return what reads its records,
    the fields that the name chooses, and the files.

    Raises:
        InputError: there is no such data set.
    """
    if scheme == "jsonl":
        pattern, columns = split_columns(rest)
        paths = find_files(pattern, f"jsonl:{rest}", "fields follow the #")
        return functools.partial(read_records, paths), columns, tuple(paths)
    name, columns = _split_hub(rest)
    if scheme == "hf":
        hub.split_hf(name)
        return functools.partial(hub.records_hf, name), columns, ()
    hub.open_tfds(name)  # cheap: raises if something is missing
    return functools.partial(hub.records_tfds, name), columns, ()


OPENERS: dict[str, Callable[[str], Opened]] = {
    "bundled": _open_both_languages,
    "text": functools.partial(_open_one_sided, "text", _lines),
    "documents": functools.partial(_open_one_sided, "documents", _documents),
    "files": functools.partial(_open_one_sided, "files", _whole),
    "jsonl": functools.partial(_open_text_records, "jsonl"),
    "python": _open_library,
    "tfds": functools.partial(_open_text_records, "tfds"),
    "hf": functools.partial(_open_text_records, "hf"),
}
"""What opens the data sets of text, by the scheme of their names."""
