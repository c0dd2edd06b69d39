r"""Text with labels, numbers, tags or answers, by name.

A data set has a name of the form ``scheme:rest`` as in :mod:`jaxformer.data.sources`,
with the same patterns and compressions. ``data.kind`` chooses what a name means:

=============================== ================================================
name, of labelled and scored    data
=============================== ================================================
``tsv:FILE``                    text, tab, label; no quoting, no header
``tsv:FILE#4,2``                text in column 4, label in column 2; no header
``tsv:FILE#sentence1,sentence2,gold_label`` two texts and a label, in the columns that
                                the first line names
``jsonl:FILE``                  the fields ``text``, ``label`` and perhaps ``text2``;
                                others are named as columns are
``hf:NAME/SPLIT``, ``tfds:``    the same
``bundled:en-de/train``         of labelled text: lines, and the code of their language
=============================== ================================================

The label ``-``, as in SNLI, and -1 in records, as in test sets of the Hub, mean no
label: the example is dropped and counted.
Numbers of scored text are finite.

=============================== ================================================
name, of tagged and spans       data
=============================== ================================================
``conll:FILE``                  a word and its tag a line, in the first and the last
                                column; a blank line between sentences
``conll:FILE#1,4``              in columns 1 and 4
``squad:FILE.json``             JSON of SQuAD 1.1 or 2.0
=============================== ================================================

Columns are separated by tabs, or by blanks where a line has no tab; no-break and
other Unicode blanks are part of a word. Lines of ``-DOCSTART-`` are skipped. Tags of
IOB1 become IOB2: the first word of each entity has ``B-``.

Every example is a :class:`~jaxformer.data.records.Pair`:

- labelled, scored: the text, or two with a tab between them, and the label.
- tagged: words and tags, each joined by one blank.
- spans: the question, a tab and the text; and the characters where its answers begin
  and end (``12 17``), of all answers, or ``-1 -1`` where there is none.
"""

from __future__ import annotations

import functools
import math
import numbers
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxformer.data.files import open_lines
from jaxformer.data.records import Pair, read_field
from jaxformer.data.sources import Opened, find_files, read_columns, split_known
from jaxformer.data.texts import Records, open_records, read_languages, split_columns
from jaxformer.errors import InputError
from jaxformer.files import parse_json

_ENTITY_TAG = re.compile("([BIES])(?:-(.*))?")

NO_ANSWER = "-1 -1"
"""The places of a missing answer."""


def _open_languages(rest: str) -> Opened:
    split_known("bundled", rest, ["en-de"])
    return functools.partial(read_languages, rest, labelled=True), ()


def _open_labelled_records(scheme: str, kind: str, rest: str) -> Opened:
    records, columns, files = open_records(scheme, rest)
    _check_columns(f"{scheme}:{rest}", columns)
    return functools.partial(_read_labelled, records, columns, kind), files


def _read_labelled(
    records: Records,
    columns: Sequence[str],
    kind: str,
) -> Iterator[Pair]:
    for record, place in records():
        names = columns or ["text", "text2", "label"]
        if not columns and isinstance(record, Mapping) and "text2" not in record:
            names = ["text", "label"]
        texts = [read_field(record, name, place) for name in names[:-1]]
        label = _label(record, names[-1], place)
        if label == "-1" and kind == "labelled":  # of test sets of the Hub
            label = "-"
        yield _labelled(texts, label, kind, place)


def _label(record: object, name: str, place: str) -> str:
    """Return a label as text; numbers are labels too."""
    value = record.get(name) if isinstance(record, Mapping) else None
    if isinstance(value, numbers.Real):  # also of NumPy, as in TFDS
        return str(value)
    return read_field(record, name, place)


