"""What programs put into texts comes back as it was: placeholders such as ``{name}``
and ``%1$s``, tags, URLs, e-mail addresses, the objects of HTML, and emoji and other
symbols that the model cannot write.

A model has rarely seen them and writes something else. So each is replaced by a mark, a
word that models copy and that the search is required to write. If no translation has
each mark once and the digits of the text, the text between the placeholders is
translated piece by piece.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise
from unicodedata import category

import numpy as np

from jaxformer.translation.paragraphs import UNSPACED, join_row
from jaxformer.translation.results import Alignment, Hypothesis

_SYMBOLS = r"\u20a0-\u20cf\u2190-\u2bff\u3030\u303d\u3297\u3299\U0001f000-\U0001faff"
# Signs that are within addresses, too: currencies, ©, fractions, † and •, № and ™.
_SIGNS = (
    rf"{_SYMBOLS}\xa2-\xa7\xa9\xac\xae\xb1\xb6\xbc-\xbe\xd7\xf7\u2020-\u2022\u2030"
    r"\u2100-\u218f"
)
_JOINERS = r"\ufe0e\ufe0f\u200d\u20e3\U000e0020-\U000e007f"
# What no address has: white space, quotes, symbols, and punctuation of other scripts.
_OUTSIDE = (
    rf"\s\x00-\x1f\x7f-\xa1\xab\xbb\xbf{_SYMBOLS}\u037e\u0589\u060c\u061b\u061f\u06d4"
    r"\u0964\u0965\u1361-\u1368\u2000-\u200b\u200e-\u206f\u2e00-\u2e7f\u3000-\u3004"
    r"\u3008-\u3020\ue000-\uf8ff\ufe00-\ufe6f\ufeff-\uffef\U000e0000-\U0010ffff"
)
_LABEL = rf"{_OUTSIDE}\x00-,./:-@\[-^`{{-~"  # what the label of a domain lacks
# After a path or a domain, letters of a script without spaces are text, and so are
# Korean particles.
_TEXT = rf"{_OUTSIDE}{UNSPACED}\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\uac00-\ud7ff"
_BARE = rf"{_TEXT}\"()<>\[\\\]^`{{|}}"  # what a URL has not, but for brackets
_INNER = rf"[^{_BARE}]*+"
_PUNCTUATION = r".,;:!?'"
_DASHES = r"\u2010-\u2015"
_LOCAL = rf"[^{_TEXT}\x00-*,/:-@\[-^`{{-~]"  # before the @ of an e-mail address
# Each alternative takes linear time on any text.
_PLACEHOLDER = re.compile(
    r"[\ue000-\uf8ff]"  # an object of HTML
    r"|(?:(?:https?|ftp)://|(?<![a-zA-Z0-9_])www\.)"
    # A domain of any script is known by its dots, or by the slash after it.
    r"(?:[a-zA-Z0-9-]++\.(?=[^\x00-\x7f]))?"
    rf"(?:(?=[a-zA-Z0-9-]*+[^\x00-\x7f])[^{_LABEL}]++(?:\.(?=[^{_LABEL}])|(?=/)))*+"
    rf"(?:[^{_BARE}{_PUNCTUATION}]++"
    rf"|[{_PUNCTUATION}{_DASHES}]++"
    rf"(?:(?=[a-zA-Z0-9_/~@#&$*+=%(-])|(?<!\.)(?=[^{_BARE}{_PUNCTUATION}]))"
    rf"|\({_INNER}\)|\[{_INNER}\]|\{{{_INNER}\}})++"
    rf"|(?<!{_LOCAL}){_LOCAL}++@"
    rf"(?:[^{_LABEL}]++(?:\.[a-zA-Z0-9-]+)*\.[a-zA-Z0-9]+"
    rf"|(?:[^{_LABEL}]++\.)+[^{_LABEL}{_TEXT}]++)"
    r"|\{\{[^{}]*\}\}|\{%[^{}]*\}"
    r"|[$#%@]?\{\s*+(?:[^\s{},]*+\s*+|\w++\s*+,[^{}]*+)\}"
    r"|%\(\w+\)[-+0#]*+\d*+(?:\.\d+)?[a-zA-Z]"
    r"|%(?:\d+\$)?[-+0#]*+\d*+(?:\.\d++)?"
    r"(?:hh?|ll?|[jzt])?[diouxXeEfFgGcrsn@](?![a-zA-Z])"
    r"|%L?\d{1,2}(?!\d)"
    r"|\[X\d+X\]"  # what Weblate puts in place of those that it knows
    # A tag; after a letter only with nothing or attributes in it: "a<b and c>d".
    r"|(?<!\w)</?[a-zA-Z][^<>]*>|</?[a-zA-Z][^\s<>]*(?:\s[^<>=]*+=[^<>]*+|\s*/?)>"
    r"|&(?:#\d+|#x[\da-fA-F]+|\w+);"
    rf"|(?P<symbols>[{_SIGNS}][{_SIGNS}{_JOINERS}]*+|[0-9#*]\ufe0f?\u20e3"
    r"|(?<![a-zA-Z\d#&])#(?![a-zA-Z\d#]))"
)
# An element's tag, which pairs with another.
_TAG = re.compile(r"<.*[^/]>", re.DOTALL)
# Marks with other letters and other digits are often mixed, as A1 and B2 to A12.
_MARKS = [f"F{number}" for number in range(1, 9)]
# A digit, and what a broken mark leaves of its letter.
_TRACE = re.compile(r"\d|(?<![A-Z])F(?![A-Za-z])|(?<![A-Za-z])F(?=[A-Z][a-z])")
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
        self.fragments = [text for _, text, is_copied in self._parts if not is_copied]
        self._placeholders = dict(zip(marks, pieces[1::2], strict=False))
        self.marks = list(marks)
        shown = map(str.__add__, pieces[::2], [*marks, ""])
        self.text = "".join(shown) if marks else ""
        self._around = _trace(" ".join(pieces[::2]))

    def hide(self, text: str) -> str:
        """Return another text with marks, such as the beginning of a translation."""
        for mark, placeholder in self._placeholders.items():
            text = text.replace(placeholder, mark, 1)
        return text

    def restore(
        self, found: Sequence[Hypothesis], given: Sequence[str] = ()
    ) -> list[Hypothesis]:
        """Return those translations of ``text`` that have each mark once, those of tags
        in their order, and no other digits than the text, with the placeholders in
        place of the marks.

        Args:
            found: the translations.
            given: phrases that they have to contain, with digits of their own.
        """
        return [
            dataclasses.replace(
                each,
                text=self.show(each.text),
                alignment=each.alignment and self._count(each.alignment, each.text),
            )
            for each in found
            if self._has_marks(each.text, given)
        ]

    def _has_marks(self, text: str, given: Sequence[str]) -> bool:
        pattern = _pattern(self.marks)
        found = pattern.findall(text)
        tags = [mark for mark in found if _TAG.fullmatch(self._placeholders[mark])]
        own, most = self._around, self._around + _trace(" ".join(given))
        return (
            sorted(found) == self.marks
            and tags == sorted(tags)
            and own <= _trace(pattern.sub(" ", text)) <= most
        )

    def show(self, text: str) -> str:
        """Return a text with placeholders in place of its marks."""
        return _pattern(self.marks).sub(lambda mark: self._placeholders[mark[0]], text)

    def _count(self, alignment: Alignment, text: str) -> Alignment:
        """Number the words as they are with the placeholders, which may be several."""

        def number(words: Sequence[int | None], shown: str) -> list[int | None]:
            lengths = [len(self.show(word).split()) for word in shown.split()]
            return [None if word is None else sum(lengths[:word]) for word in words]

        return dataclasses.replace(
            alignment,
            source_words=number(alignment.source_words, self.text),
            target_words=number(alignment.target_words, text),
        )

    def join(self, found: Sequence[Sequence[Hypothesis]]) -> list[Hypothesis]:
        """Return the translations of the sentence from those of its ``fragments``, the
        best with the best.
        """
        spaces, rows = [space for space, _, _ in self._parts], []
        for row in zip(*found, strict=False) if self.fragments else [()]:
            given = (dataclasses.replace(each, text=each.text.strip()) for each in row)
            parts = [
                _copy(text) if is_copied else next(given)
                for _, text, is_copied in self._parts
            ]
            rows.append(join_row(parts, spaces, lambda left, right, space: space))
        return rows


def _divide(pieces: Sequence[str]) -> Iterator[tuple[str, str, bool]]:
    """Yield the parts of the pieces, of which every second is a placeholder: white
    space, text, and whether it is copied, or else translated.
    """
    space, last = "", len(pieces) - 1
    for number, piece in enumerate(pieces):
        start = stop = 0
        if number % 2 == 0 and any(map(str.isalpha, piece)):
            # Vowel signs of Indic and other scripts are marks, not letters.
            words = [i for i, own in enumerate(piece) if category(own)[0] in "LMN"]
            start = words[0] * (number > 0)
            stop = len(piece) if number == last else words[-1] + 1
        parts = piece[:start], piece[start:stop], piece[stop:]
        for own, is_copied in zip(parts, (True, False, True), strict=True):
            if text := own.strip():
                before, _, after = own.partition(text)
                yield space + before, text, is_copied
                space = after
            else:
                space += own


def hide(
    text: str, writes: Callable[[str], bool] = bool, kept: str = ""
) -> Hidden | None:
    """Hide the placeholders of a sentence; None if it has none.

    Args:
        text: a sentence.
        writes: returns whether the model can write symbols, which are then no
            placeholders; by default all.
        kept: symbols that are placeholders anyway.

    Example:
        >>> hidden = hide("Delete {name}?")
        >>> hidden.text, hidden.marks, hidden.fragments
        ('Delete F1?', ['F1'], ['Delete'])
    """
    found = _PLACEHOLDER.finditer(text)
    spans = [
        x.span()
        for x in found
        if not (own := x["symbols"]) or own in kept or not writes(own)
    ]
    if not spans:
        return None
    bounds = pairwise([0, *chain(*spans), len(text)])
    pieces = [text[start:stop] for start, stop in bounds]
    free = [mark for mark in _MARKS if not _pattern([mark]).search(text)]
    count = len(spans)
    return Hidden(pieces, free[:count] if count <= min(len(free), _MOST) else [])


def _pattern(marks: Sequence[str]) -> re.Pattern[str]:
    """Return what finds marks, not within words or numbers. In scripts without spaces
    they may be next to a letter.
    """
    return re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(marks)})(?![A-Za-z0-9])")


def _trace(text: str) -> Counter[str | int]:
    """Count the digits of a text without marks, and letters that may be of a mark."""
    return Counter(own if own == "F" else int(own) for own in _TRACE.findall(text))


def _copy(text: str) -> Hypothesis:
    """Return a text as its own translation."""
    words = text.split()
    numbers: list[int | None] = [*range(len(words))]
    weights = np.eye(len(words), dtype=np.float32)
    alignment = Alignment(words, weights, numbers, numbers)
    zeros = [0.0] * len(words)
    return Hypothesis(text, 0.0, 0.0, words, True, alignment, zeros)
