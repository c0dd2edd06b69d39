"""A block of text with the tags in it, and the same of its translation."""

from __future__ import annotations

import html
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from jaxformer.translation.results import Alignment
from jaxformer.translation.text.layout import space_between
from jaxformer.translation.text.placing import Element, Tags, link_words, place

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

    space: str
    """White space before it."""
    source: str
    """As it is written, with objects as characters; that of the source if it is the
    same text.
    """
    unit: int | None
    """Number of the source unit that it translates; None: unknown."""


class Gap(NamedTuple):
    """What is before a unit, and after the last one."""

    tags: Tags
    raw: list[str]
    """The source."""


class Block:
    """A block of text, one or several sentences, with the tags in it.

    Attributes:
        text: on one line, without tags. Objects that are copied, such as ``code``, are
            private characters of Unicode, each another one.
        objects: the source of each object, by its character.
    """

    def __init__(self, entries: Sequence[BlockEntry], objects: dict[str, str]) -> None:
        """Read the entries and the source of each object.

        Elements may begin in an earlier block or end in a later one.
        """
        self.text = "".join(entry.text for entry in entries).rstrip(" ")
        self.objects = objects
        kept = {"<": "&lt;", **dict(zip(objects, objects, strict=True))}
        self._raw = [kept.get(each.text, each.raw) for each in entries if each.text]
        stops = accumulate(bool(entry.text) for entry in entries)
        breaks = {
            stop for entry, stop in zip(entries, stops, strict=True) if not entry.text
        }
        self._units = [
            unit
            for word in _WORD.finditer(self.text)
            for unit in divide_word(self.text, *word.span(), breaks)
        ]
        self._starts = [unit.start for unit in self._units]
        self._depths: list[int] = []
        self._elements: list[Element] = []
        self._gaps = [Gap([], []) for _ in range(len(self._units) + 1)]
        self._read_tags(entries)

    def _read_tags(self, entries: Sequence[BlockEntry]) -> None:
        """Find the elements, and what is between the units."""
        opened = {entry.element for entry in entries if entry.kind == "open"}
        begun = [
            BlockEntry("open", "", element=entry.element)
            for entry in entries
            if entry.kind == "close" and entry.element not in opened
        ]
        numbers: dict[int, int] = {}
        parents, length, spaced = [-1], 0, True
        for entry in (*begun[::-1], *entries):
            unit = len(self._depths)
            gap = self._gaps[unit]
            if entry.kind == "text":
                if [length] == self._starts[unit : unit + 1]:
                    self._depths.append(len(parents))
                spaced = False
            elif entry.kind == "close":
                parents.pop()
                number = numbers[entry.element]
                self._elements[number].last = unit
                self._elements[number].end = entry.raw
                gap.tags.append((False, number))
            elif entry.kind != "space":
                number = numbers[entry.element] = len(self._elements)
                void = entry.kind == "void"
                self._elements.append(
                    Element(parents[-1], unit, unit, entry.raw, spaced, void)
                )
                gap.tags.append((True, number))
                if not void:
                    parents.append(number)
            else:
                spaced = True
            if entry.kind != "text":
                gap.raw.append(entry.raw)
            length += bool(entry.text)
        for number in parents[:0:-1]:
            self._elements[number].last = len(self._units)
            self._gaps[-1].tags.append((False, number))

    def render(self, parts: Sequence[TranslatedPart]) -> str:
        """Return the source of the block with its sentences translated.

        Args:
            parts: the sentences in order; text between them is kept.
        """
        links = list(self._translate(parts))
        ranges, tags = place(self._elements, [link.unit for link in links])
        empty = [start == stop for start, stop in ranges]
        missing, pieces = dict(self.objects), []
        left: int | None = -1
        for link, own in zip(links, tags, strict=False):
            pieces += self._write_gap(own, link, left, empty)
            pieces += (
                missing.pop(each, "") if each in self.objects else each
                for each in link.source
            )
            left = link.unit
        end = self._gaps[-1]
        if links and end.tags == tags[-1]:
            pieces += end.raw
        else:
            pieces.append(self._write_tags(tags[-1], "", empty))
        # Objects that a translation has lost.
        return "".join((*pieces, *(" " + raw for raw in missing.values())))

    def _translate(self, parts: Sequence[TranslatedPart]) -> Iterator[Link]:
        """Yield the units of the translation."""
        stop = 0
        before: tuple[str, str] | None = None
        for part in self._complete(parts):
            own = self.text[part.start : part.stop], part.text.strip()
            if own[1]:
                space = self.text[stop : part.start]
                space = space_between(space, before, own) if before else ""
                yield from self._link(part._replace(text=own[1]), space)
                before = own
            stop = part.stop

    def _complete(self, parts: Sequence[TranslatedPart]) -> Iterator[TranslatedPart]:
        """Yield the parts, and words between them as translations of themselves."""
        stop = 0
        for part in (*parts, TranslatedPart(len(self.text), len(self.text), "")):
            for word in _WORD.finditer(self.text, stop, part.start):
                yield TranslatedPart(*word.span(), word[0])
            yield part
            stop = part.stop

    def _link(self, part: TranslatedPart, space: str) -> Iterator[Link]:
        """Yield the units of the translation of a sentence, after white space."""
        sources = list(_WORD.finditer(self.text, part.start, part.stop))
        targets = list(_WORD.finditer(part.text))
        if not sources:
            return
        words = [[word[0] for word in side] for side in (sources, targets)]
        links, stop = link_words(part.alignment, *words), 0
        for number, word in zip(links, targets, strict=True):
            source, text = None if number is None else sources[number], word[0]
            units = self._units_of(source)
            space += part.text[stop : word.start()]
            stop = word.end()
            first = self._starts[units.start : units.stop][:1]
            if source and source[0] == text and first == [source.start()]:
                own = [
                    ("".join(self._raw[slice(*self._units[unit][:2])]), unit)
                    for unit in units
                ]
            else:
                # The last mark of a sentence is that of the source, whatever the word.
                ends = self._units_of(sources[-1]) if word is targets[-1] else units
                own = [
                    (
                        html.escape(text[begin:end], quote=False),
                        self._find(ends if kind == "after" else units, kind),
                    )
                    for begin, end, kind in divide_word(text, 0, len(text), ())
                ]
            for written, unit in own:
                yield Link(space, written, unit)
                space = ""

    def _units_of(self, word: re.Match[str] | None) -> range:
        bounds = word.span() if word else (0, 0)
        return range(*(bisect_left(self._starts, place) for place in bounds))

    def _find(self, units: range, part: str) -> int | None:
        """Return the unit of a part of a word that is in the most elements."""
        own = [unit for unit in units if self._units[unit].part == part]
        if part == "word":
            own = own or list(units)
        return max(own, key=self._depths.__getitem__, default=None)

    def _write_gap(
        self, tags: Tags, link: Link, left: int | None, empty: Sequence[bool]
    ) -> list[str]:
        """Return the tags and the space before a unit of a translation.

        Between translations of neighbours it is the source, if that has the same tags.

        Args:
            tags: before the unit.
            link: the unit.
            left: the source unit of the one before it; -1: there is none.
            empty: whether each element has no text.
        """
        index = 0 if left == -1 else link.unit
        if index is not None and left in (-1, index - 1):
            source, start = self._gaps[index], self._starts[index]
            is_spaced = index > 0 and self._units[index - 1].stop < start
            if source.tags == tags and is_spaced == bool(link.space):
                return source.raw
        return [self._write_tags(tags, link.space, empty)]

    def _write_tags(self, tags: Tags, space: str, empty: Sequence[bool]) -> str:
        """Return tags with a space after the elements that end there."""
        index = 0
        for number, (opens, element) in enumerate(tags, start=1):
            if not opens and not empty[element]:
                index = number
        for opens, element in tags[index:]:
            if not empty[element] or (opens and self._elements[element].spaced):
                break
            index += 1
        raw = [
            self._elements[element].start if opens else self._elements[element].end
            for opens, element in tags
        ]
        return "".join((*raw[:index], space, *raw[index:]))


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