def _labelled(texts: Iterable[str], label: str, kind: str, place: str) -> Pair:
    label = label.strip()
    if kind == "scored":
        try:
            finite = math.isfinite(float(label))
        except ValueError:
            finite = False
        if not finite:
            raise InputError(
                f"{place}: {label!r} is no finite number: scored text needs one; mend"
                " or remove it, or set data.kind=labelled"
            )
    elif label == "-":
        label = ""
    return Pair("\t".join(text.replace("\t", " ") for text in texts), label)


def _check_columns(name: str, columns: Sequence[str]) -> None:
    if columns and len(columns) not in (2, 3):
        raise InputError(
            f"'{name}' must name a text, perhaps a second text, and a label after the"
            f" #, not {len(columns)} columns"
        )


def _open_tsv(kind: str, rest: str) -> Opened:
    pattern, columns = split_columns(rest)
    _check_columns(f"tsv:{rest}", columns)
    columns = columns or ["1", "2"]
    if "0" in columns:
        raise InputError(f"'tsv:{rest}' must count columns from 1: tsv:FILE#1,2")
    paths = find_files(pattern, f"tsv:{rest}", "columns follow the #: tsv:FILE#1,2")
    return functools.partial(_read_tsv, paths, columns, kind), tuple(paths)


def _read_tsv(
    paths: Sequence[Path], columns: Sequence[str], kind: str
) -> Iterator[Pair]:
    for place, (*texts, label) in read_columns(paths, columns):
        yield _labelled(texts, label, kind, place)


def _open_conll(rest: str) -> Opened:
    pattern, columns = split_columns(rest)
    if columns and not (
        len(columns) == 2
        and all(column.isdecimal() and int(column) for column in columns)
    ):
        raise InputError(
            f"'conll:{rest}' must name the columns of word and tag, counted from 1:"
            " conll:FILE#1,4"
        )
    word, tag = (int(column) - 1 for column in columns) if columns else (0, -1)
    paths = find_files(pattern, f"conll:{rest}", "columns follow the #")
    return functools.partial(_read_conll, paths, word, tag), tuple(paths)


def _read_conll(paths: Sequence[Path], word: int, tag: int) -> Iterator[Pair]:
    for path in paths:
        words: list[tuple[str, str]] = []
        for number, line in enumerate(open_lines([path]), 1):
            if not line.strip() or line.startswith("-DOCSTART-"):
                yield from _sentence(words)
                words = []
                continue
            cells = line.split("\t") if "\t" in line else find_words(line)
            if len(cells) < max(2, word + 1, tag + 1):
                raise InputError(
                    f"{path}, line {number}: {len(cells)} columns: a line has a word in"
                    f" column {word + 1} and its tag in the"
                    f" {f'{tag + 1}th' if tag >= 0 else 'last'}"
                )
            cell = cells[tag].strip()
            if not cell or not cells[word].strip():
                raise InputError(f"{path}, line {number}: an empty word or tag")
            words.append((_joined(cells[word]), _joined(cell)))
        yield from _sentence(words)


def find_words(text: str) -> list[str]:
    r"""Return the words of tagged text: blanks and tabs separate them, other Unicode
    blanks are part of a word.

    Example:
        >>> find_words("10\xa0000  euros")
        ['10\xa0000', 'euros']
    """
    return re.findall(r"[^ \t\r\n]+", text)


def _joined(cell: str) -> str:
    """Make a cell one word: blanks separate words."""
    return "\xa0".join(cell.split(" ")) if " " in cell.strip() else cell.strip()


def _sentence(words: Sequence[tuple[str, str]]) -> Iterator[Pair]:
    if words:
        text, tags = zip(*words, strict=True)
        yield Pair(" ".join(text), " ".join(begin_entities(tags)))


def begin_entities(tags: Sequence[str]) -> list[str]:
    """Return tags in IOB2, where every entity begins with ``B-``, of tags in IOB1 or
    IOB2. Other tags stay.

    Example:
        >>> begin_entities(["I-PER", "I-PER", "O", "I-LOC", "B-LOC"])
        ['B-PER', 'I-PER', 'O', 'B-LOC', 'B-LOC']
    """
    found, before = [], "O"
    for tag in tags:
        if tag.startswith("I-") and before[2:] != tag[2:]:
            tag = f"B-{tag[2:]}"
        found.append(tag)
        before = tag
    return found


