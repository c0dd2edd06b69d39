"""What programs put into texts comes back as it was: placeholders such as ``{name}``
and ``%1$s``, tags, URLs, e-mail addresses, and the objects of HTML.

A model has rarely seen them and writes something else. So each is replaced by a mark, a
word that models copy and that the search is required to write. If a translation has not
each mark once, the text between the placeholders is translated piece by piece.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from jaxformer.translation.results import (
    Alignment,
    Hypothesis,
    concatenate,
    concatenate_hypotheses,
)

# Each alternative takes linear time on any text.
_PLACEHOLDER = re.compile(
    r"[\ue000-\uf8ff]"  # an object of HTML
    r"|(?:(?:https?|ftp)://|\bwww\.)[^\s<>\"]*[^\s<>\".,;:!?')\]}]"
    r"|(?<![\w.+-])[\w.+-]++@[\w-]+(?:\.[\w-]+)+"
    r"|\{\{[^{}]*\}\}"
    r"|[$#%@]?\{\s*+(?:[^\s{},]*+\s*+|\w++\s*+,[^{}]*+)\}"
    r"|%\(\w+\)[-+0#]*\d*(?:\.\d+)?[a-zA-Z]"
    r"|%(?:\d+\$)?[-+0#]*\d*(?:\.\d+)?(?:hh?|ll?|[jzt])?[diouxXeEfFgGcrs@](?![a-zA-Z])"
    r"|</?[a-zA-Z][^<>]*>"
    r"|&(?:#\d+|#x[\da-fA-F]+|\w+);"
)
# The first of these that is long enough without the words of a sentence. Letters alone
# leave no digits elsewhere in a translation, but a third one is often forgotten.
_MARKS = ["X", "Y"], ["A1", "B2", "C3", "D4", "E5", "F6"]
# A sentence with more placeholders is translated piece by piece at once.
_MOST = 4


class Hidden:
    """A sentence whose placeholders are hidden.

    Attributes:
        text: with a mark in place of each placeholder; empty: it has too many.
        marks: that a translation of ``text`` must have.
        fragments: the texts around the placeholders that have a letter, without the
            marks next to placeholders.
    """

    def __init__(self, pieces: Sequence[str], marks: Sequence[str]) -> None:
        """Hide placeholders.

        Args:
            pieces: of the sentence; every second one is a placeholder.
            marks: one for each placeholder, or none.
        """
        self._parts = list(_divide(pieces))
        self._placeholders = dict(zip(marks, pieces[1::2], strict=False))
        self.marks = list(marks)
        shown = list(pieces)
        shown[1::2] = marks or pieces[1::2]
        self.text = "".join(shown) if marks else ""
        self.fragments = [part.text for part in self._parts if part.translated]

    def hide(self, text: str) -> str:
        """Return another text with marks, such as the beginning of a translation."""
        for mark, placeholder in self._placeholders.items():
            text = text.replace(placeholder, mark, 1)
        return text

    def restore(self, found: Sequence[Hypothesis]) -> list[Hypothesis]:
        """Return those translations of ``text`` that have each mark once, with the
        placeholders in place of the marks.
        """
        return [
            dataclasses.replace(
                each,
                text=self._restore(each.text),
                alignment=each.alignment and self._count(each.alignment, each.text),
            )
            for each in found
            if all(len(_find(mark, each.text)) == 1 for mark in self.marks)
        ]

    def _restore(self, text: str) -> str:
        for mark, placeholder in self._placeholders.items():
            start, stop = _find(mark, text)[0]
            text = text[:start] + placeholder + text[stop:]
        return text

    def _count(self, alignment: Alignment, text: str) -> Alignment:
        """Number the words as they are with the placeholders, which may be several."""
        return dataclasses.replace(
            alignment,
            source_words=_renumber(alignment.source_words, self._starts(self.text)),
            target_words=_renumber(alignment.target_words, self._starts(text)),
        )

    def _starts(self, text: str) -> list[int]:
        """Return how many words are before each word of a text with marks."""
        starts = [0]
        for word in text.split():
            own = [mark for mark in self.marks if _find(mark, word)]
            more = (len(self._placeholders[mark].split()) - 1 for mark in own)
            starts.append(starts[-1] + 1 + sum(more))
        return starts

    def join(self, found: Sequence[Sequence[Hypothesis]]) -> list[Hypothesis]:
        """Return the translations of the sentence from those of its ``fragments``, the
        best with the best.
        """
        if not self.fragments:
            return [self._join(())]
        return [self._join(row) for row in zip(*found, strict=False)]

    def _join(self, row: Sequence[Hypothesis]) -> Hypothesis:
        given, every, alignments = iter(row), [], []
        source, target = "", ""
        for part in self._parts:
            each = next(given) if part.translated else _copy(part.text)
            text = each.text.strip() if part.translated else each.text
            if each.alignment is not None:
                first, own = _offset(source, part.text), _offset(target, text)
                alignments.append(_shift(each.alignment, first, own))
            source, target = source + part.text, target + text
            every.append(each)
        is_aligned = len(alignments) == len(every)
        whole = concatenate(alignments) if is_aligned else None
        return concatenate_hypotheses(every, target, whole)


class _Part(NamedTuple):
    """A part of a sentence."""

    text: str
    translated: bool
    """Whether it is translated, or else copied."""


def _divide(pieces: Sequence[str]) -> Iterator[_Part]:
    """Yield the parts of the pieces, of which every second is a placeholder."""
    last = len(pieces) - 1
    for number, piece in enumerate(pieces):
        if number % 2 or not any(map(str.isalpha, piece)):
            yield _Part(piece, translated=False)
            continue
        words = [place for place, own in enumerate(piece) if own.isalnum()]
        start, stop = words[0], words[-1] + 1
        if number == 0:
            start = len(piece) - len(piece.lstrip())
        if number == last:
            stop = len(piece.rstrip())
        yield _Part(piece[:start], translated=False)
        yield _Part(piece[start:stop], translated=True)
        yield _Part(piece[stop:], translated=False)


def hide(text: str) -> Hidden | None:
    """Hide the placeholders of a sentence; None if it has none.

    Example:
        >>> hidden = hide("Delete {name}?")
        >>> hidden.text, hidden.marks, hidden.fragments
        ('Delete X?', ['X'], ['Delete'])
    """
    pieces, stop = [], 0
    for found in _PLACEHOLDER.finditer(text):
        pieces += [text[stop : found.start()], found[0]]
        stop = found.end()
    if not pieces:
        return None
    pieces.append(text[stop:])
    count = len(pieces) // 2
    for marks in _MARKS:
        free = [mark for mark in marks if not _find(mark, text)]
        if count <= min(len(free), _MOST):
            return Hidden(pieces, free[:count])
    return Hidden(pieces, [])


def _find(mark: str, text: str) -> list[tuple[int, int]]:
    """Return where a mark is in a text, not within a word or number. In scripts without
    spaces it may be next to a letter.
    """
    found = re.finditer(rf"(?<![A-Za-z0-9]){mark}(?![A-Za-z0-9])", text)
    return [each.span() for each in found]


def _renumber(words: Sequence[int | None], starts: Sequence[int]) -> list[int | None]:
    last = max(0, len(starts) - 2)
    return [None if word is None else starts[min(word, last)] for word in words]


def _copy(text: str) -> Hypothesis:
    """Return a text as its own translation."""
    words = text.split()
    numbers: list[int | None] = [*range(len(words))]
    weights = np.eye(len(words), dtype=np.float32)
    alignment = Alignment(words, weights, numbers, [*numbers])
    zeros = [0.0] * len(words)
    return Hypothesis(text, 0.0, 0.0, words, True, alignment, zeros)


def _offset(before: str, text: str) -> int:
    """Return the number of the first word of a text after another; without white space
    between them it continues the last one.
    """
    continues = before and text and not (before[-1].isspace() or text[0].isspace())
    return len(before.split()) - bool(continues)


def _shift(alignment: Alignment, source: int, target: int) -> Alignment:
    def add(words: Sequence[int | None], first: int) -> list[int | None]:
        return [None if word is None else word + first for word in words]

    return dataclasses.replace(
        alignment,
        source_words=add(alignment.source_words, source),
        target_words=add(alignment.target_words, target),
    )
