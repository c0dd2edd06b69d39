r"""Parallel text by name: files, data sets of other packages, the bundled corpus,
synthetic tasks.

A data set has a name of the form ``scheme:rest``:

==================================== ===========================================
name                                 data
==================================== ===========================================
``bundled:en-de/train``              the bundled corpus; also ``/valid``, ``/test``
``text:train.en,train.de``           two files of equal length, source first
``tsv:train.tsv``                    source, tab, target; no quoting
``tsv:train.tsv#3,1``                source in column 3, target in column 1
``jsonl:train.jsonl``                a JSON object a line, with the languages as
                                     fields at the top or under ``translation``
``synthetic:reverse/train``          letters to reverse; also ``/valid``, ``/test``
``synthetic:copy/train``             letters to copy; also ``/valid``, ``/test``
``tfds:wmt14_translate/de-en/train`` TensorFlow Datasets, prepared when it is first
                                     read, with TensorFlow; extra ``data``
``hf:wmt/wmt14#de-en/train``         Hugging Face ``datasets``: name, ``#`` and
                                     config if any, split; extra ``data``
``hf:FOLDER/train``                  a local folder of the same library
``sacrebleu:wmt14/full``             a test set of sacreBLEU
``prepared:FOLDER``                  from ``jaxformer prepare``; only for training,
                                     see :mod:`jaxformer.data.corpus`
==================================== ===========================================

A file is plain text, or compressed as ``.gz``, ``.bz2``, ``.xz`` or ``.zst``. A pattern
in place of a file (``text:part-*.en.gz,part-*.de.gz``) reads all matching files in the
order of their names; both sides need the same number. Write a comma within a path of
``text:`` as ``\,``, and a plus between blanks as ``\+``; ``~`` is the home folder.

The languages choose the direction where the data name their languages, in any code of
:mod:`jaxformer.data.language_codes`: ``eng_Latn`` finds ``en``. ``text:``,
``tsv:`` and ``synthetic:`` know only source and target.
"""

from __future__ import annotations

import functools
import os
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from jaxformer.data import hub, sacrebleu_sets
from jaxformer.data.config import ONE_SIDED
from jaxformer.data.files import expand, expand_parallel, open_lines, open_parallel
from jaxformer.data.language_codes import find_language
from jaxformer.data.records import Pair, pair_of
from jaxformer.errors import InputError, did_you_mean
from jaxformer.files import parse_json

SPLITS = ("train", "valid", "test")

BUNDLED = Path(__file__).parent / "bundled"
"""The folder of the bundled corpus."""

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_LONGEST_SEQUENCE = 12
_SEQUENCES = {"train": 20_000, "valid": 500, "test": 500}


@dataclass(frozen=True)
class Corpus:
    """The pairs of a data set in order; each iteration reads them again.

    Iterating raises :class:`~jaxformer.errors.InputError` for errors in the data.
    """

    name: str
    read: Callable[..., Iterable[Pair]]
    files: tuple[Path, ...] = ()
    """The user's files that are read, if files name the data set."""

    def __iter__(self) -> Iterator[Pair]:
        return iter(self.read())


IMPORTED = "imported:"
"""Begins what an imported run has in place of a data set's name."""

Opened: TypeAlias = tuple[Callable[..., Iterable[Pair]], tuple[Path, ...]]
"""What reads the pairs, and the user's files."""