def find_entities(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """Return the entities of tags in IOB1, IOB2 or IOBES: the label, the first word,
    and the first after it.

    As in ``get_entities`` of seqeval and in CoNLL-2003, ``I-`` and ``E-`` continue an
    entity of their label after ``B-`` and ``I-``, and begin one elsewhere. Tags without
    a label have the label ``_``. Tags of another form belong to no entity.

    Example:
        >>> find_entities(["B-PER", "I-PER", "O", "I-LOC", "B-LOC"])
        [('PER', 0, 2), ('LOC', 3, 4), ('LOC', 4, 5)]
    """
    found: list[tuple[str, int, int]] = []
    before = ""
    for place, tag in enumerate(tags):
        known = _ENTITY_TAG.fullmatch(tag)
        mark, label = (known[1], known[2] or "_") if known else ("", "")
        inside = mark in ("I", "E") and before in ("B", "I")
        if inside and found[-1][0] == label:
            found[-1] = (label, found[-1][1], place + 1)
        elif mark:
            found.append((label, place, place + 1))
        before = mark
    return found


def marks_entities(tags: Sequence[str]) -> bool:
    """Whether a set of tags marks entities: one has a label, such as ``B-PER``, or all
    are bare ones, such as ``B``, ``I`` and ``O``.
    """
    marks = [tag for tag in tags if _ENTITY_TAG.fullmatch(tag)]
    bare = len(marks) + ("O" in tags) == len(tags)
    return bool(marks) and (bare or any("-" in tag for tag in marks))


def _open_squad(rest: str) -> Opened:
    paths = find_files(rest, f"squad:{rest}")
    return functools.partial(_read_squad, paths), tuple(paths)


def _read_squad(paths: Sequence[Path]) -> Iterator[Pair]:
    for path in paths:
        place = str(path)
        try:
            content = parse_json("\n".join(open_lines([path])))
        except InputError as error:
            if place in str(error):
                raise
            raise InputError(f"{path}: not JSON ({error})") from None
        try:
            for article in content["data"]:
                for paragraph in article["paragraphs"]:
                    context = paragraph["context"]
                    for asked in paragraph["qas"]:
                        place = f"{path}, question {asked.get('id')!r}"
                        yield _question(asked, context, place)
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{place}: not the form of SQuAD ({error!r}): it needs data,"
                " paragraphs, context, qas, question and answers with text and"
                " answer_start"
            ) from None


def _question(asked: Any, context: str, place: str) -> Pair:
    spans = []
    for answer in asked["answers"]:
        start, text = int(answer["answer_start"]), answer["text"]
        if not text or context[start : start + len(text)] != text:
            raise InputError(
                f"{place}: the answer {text!r} is not at character {start} of its text:"
                " mend or remove it"
            )
        spans.append(f"{start} {start + len(text)}")
    # One character for another: places stay.
    question, context = (
        re.sub(r"[\t\r\n]", " ", text) for text in (asked["question"], context)
    )
    return Pair(f"{question}\t{context}", " ".join(spans) or NO_ANSWER)


def _of_kind(kind: str) -> dict[str, Callable[[str], Opened]]:
    found: dict[str, Callable[[str], Opened]] = {
        "tsv": functools.partial(_open_tsv, kind)
    }
    for scheme in ("jsonl", "tfds", "hf"):
        found[scheme] = functools.partial(_open_labelled_records, scheme, kind)
    return found


OPENERS: dict[str, dict[str, Callable[[str], Opened]]] = {
    "labelled": {"bundled": _open_languages, **_of_kind("labelled")},
    "scored": _of_kind("scored"),
    "tagged": {"conll": _open_conll},
    "spans": {"squad": _open_squad},
}
"""What opens the data sets of each kind, by the scheme of their names."""
