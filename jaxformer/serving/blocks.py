"""A block of text with the tags in it, and the same of its translation."""

from __future__ import annotations

import dataclasses
import html
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from jaxformer.serving.layout import space_between
from jaxformer.serving.placing import Element, link_words, order_tags, place
from jaxformer.translation.results import Alignment

_WORD = re.compile(r"\S+")


class TranslatedPart(NamedTuple):
    """The translation of a sentence of a block."""

    start: int
    """Where the sentence begins in the text of the block."""
    stop: int
    """Where it ends."""
    text: str
    """The translation."""
    alignment: Alignment | None = None
    """Of the translation to ``text[start:stop]``; None: words are linked in order."""


class BlockEntry(NamedTuple):
    """A piece of the source of a block."""

    kind: str
    """``text``, ``space``, ``open``, ``close`` or ``void``."""
    raw: str
    """As it is in the source."""
    text: str = ""
    """The character of the text; empty: none, as of a tag or a second space."""
    element: int = -1
    """The number of the element that the tag opens or closes."""


class Unit(NamedTuple):
    """A part of a word: marks before and after it, and what is between two tags."""

    start: int
    stop: int
    part: str
    """``before``, ``word`` or ``after``."""


class Link(NamedTuple):
    """A unit of a translation."""

    start: int
    stop: int
    unit: int | None
    """Number of the source unit that it translates; None: unknown."""
    copy: bool
    """Whether both are the same text."""


@dataclasses.dataclass
class Gap:
    """What is between two units.

    Attributes:
        tags: in order: whether it is a start tag, and the number of the element.
        raw: the source.
        space: whether the text has a space here.
    """

    tags: list[tuple[bool, int]] = dataclasses.field(default_factory=list)
    raw: list[str] = dataclasses.field(default_factory=list)
    space: bool = False