def load(
    name: str,
    source_language: str,
    target_language: str,
    kind: str = "pairs",
    *,
    drop_invalid: bool = False,
) -> Corpus:
    """Open a data set by name, as the table of this module describes.

    Of another ``kind`` than pairs (:data:`jaxformer.data.config.KINDS`) names are as
    :mod:`jaxformer.data.texts` and :mod:`jaxformer.data.labelled` describe, and the
    languages mean nothing. With ``drop_invalid`` pairs of ``text:`` and ``tsv:`` that
    are not UTF-8 are left for cleaning to drop, and otherwise refused.

    Example:
        >>> list(load("bundled:en-de/valid", "en", "de"))[1].source
        'Two different Python modules are called.'

    Raises:
        InputError: no such data set or file, or not in these languages. Errors in the
            data, and in fetching ``hf:`` and ``sacrebleu:``, are raised by iterating.
    """
    scheme, colon, rest = name.partition(":")
    if name.startswith(IMPORTED):
        raise InputError(
            f"{name} is the text that an imported model was trained on, which is not"
            " here: name another data set"
        )
    openers = _openers(kind, (source_language, target_language))
    opener = openers.get(scheme) if colon else None
    if opener is None:
        known = [f"{scheme}:" for scheme in (*openers, "prepared")]
        near = (not colon and _with_scheme(name)) or did_you_mean(f"{scheme}:", known)
        of_kind = "" if kind == "pairs" else f" of data.kind={kind}"
        raise InputError(
            f"no data set {name!r}{of_kind}: a name starts with"
            f" {' or '.join(known)}{near}"
        )
    if not rest.strip():
        raise InputError(f"no data set {name!r}: something must follow the colon")
    read, files = opener(rest)
    if drop_invalid and scheme in ("text", "tsv"):
        read = functools.partial(read, strict=False)
    return Corpus(name, read, files)


def _openers(
    kind: str, languages: tuple[str, str]
) -> Mapping[str, Callable[[str], Opened]]:
    """Return what opens the data sets of a kind, by the scheme of their names."""
    if kind == "pairs":
        return {
            scheme: functools.partial(opener, languages=languages)
            for scheme, opener in _OPENERS.items()
        }
    if kind in ONE_SIDED:
        from jaxformer.data import texts

        return texts.OPENERS
    from jaxformer.data import labelled

    return labelled.OPENERS[kind]


def _with_scheme(name: str) -> str:
    """Ask for the scheme that a path without one seems to need."""
    if (Path(name).expanduser() / "manifest.json").is_file():
        return f"; did you mean prepared:{name}?"
    if "," in name:
        return f"; did you mean text:{name}?"
    found = re.search(r"\.(tsv|jsonl)(\.(gz|bz2|xz|zst))?\Z", name)
    return f"; did you mean {found[1]}:{name}?" if found else ""


def escape(path: str | Path) -> str:
    r"""Write a path as ``text:`` reads it, with ``\,`` for a comma, and ``\+`` for a
    plus between blanks.

    Example:
        >>> f"text:{escape('a,b.en')},{escape('ab.de')}"
        'text:a\\,b.en,ab.de'
    """
    return re.sub(r"(?<!\S)\+(?!\S)", r"\+", str(path).replace(",", r"\,"))


def _open_bundled(rest: str, languages: tuple[str, str]) -> Opened:
    corpus, split = split_known("bundled", rest, ["en-de"])
    known = corpus.split("-")
    found = [find_language(language, known) for language in languages]
    for language, code in zip(languages, found, strict=True):
        if code is None:
            raise InputError(
                f"bundled:{rest} has no language {language!r}: it has"
                f" {' and '.join(known)}{did_you_mean(language, known)}"
            )
    source, target = (BUNDLED / corpus / f"{split}.{code}" for code in found)
    return functools.partial(_read_text, [source], [target]), ()


def _open_text(rest: str, languages: tuple[str, str]) -> Opened:
    del languages
    patterns = [
        _path(pattern.replace(r"\,", ",")) for pattern in re.split(r"(?<!\\),", rest)
    ]
    if len(patterns) != 2 or not all(patterns):
        raise InputError(
            rf"'text:{rest}' must name one source and one target file:"
            r" text:SOURCE,TARGET (a comma in a path: \,)"
        )
    sources, targets = expand_parallel(*patterns)
    return functools.partial(_read_text, sources, targets), (*sources, *targets)


def _path(text: str) -> str:
    """Strip a path or pattern and expand ``~``, as a shell does."""
    return os.path.expanduser(text.strip().replace(r" \+ ", " + "))


