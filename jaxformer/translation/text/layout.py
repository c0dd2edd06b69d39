"""Cut a text into sentences, and put their translations in their places."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from jaxformer.translation.paragraphs import is_unspaced, spacing, split_sentences

# Characters that end a line, CRLF among them.
_LINE = re.compile(r"[^\n\r\x0b\x0c\x85\u2028\u2029]+")
_ANY = re.compile(r".+", re.DOTALL)
# ICU: "{count, plural, one {# file} other {# files}}".
_BRACE = re.compile(r"[{}]")
_BRANCH = r"\s*(?:=\d+|\w+)\s*\{"
_MESSAGE = re.compile(
    rf"\{{\s*\w+\s*,\s*(?:plural|select|selectordinal)\s*,(?:\s*offset:\d+)?{_BRANCH}"
)
_NEXT_BRANCH = re.compile(rf"\}}(?:{_BRANCH}|\s*\}})")


class SentenceSpan(NamedTuple):
    """A sentence and where it is in its text: ``text[start:stop]``."""

    text: str
    start: int
    stop: int


class Layout:
    r"""The sentences of a text, and what is around them.

    A line or sentence without a letter, such as ``* * *``, ``12:30`` or an emoji, is
    layout, and so is the syntax of ICU's messages around their branches.

    Attributes:
        text: as it was given.
        pieces: its sentences, in order.
        is_message: whether it is a message of ICU, in which ``#`` is a number.

    Example:
        >>> layout = Layout("  It rains. Why?\r\n\r\n- Yes", "en")
        >>> [piece.text for piece in layout.pieces]
        ['It rains.', 'Why?', '- Yes']
        >>> layout.join(["Es regnet.", "Warum?", "- Ja"])
        '  Es regnet. Warum?\r\n\r\n- Ja'
    """

    def __init__(
        self,
        text: str,
        language: str,
        *,
        split_newlines: bool = True,
        sentences: bool = True,
    ) -> None:
        """Cut a text into sentences.

        Args:
            text: of any number of lines.
            language: of the text, as a code, for its abbreviations.
            split_newlines: whether the end of a line ends a sentence; otherwise it is
                white space.
            sentences: whether to cut lines into sentences.
        """
        branches, lines = _branches(text), _LINE if split_newlines else _ANY
        self.text, self.is_message = text, len(branches) > 1
        self._lines = [
            [*_pieces(text, *line.span(), language, sentences)]
            for branch in branches
            for line in lines.finditer(text, *branch)
        ]
        self.pieces = [piece for line in self._lines for piece in line]

    def join(self, translations: Sequence[str]) -> str:
        """Return the text with each sentence replaced by its translation.

        Args:
            translations: one for each of ``pieces``.
        """
        return "".join(gap + text for gap, _, text in self.fill(translations))

    def fill(
        self, translations: Sequence[str]
    ) -> Iterator[tuple[str, SentenceSpan, str]]:
        """Yield what is before each sentence, the sentence, and its translation; then
        the end of the text, with what is before it.

        White space at the ends of lines, and between sentences of one line, is that of
        the text. Only between a script with spaces and one without it changes, see
        :func:`~jaxformer.translation.paragraphs.spacing`.
        """
        given, stop = iter(translations), 0
        for line in self._lines:
            left = "", ""
            for piece in line:
                own = piece.text, next(given).strip()
                gap, stop = self.text[stop : piece.start], piece.stop
                if piece is not line[0] and not gap.strip():
                    gap = _space_between(gap, left, own)
                yield gap, piece, own[1]
                left = own if own[1] else left
        yield self.text[stop:], SentenceSpan("", len(self.text), len(self.text)), ""


def _branches(text: str) -> list[tuple[int, int]]:
    """Return where text is that is no syntax of ICU's messages; all of it if a message
    is damaged.
    """
    spans, start, place = list[tuple[int, int]](), 0, 0
    open_: list[bool] = []  # whether each brace is that of a branch
    while brace := _BRACE.search(text, place):
        syntax, place = None, brace.end()
        if brace[0] == "{":
            syntax = _MESSAGE.match(text, brace.start())
            open_.append(syntax is not None)
        elif open_ and open_.pop():
            syntax = _NEXT_BRANCH.match(text, brace.start())
            if syntax is None:
                break
            open_ += [True] * syntax[0].endswith("{")
        if syntax:
            spans.append((start, brace.start()))
            start = place = syntax.end()
    return [(0, len(text))] if brace or True in open_ else [*spans, (start, len(text))]


def _pieces(
    text: str, start: int, stop: int, language: str, sentences: bool
) -> Iterator[SentenceSpan]:
    """Yield the sentences of a line."""
    line = text[start:stop]
    parts = split_sentences(line, language) if sentences else [("", line.strip())]
    place = start
    for _, part in parts:
        place = text.index(part, place)
        if any(map(str.isalpha, part)):
            yield SentenceSpan(part, place, place + len(part))
        place += len(part)


def _space_between(gap: str, left: tuple[str, str], right: tuple[str, str]) -> str:
    """Return the white space between two translations, given that of the text.

    Args:
        gap: of the text.
        left: the sentence on the left and its translation; empty: there is none.
        right: the sentence on the right and its translation.
    """
    ends = [text[-1:] for text in left], [text[:1] for text in right]
    same = all(is_unspaced(source) == is_unspaced(target) for source, target in ends)
    if same and left[1] and right[1]:
        return gap
    return spacing(left[1], right[1], gap)