class Block:
    """A block of text, one or several sentences, with the tags in it.

    Attributes:
        text: on one line, without tags. Objects that are copied, such as ``code``, are
            private characters of Unicode, each another one.
        objects: the source of each object, by its character.
    """

    def __init__(self, entries: Sequence[BlockEntry], objects: dict[str, str]) -> None:
        """Read the entries, whose tags are balanced, and the source of each object."""
        characters = [entry for entry in entries if entry.text]
        self.text = "".join(entry.text for entry in characters)
        self._raw = [entry.raw for entry in characters]
        self.objects = objects
        breaks, length = set(), 0
        for entry in entries:
            length += bool(entry.text)
            if not entry.text:
                breaks.add(length)
        self._units = [
            unit
            for word in _WORD.finditer(self.text)
            for unit in divide_word(self.text, *word.span(), breaks)
        ]
        self._starts = [unit.start for unit in self._units]
        self._elements: list[Element] = []
        self._gaps = [Gap() for _ in range(len(self._units) + 1)]
        self._read_tags(entries)
        self._depths = [0] * len(self._units)
        depth = 0
        for number, gap in enumerate(self._gaps[:-1]):
            depth += sum(
                1 if opens else -1
                for opens, element in gap.tags
                if not self._elements[element].void
            )
            self._depths[number] = depth

    def _read_tags(self, entries: Sequence[BlockEntry]) -> None:
        """Find the elements, and what is between the units."""
        numbers: dict[int, int] = {}
        parents, length, spaced = [-1], 0, True
        for entry in entries:
            index = bisect_left(self._starts, length)
            length += bool(entry.text)
            if entry.kind == "text":
                spaced = False
                continue
            gap = self._gaps[index]
            if entry.kind == "close":
                parents.pop()
                number = numbers[entry.element]
                self._elements[number].last = index
                self._elements[number].end = entry.raw
                gap.tags.append((False, number))
            elif entry.kind != "space":
                number = len(self._elements)
                void = entry.kind == "void"
                self._elements.append(
                    Element(parents[-1], index, entry.raw, spaced, index, void=void)
                )
                gap.tags.append((True, number))
                if not void:
                    numbers[entry.element] = number
                    parents.append(number)
            spaced = spaced or entry.kind == "space"
            gap.raw.append(entry.raw)
            gap.space = gap.space or entry.text == " "

    def render(self, parts: Sequence[TranslatedPart]) -> str:
        """Return the source of the block with its sentences translated.

        Args:
            parts: the sentences in order; text between them is kept.
        """
        text, links = self._translate(parts)
        ranges = place(self._elements, [link.unit for link in links])
        tags = order_tags(self._elements, ranges, len(links))
        missing, pieces, stop = dict(self.objects), [], 0
        for number, link in enumerate(links):
            left = links[number - 1].unit if number else -1
            space = text[stop : link.start]
            pieces.append(self._write_gap(tags[number], space, left, link.unit, ranges))
            pieces += self._write(text, link, missing)
            stop = link.stop
        end = self._gaps[-1]
        same = links and end.tags == tags[-1]
        pieces += end.raw if same else [self._write_tags(tags[-1], "", ranges)]
        # Objects that a translation has lost.
        return "".join((*pieces, *(" " + raw for raw in missing.values())))

    def _translate(self, parts: Sequence[TranslatedPart]) -> tuple[str, list[Link]]:
        """Return the text of the translation, and its units."""
        text, stop, links = "", 0, []
        before: tuple[str, str] | None = None
        for part in self._complete(parts):
            own = self.text[part.start : part.stop], part.text.strip()
            if before and own[1]:
                text += space_between(self.text[stop : part.start], before, own)
            stop, offset = part.stop, len(text)
            text, before = text + own[1], own if own[1] else before
            links += [
                link._replace(start=link.start + offset, stop=link.stop + offset)
                for link in self._link(part._replace(text=own[1]))
            ]
        return text, links

    def _complete(self, parts: Sequence[TranslatedPart]) -> Iterator[TranslatedPart]:
        """Yield the parts, and text between them as a translation of itself."""
        stop = 0
        for part in (*parts, TranslatedPart(len(self.text), len(self.text), "")):
            between = self.text[stop : part.start]
            if between.strip():
                start = stop + len(between) - len(between.lstrip())
                yield TranslatedPart(start, start + len(between.strip()), between)
            if part.stop > part.start:
                yield part
            stop = part.stop

    def _link(self, part: TranslatedPart) -> Iterator[Link]:
        """Yield the units of the translation of a sentence."""
        sources = list(_WORD.finditer(self.text, part.start, part.stop))
        targets = list(_WORD.finditer(part.text))
        if not sources or not targets:
            return
        linked = link_words(
            part.alignment, [word[0] for word in sources], [word[0] for word in targets]
        )
        for number, word in zip(linked, targets, strict=True):
            source = None if number is None else sources[number]
            units = self._units_of(source)
            whole = units and source and self._starts[units[0]] == source.start()
            if whole and source and source[0] == word[0]:
                for unit in units:
                    begin, end, _ = self._units[unit]
                    shift = word.start() - source.start()
                    yield Link(begin + shift, end + shift, unit, copy=True)
                continue
            # The last mark of a sentence is that of the source, whatever the word.
            ends = self._units_of(sources[-1]) if word is targets[-1] else units
            for begin, end, kind in divide_word(part.text, *word.span(), ()):
                unit = self._find(ends if kind == "after" else units, kind)
                yield Link(begin, end, unit, copy=False)

    def _units_of(self, word: re.Match[str] | None) -> range:
        if word is None:
            return range(0)
        return range(
            bisect_left(self._starts, word.start()),
            bisect_left(self._starts, word.end()),
        )

    def _find(self, units: range, part: str) -> int | None:
        """Return the unit of a part of a word that is in the most elements."""
        own = [unit for unit in units if self._units[unit].part == part]
        if part == "word":
            own = own or list(units)
        return max(own, key=self._depths.__getitem__, default=None)

    def _write_gap(
        self,
        tags: list[tuple[bool, int]],
        space: str,
        left: int | None,
        right: int | None,
        ranges: Sequence[tuple[int, int]],
    ) -> str:
        """Return the tags and the space between two units.

        Between translations of neighbours it is the source, if that has the same tags.

        Args:
            tags: between them.
            space: between them.
            left: the source unit of the one on the left; -1: there is none.
            right: the source unit of the one on the right.
            ranges: of the elements.
        """
        index = 0 if left == -1 else right
        if index is not None and (left == -1 or left == index - 1):
            source = self._gaps[index]
            if source.tags == tags and source.space == bool(space):
                return "".join(source.raw)
        return self._write_tags(tags, space, ranges)

    def _write_tags(
        self,
        tags: Sequence[tuple[bool, int]],
        space: str,
        ranges: Sequence[tuple[int, int]],
    ) -> str:
        """Return tags with a space after the elements that end there."""
        empty = [ranges[element][0] == ranges[element][1] for _, element in tags]
        index = max(
            (
                number + 1
                for number, (opens, _) in enumerate(tags)
                if not opens and not empty[number]
            ),
            default=0,
        )
        while index < len(tags) and empty[index]:
            opens, element = tags[index]
            if opens and self._elements[element].spaced:
                break
            index += 1
        raw = [self._tag(*tag) for tag in tags]
        return "".join((*raw[:index], space, *raw[index:]))

    def _tag(self, opens: bool, element: int) -> str:
        return self._elements[element].start if opens else self._elements[element].end

    def _write(self, text: str, link: Link, missing: dict[str, str]) -> Iterator[str]:
        """Yield the source of the characters of a unit; a copy's is that of the unit
        which it copies.
        """
        start = 0 if link.unit is None else self._units[link.unit].start
        for number, character in enumerate(text[link.start : link.stop], start):
            if character in self.objects:
                yield missing.pop(character, "")
            elif link.copy and character != "<":
                yield self._raw[number]
            else:
                yield html.escape(character, quote=False)


def divide_word(
    text: str, start: int, stop: int, breaks: Collection[int]
) -> Iterator[Unit]:
    """Yield the units of a word.

    Args:
        text: with the word.
        start: of the word.
        stop: of the word.
        breaks: where tags are.
    """
    inner = [index for index in range(start, stop) if _is_content(text[index])]
    first, last = (inner[0], inner[-1] + 1) if inner else (start, stop)
    begin = start
    for end in range(start + 1, stop + 1):
        if end in (first, last, stop) or end in breaks:
            part = "before" if end <= first else "after" if begin >= last else "word"
            yield Unit(begin, end, part)
            begin = end


def _is_content(character: str) -> bool:
    """Return whether a character is of a word: a letter, a number, or an object."""
    return unicodedata.category(character)[0] in "LMNC"