def _read_text(
    sources: Sequence[Path], targets: Sequence[Path], **options: bool
) -> Iterator[Pair]:
    return map(Pair._make, open_parallel(sources, targets, **options))


def _open_tsv(rest: str, languages: tuple[str, str]) -> Opened:
    del languages
    chosen = re.fullmatch(r"(.+)#(\d+),(\d+)", rest)
    pattern, source, target = (
        (chosen[1], int(chosen[2]), int(chosen[3])) if chosen else (rest, 1, 2)
    )
    if source == target or not (source and target):
        raise InputError(
            f"'tsv:{rest}' must name two columns, counted from 1: tsv:FILE#1,2"
        )
    paths = find_files(
        pattern, f"tsv:{rest}", "the columns are two numbers: tsv:FILE#1,2"
    )
    return functools.partial(_read_tsv, paths, source, target), tuple(paths)


def find_files(pattern: str, name: str, rule: str = "") -> list[Path]:
    """Find files; if a name with ``#`` matches none, the error has the rule of ``#``.

    Raises:
        InputError: nothing matches.
    """
    try:
        return expand(_path(pattern))
    except InputError as error:
        if "#" not in pattern or not rule:
            raise
        raise InputError(f"{error} ({name}: {rule})") from None


def _read_tsv(
    paths: Sequence[Path], source: int, target: int, *, strict: bool = True
) -> Iterator[Pair]:
    columns = str(source), str(target)
    for _, texts in read_columns(paths, columns, strict=strict):
        yield Pair(*texts)


def read_columns(
    paths: Sequence[Path], columns: Sequence[str], *, strict: bool = True
) -> Iterator[tuple[str, list[str]]]:
    """Yield the cells of these columns of each line of tables, after the name of the
    line.

    Args:
        paths: of the tables.
        columns: numbers from 1 on, or names in the first line.
        strict: as of :func:`jaxformer.data.files.open_lines`.

    Raises:
        InputError: a line has too few columns, or the first line no such name.
    """
    for path in paths:
        lines = enumerate(open_lines([path], strict=strict), 1)
        if all(column.isdecimal() for column in columns):
            numbers = [int(column) for column in columns]
        else:
            header = next(lines)[1].split("\t")
            numbers = [_find_column(column, header, path) for column in columns]
        for number, line in lines:
            place, cells = f"{path}, line {number}", line.split("\t")
            if len(cells) < max(numbers):
                raise InputError(
                    f"{place}: column {max(numbers)} of {len(cells)}: separate columns"
                    " with tabs, and remove empty lines"
                )
            yield place, [cells[each - 1] for each in numbers]


def _find_column(column: str, header: Sequence[str], path: Path) -> int:
    """Return the number of a column, from 1 on, that the first line names."""
    if column not in header:
        raise InputError(
            f"{path}, line 1: no column {column!r} among {', '.join(header)}"
            f"{did_you_mean(column, header)} (columns without names have numbers)"
        )
    return header.index(column) + 1


def _open_jsonl(rest: str, languages: tuple[str, str]) -> Opened:
    rule = "the fields are named by the languages, [en>fr] after the name"
    paths = find_files(rest, f"jsonl:{rest}", rule)
    return functools.partial(_read_jsonl, paths, languages), tuple(paths)


def _read_jsonl(paths: Sequence[Path], languages: tuple[str, str]) -> Iterator[Pair]:
    for record, place in read_records(paths):
        yield pair_of(record, languages, place)


def read_records(paths: Sequence[Path]) -> Iterator[tuple[object, str]]:
    """Yield the JSON value of each line of files, with the name of its line.

    Raises:
        InputError: a line is not JSON.
    """
    for path in paths:
        for number, line in enumerate(open_lines([path]), 1):
            place = f"{path}, line {number}"
            try:
                record = parse_json(line)
            except InputError as error:
                raise InputError(
                    f"{place}: not JSON ({error}); write one object a line"
                ) from None
            yield record, place


