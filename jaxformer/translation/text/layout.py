"""Cut a text into sentences, and put their translations in their places."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from jaxformer.translation.paragraphs import is_unspaced, spacing, split_sentences

# Characters that end a line, CRLF among them.
_LINE = re.compile(r"[^\n\r\x0b\x0c\x85\u2028\u2029]+")


class SentenceSpan(NamedTuple):
    """A sentence and where it is in its text: ``text[start:stop]``."""

    text: str
    start: int
    stop: int


class Layout:
    """The sentences of a text, and what is around them.

    Attributes:
        text: as it was given.
        pieces: its sentences, in order.
    """

    def __init__(self, text: str, lines: Sequence[Sequence[SentenceSpan]]) -> None:
        """Keep a text and the sentences of each of its lines."""
        self.text = text
        self._lines = lines
        self.pieces = [piece for line in lines for piece in line]

    def join(self, translations: Sequence[str]) -> str:
        """Return the text with each sentence replaced by its translation.

        White space at the ends of lines, and between sentences of one line, is that of
        the text. Only between a script with spaces and one without it changes, see
        :func:`~jaxformer.translation.paragraphs.spacing`.

        Args:
            translations: one for each of ``pieces``.

        Raises:
            ValueError: their number is another.
        """
        if len(translations) != len(self.pieces):
            raise ValueError(
                f"{len(translations)} translations of {len(self.pieces)} sentences"
            )
        given, stop, parts = iter(translations), 0, []
        for line in self._lines:
            previous: tuple[str, str] | None = None
            for number, piece in enumerate(line):
                own, gap = (piece.text, next(given)), self.text[stop : piece.start]
                if number and not gap.strip():
                    gap = (
                        space_between(gap, previous, own) if previous and own[1] else ""
                    )
                parts += [gap, own[1]]
                stop = piece.stop
                previous = own if own[1] else previous
        return "".join((*parts, self.text[stop:]))


def count_lines(text: str) -> int:
    """Return the number of lines with a letter or digit, each of a sentence or more."""
    return sum(any(map(str.isalnum, line)) for line in _LINE.findall(text))


def divide(
    text: str, language: str, *, split_newlines: bool = True, sentences: bool = True
) -> Layout:
    r"""Cut a text into sentences.

    A line or sentence without a letter or digit, such as ``* * *`` or an emoji, is
    layout.

    Args:
        text: of any number of lines.
        language: of the text, as a code, for its abbreviations.
        split_newlines: whether the end of a line ends a sentence; otherwise it is white
            space.
        sentences: whether to cut lines into sentences.

    Example:
        >>> layout = divide("  It rains. Why?\r\n\r\n- Yes", "en")
        >>> [piece.text for piece in layout.pieces]
        ['It rains.', 'Why?', '- Yes']
        >>> layout.join(["Es regnet.", "Warum?", "- Ja"])
        '  Es regnet. Warum?\r\n\r\n- Ja'
    """
    spans = [(0, len(text))]
    if split_newlines:
        spans = [line.span() for line in _LINE.finditer(text)]
    lines = [list(_pieces(text, *span, language, sentences)) for span in spans]
    return Layout(text, lines)


def _pieces(
    text: str, start: int, stop: int, language: str, sentences: bool
) -> Iterator[SentenceSpan]:
    """Yield the sentences of a line."""
    line = text[start:stop]
    place = start + len(line) - len(line.lstrip())
    parts = split_sentences(line, language) if sentences else [("", line.strip())]
    for space, part in parts:
        place += len(space)
        if any(character.isalnum() for character in part):
            yield SentenceSpan(part, place, place + len(part))
        place += len(part)


def space_between(gap: str, left: tuple[str, str], right: tuple[str, str]) -> str:
    """Return the white space between two translations, given that of the text.

    Args:
        gap: of the text.
        left: the sentence on the left and its translation.
        right: the sentence on the right and its translation.
    """
    ends = [text[-1] for text in left], [text[0] for text in right]
    if all(is_unspaced(source) == is_unspaced(target) for source, target in ends):
        return gap
    return spacing(left[1], right[1], gap)