def _open_synthetic(rest: str, languages: tuple[str, str]) -> Opened:
    del languages
    task, split = split_known("synthetic", rest, list(_TASKS))
    return functools.partial(_TASKS[task], split), ()


def _open_tfds(rest: str, languages: tuple[str, str]) -> Opened:
    hub.open_tfds(rest)  # prepares it, and raises if something is missing
    return functools.partial(hub.read_tfds, rest, languages), ()


def _open_hf(rest: str, languages: tuple[str, str]) -> Opened:
    hub.split_hf(rest)
    return functools.partial(hub.read_hf, rest, languages), ()


def _open_sacrebleu(rest: str, languages: tuple[str, str]) -> Opened:
    sacrebleu_sets.find_direction(rest, languages)
    return functools.partial(sacrebleu_sets.read_sacrebleu, rest, languages), ()


def reversal(split: str) -> list[Pair]:
    """Return the reversal task: one to twelve letters, separated by spaces, to reverse.

    There are 20,000 pairs for ``train`` and 500 each for ``valid`` and ``test``; no
    sequence occurs twice. They are the same on every machine.

    With ``data.vocabulary_size=57``, the most that the text allows, each letter with
    its space is one token: 4 special pieces, 26 letters, the space, and the 26 joins of
    space and letter.

    Example:
        >>> reversal("test")[0]
        Pair(source='f d g k w w b r b o k', target='k o b r b w w k g d f')
    """
    return [
        Pair(" ".join(letters), " ".join(reversed(letters)))
        for letters in _sequences(split)
    ]


def copying(split: str) -> list[Pair]:
    """Return the copy task: the sequences of :func:`reversal`, to copy.

    Example:
        >>> copying("test")[0]
        Pair(source='f d g k w w b r b o k', target='f d g k w w b r b o k')
    """
    return [Pair(" ".join(letters), " ".join(letters)) for letters in _sequences(split)]


def _sequences(split: str) -> list[str]:
    start = sum(_SEQUENCES[earlier] for earlier in SPLITS[: SPLITS.index(split)])
    return _all_sequences()[start : start + _SEQUENCES[split]]


@functools.cache
def _all_sequences() -> list[str]:
    """Draw the distinct sequences of all splits, in an order that mixes lengths."""
    # Python only promises that Random.random stays the same over versions.
    draw = random.Random(2017).random
    drawn: dict[str, float] = {}
    while len(drawn) < sum(_SEQUENCES.values()):
        length = 1 + int(draw() * _LONGEST_SEQUENCE)
        letters = "".join(_LETTERS[int(draw() * len(_LETTERS))] for _ in range(length))
        # Short sequences run out early; a second draw spreads them over the splits.
        drawn.setdefault(letters, draw())
    return sorted(drawn, key=drawn.__getitem__)


def split_known(scheme: str, rest: str, sets: Sequence[str]) -> tuple[str, str]:
    """Split ``SET/SPLIT``.

    Raises:
        InputError: it is not a split of one of these sets.
    """
    known = [f"{scheme}:{name}/{split}" for name in sets for split in SPLITS]
    name = f"{scheme}:{rest}"
    if name not in known:
        raise InputError(
            f"no data set '{name}': there are {', '.join(known)}"
            f"{did_you_mean(name, known)}"
        )
    corpus, split = rest.split("/")
    return corpus, split


_TASKS = {"reverse": reversal, "copy": copying}
_OPENERS = {
    "bundled": _open_bundled,
    "text": _open_text,
    "tsv": _open_tsv,
    "jsonl": _open_jsonl,
    "synthetic": _open_synthetic,
    "tfds": _open_tfds,
    "hf": _open_hf,
    "sacrebleu": _open_sacrebleu,
}
SCHEMES = (
    *(*_OPENERS, "documents", "files", "python", "conll", "squad"),
    *("prepared",),
)
"""What names of data sets begin with; the last is only for training."""
