"""HTML to plain text, and its translation back to HTML: each element is put around the
words of the translation that belong to its own.

Tags are found by one regular expression in linear time: ``html.parser`` of Python 3.11
takes 23 s for 20 kB of ``<a "``.
"""

from __future__ import annotations

import dataclasses
import html
import re
import unicodedata
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple, TypeAlias

import numpy as np

from jaxformer.translation.results import Alignment


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Elements that end a sentence. All others, unknown ones too, are within one.
_BLOCKS = _names(
    "address article aside audio blockquote body br button canvas caption center col"
    " colgroup dd details dialog div dl dt fieldset figcaption figure footer form frame"
    " frameset h1 h2 h3 h4 h5 h6 head header hgroup hr html iframe legend li link main"
    " menu meta nav noembed noframes noscript object ol optgroup option p param picture"
    " plaintext pre search section select source summary table tbody td template"
    " textarea tfoot th thead title tr track ul video xmp"
)
_VOID = _names(
    "area base br col embed frame hr img input link meta param source track wbr"
)
# Copied untranslated, as a word of the sentence.
_COPIED = _names("acronym code dir kbd math samp svg var")
# Their content has no tags; it is kept.
_RAW = _names("script style xmp iframe noembed noframes plaintext")
# Line breaks in these end a sentence.
_LINES = _names("pre textarea")
_DEPTH = {"start": 1, "end": -1}

# The first of the characters that represent objects in a text.
_OBJECT = 0xE000
# Characters without width, which split words of a vocabulary.
_INVISIBLE = "\u200b\u00ad\ufeff"
# A character reference, white space, or another character.
_PIECE = re.compile(
    r"&(?:#[0-9]{1,8}|#[xX][0-9a-fA-F]{1,8}|[a-zA-Z]\w{0,31});?|\s+|.", re.DOTALL
)
_TOKEN = re.compile(
    r"<!--(?:>|->|.*?(?:--!?>|\Z))"
    r"|<!\[CDATA\[.*?(?:\]\]>|\Z)"
    r"|<(?:[!?]|/(?![a-z]))[^>]*+(?:>|\Z)"
    r"|<(?P<end>/?)(?P<name>[a-z][^\s/>]*+)"
    r"(?P<attributes>(?:[^>=]++|=\s*+(?:\"[^\"]*+\"|'[^']*+')?+)*+)(?P<whole>>?)",
    re.DOTALL | re.IGNORECASE,
)
# A slash at the end, which is not of a value without quotes.
_EMPTY = re.compile(r"(?<!=)(?:^|[\s\"']|\s[^\s=\"']+)/$")
_KEEP = re.compile(
    r"\btranslate\s*=\s*[\"']?no\b|\bclass\s*=\s*(?:[\"'][^\"']*)?\bnotranslate\b",
    re.IGNORECASE,
)
_WORD = re.compile(r"\S+")
_WORDS = re.compile(r"\S(?:.*\S)?")
# Elements deeper than that are not moved: each level takes time.
_DEEPEST = 100
# Of attention that is divided by.
_TINY = np.float32(1e-9)


class Token(NamedTuple):
    """A piece of HTML; the ``raw`` of all are the whole of it."""

    raw: str
    kind: str
    """``text``, ``start``, ``end``, ``kept`` (an element that is not translated), or
    ``void`` (a tag without content, a comment, a declaration, a script).
    """
    name: str = ""
    block: bool = False
    """Whether it ends a sentence."""
    keep: bool = False
    """Whether its element is not translated."""


class SourcePiece(NamedTuple):
    """A piece of the source of a block."""

    raw: str
    text: str = ""
    """The character of the text; empty: none, as of a tag or a second space."""
    tag: Token | None = None


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
    gap: str = ""
    """What is before it: white space, and text that is not translated."""


class Html:
    """HTML, a document or a part of one, whose blocks of text are translated and put
    back. Everything but the text of the blocks is kept byte for byte.

    An element of the HTML standard that forms a paragraph, row, item and the like ends
    a sentence, and so does ``br``. All other elements are within a sentence. ``code``,
    ``kbd``, ``samp``, ``var``, ``dir``, ``acronym``, ``math``, ``svg``, an empty ``x``,
    and elements with ``translate="no"`` or the class ``notranslate`` are copied.
    Attributes are not translated. Any string is accepted; a tag that does not end is
    text, and an end tag that closes nothing stays where it is.

    Attributes:
        blocks: the texts to translate, each of at least one letter.

    Example:
        >>> page = Html('<p>A <b>new</b> table</p>')
        >>> [block.text for block in page.blocks]
        ['A new table']
        >>> page.render([[TranslatedPart(0, 11, "Eine neue Tabelle")]])
        '<p>Eine <b>neue</b> Tabelle</p>'
    """

    def __init__(self, source: str, tags: Mapping[str, str] | None = None) -> None:
        """Find the text to translate.

        Args:
            source: the HTML.
            tags: other rules for elements by their names in lower case: ``block``,
                ``inline`` or ``keep``; the name ``*`` is of all others.
        """
        self.blocks: list[Block] = []
        self._kept = [""]
        self._begin_block()
        lines = 0
        for token in _join_kept(tokenize(source, tags or {})):
            if token.kind == "text":
                parts = re.split(r"([\r\n]+)", token.raw) if lines > 0 else [token.raw]
                for number, part in enumerate(parts):
                    self._end_block(part) if number % 2 else self._add_text(part)
            elif token.block:
                if token.name in _LINES:
                    lines += _DEPTH.get(token.kind, 0)
                self._end_block(token.raw)
            elif token.kind == "kept":
                self._add_object(token.raw)
            else:
                last = self._entries[-1].tag if self._entries else None
                if token.kind == "start" and last and last.kind == "end":
                    self._add_space("")  # two links are two words
                self._entries.append(SourcePiece(token.raw, tag=token))
        self._end_block("")

    def render(self, translations: Sequence[Sequence[TranslatedPart]]) -> str:
        """Return the HTML with the blocks translated.

        Args:
            translations: the sentences of each block in order, with their spans of its
                text. Text outside of the spans is kept.
        """
        pairs = zip(self.blocks, translations, strict=True)
        rendered = [block.render(parts) for block, parts in pairs]
        pieces = zip(self._kept, [*rendered, ""], strict=True)
        return "".join(text for pair in pieces for text in pair)

    def _begin_block(self) -> None:
        self._entries: list[SourcePiece] = []
        self._objects: dict[str, str] = {}
        self._spaced = True

    def _end_block(self, raw: str) -> None:
        """End a block before ``raw``, which is kept; without a letter it is no block,
        and all of it is kept.
        """
        entries = self._entries
        if any(entry.text.isalpha() for entry in entries):
            inner = [n for n, own in enumerate(entries) if own.tag or own.text.strip()]
            first, last = inner[0], inner[-1] + 1
            self._keep(entries[:first])
            self.blocks.append(Block(entries[first:last], self._objects))
            self._kept.append("")
            entries = entries[last:]
        self._keep([*entries, SourcePiece(raw)])
        self._begin_block()

    def _keep(self, entries: Sequence[SourcePiece]) -> None:
        self._kept[-1] += "".join(entry.raw for entry in entries)

    def _add_text(self, raw: str) -> None:
        """Add source text; a run of white space is one space."""
        for piece in _PIECE.findall(raw):
            text = html.unescape(piece) if piece[0] == "&" else piece
            if text.isspace():
                self._add_space(piece)
            elif text in _INVISIBLE:
                self._entries.append(SourcePiece(piece))
            elif unicodedata.category(text[0]) == "Co":
                self._add_object(piece)
            else:
                self._spaced = False
                self._entries += [
                    SourcePiece("" if number else piece, character)
                    for number, character in enumerate(text)
                ]

    def _add_space(self, raw: str) -> None:
        self._entries.append(SourcePiece(raw, "" if self._spaced else " "))
        self._spaced = True

    def _add_object(self, raw: str) -> None:
        """Add source that is copied, a character of the text."""
        character = chr(_OBJECT + len(self._objects))
        if unicodedata.category(character) != "Co":  # there are too many
            self._entries.append(SourcePiece(raw, tag=Token(raw, "void")))
            return
        self._objects[character] = raw
        self._entries.append(SourcePiece(raw, character))
        self._spaced = False


def tokenize(source: str, tags: Mapping[str, str]) -> Iterator[Token]:
    """Split HTML at its tags, comments and declarations, in linear time."""
    place = 0
    while found := _TOKEN.search(source, place):
        name = (found["name"] or "").lower()
        if name and not found["whole"]:
            break  # no later tag is certain to end, and none is looked for
        if found.start() > place:
            yield Token(source[place : found.start()], "text")
        place, attributes = found.end(), found["attributes"] or ""
        rule = tags.get(name, tags.get("*")) if name else None
        block = rule == "block" or (rule != "inline" and name in _BLOCKS)
        is_void = not name or name in _VOID or _EMPTY.search(attributes)
        kind = "end" if found["end"] else "void" if is_void else "start"
        # An empty x is what XLIFF and programs put in place of something.
        keep = rule == "keep" or name in _COPIED or _KEEP.search(attributes)
        keep = keep or (name == "x" and (is_void or source.startswith("</x>", place)))
        if kind == "start" and name in _RAW:
            end = re.compile(rf"</{re.escape(name)}(?=[\s/>])[^>]*+>", re.IGNORECASE)
            last, kind = end.search(source, place), "void"
            place = last.end() if last else len(source)
        keep = bool(keep) and kind != "end"
        yield Token(source[found.start() : place], kind, name, block, keep)
    if place < len(source):
        yield Token(source[place:], "text")


def _join_kept(tokens: Iterator[Token]) -> Iterator[Token]:
    """Join the tokens of each element that is not translated to one, ``kept``."""
    for token in tokens:
        if not token.keep:
            yield token
            continue
        parts, depth = [token.raw], int(token.kind == "start")
        while depth and (own := next(tokens, None)):
            parts.append(own.raw)
            if own.name == token.name:
                depth += _DEPTH.get(own.kind, 0)
        yield token._replace(raw="".join(parts), kind="kept")


Tags: TypeAlias = list[tuple[bool, int]]
"""Tags in order: whether each is a start tag, and the number of its element."""


@dataclasses.dataclass
class Element:
    """An element within a block, or a tag that has no other.

    Attributes:
        parent: number of the element around it. Parents come first.
        first: number of the first unit of text in it.
        start: source of its start tag, or of all of it.
        end: source of its end tag; None: it has no content.
    """

    parent: int
    first: int
    start: str
    end: str | None = None


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


class Block:
    """A block of text, one or several sentences, with the tags in it.

    Attributes:
        text: on one line, without tags. Objects that are copied, such as ``code``, are
            private characters of Unicode, each another one.
        objects: the source of each object, by its character.
    """

    def __init__(self, entries: Sequence[SourcePiece], objects: dict[str, str]) -> None:
        """Read the entries and the source of each object."""
        self.text = "".join(entry.text for entry in entries).rstrip(" ")
        self.objects = objects
        shown = {"<": "&lt;", **dict(zip(objects, objects, strict=True))}
        self._raw = [shown.get(each.text, each.raw) for each in entries if each.text]
        places = [0, *accumulate(len(entry.text) for entry in entries)]
        pairs = list(zip(places, entries, strict=False))
        breaks = {at for at, entry in pairs if not entry.text}
        self._units = [
            unit
            for word in _WORD.finditer(self.text)
            for unit in divide_word(self.text, *word.span(), breaks)
        ]
        self._starts = [unit.start for unit in self._units]
        # Of each unit its innermost element; the source, the tags and whether there is
        # white space before each unit and at the end.
        self._owners: list[int] = []
        self._elements = [Element(0, 0, "", "")]  # the block itself
        self._gaps: list[tuple[list[str], Tags, list[bool]]] = [
            ([], [], []) for _ in range(len(self._units) + 1)
        ]
        begun = [("", 0)]  # names and numbers of those that are open
        for at, entry in pairs:
            unit, tag = bisect_left(self._starts, at), entry.tag
            if entry.text.strip():
                if self._starts[unit : unit + 1] == [at]:
                    self._owners.append(begun[-1][1])
                continue
            raw, tags, spaces = self._gaps[unit]
            raw.append(entry.raw)
            spaces += [True] * (entry.text == " ")
            if tag and tag.kind == "end" and any(tag.name == own for own, _ in begun):
                # Those in it that have no end tag have no content.
                while begun[-1][0] != tag.name:
                    begun.pop()
                number = begun.pop()[1]
                self._elements[number].end = entry.raw
                tags.append((False, number))
            elif tag:
                number = len(self._elements)
                self._elements.append(Element(begun[-1][1], unit, entry.raw))
                tags.append((True, number))
                if tag.kind == "start" and len(begun) <= _DEEPEST:
                    begun.append((tag.name, number))

        def closed(number: int) -> int:
            """Return the innermost of an element and those around it with content."""
            element = self._elements[number]
            return element.parent if element.end is None else number

        for element in self._elements:  # parents first
            element.parent = closed(element.parent)
        self._owners = [*map(closed, self._owners)]

    def render(self, parts: Sequence[TranslatedPart]) -> str:
        """Return the source of the block with its sentences translated.

        Args:
            parts: the sentences in order; text between them is kept.
        """
        links = [*self._translate(parts), Link("", "", None)]  # the last: the end
        tags = place(self._elements, self._owners, [link.unit for link in links[:-1]])
        missing, pieces = dict(self.objects), list[str]()
        left: int | None = None
        for own, link in zip(tags, links, strict=True):
            gap, is_end = None, own is tags[-1]
            if is_end or own is tags[0]:
                gap = self._gaps[-is_end]
            elif link.unit is not None and left == link.unit - 1:
                gap = self._gaps[link.unit]
            # Between translations of neighbours the source stays, if it has these tags.
            same = (
                gap and gap[1] == own and (is_end or bool(gap[2]) == bool(link.space))
            )
            pieces += gap[0] if gap and same else [self._write_tags(own, link.space)]
            pieces += (
                missing.pop(each, "") if each in self.objects else each
                for each in link.source
            )
            left = link.unit
        # Objects that a translation has lost.
        return "".join((*pieces, *(" " + raw for raw in missing.values())))

    def _translate(self, parts: Sequence[TranslatedPart]) -> Iterator[Link]:
        """Yield the units of the translation; words between the parts are their own
        translation.
        """
        stop, size = parts[-1].stop if parts else 0, len(self.text)
        for part in (*parts, TranslatedPart(size, size, "", gap=self.text[stop:])):
            space = part.gap
            if words := _WORDS.search(space):
                start = part.start - len(space) + words.start()
                own = TranslatedPart(start, start + len(words[0]), words[0])
                yield from self._link(own, space[: words.start()])
                space = space[words.end() :]
            yield from self._link(part, space)

    def _link(self, part: TranslatedPart, space: str) -> Iterator[Link]:
        """Yield the units of the translation of a sentence, after white space."""
        sources = list(_WORD.finditer(self.text, part.start, part.stop))
        targets = list(_WORD.finditer(part.text))
        words = [[word[0] for word in side] for side in (sources, targets)]
        links, stop = link_words(part.alignment, *words), 0
        for number, word in zip(links, targets, strict=True):
            source, text = None if number is None else sources[number], word[0]
            units = self._units_of(source)
            if source and source[0] == text:
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
            space += part.text[stop : word.start()]
            stop = word.end()
            for written, unit in own:
                yield Link(space, written, unit)
                space = ""

    def _units_of(self, word: re.Match[str] | None) -> range:
        bounds = word.span() if word else (0, 0)
        return range(*(bisect_left(self._starts, place) for place in bounds))

    def _find(self, units: range, part: str) -> int | None:
        """Return the unit of a part of a word that is in the innermost element."""
        own = [unit for unit in units if self._units[unit].part == part]
        own = own or (list(units) if part == "word" else [])
        return max(own, key=self._owners.__getitem__, default=None)

    def _write_tags(self, tags: Tags, space: str) -> str:
        """Return tags with a space after the elements with text that end there."""
        begun = {  # an end tag may be that of an element before the block
            number
            for opens, number in tags
            if opens and not self._elements[number].start.startswith("</")
        }
        index, raw = 0, list[str]()
        for opens, number in tags:
            element = self._elements[number]
            raw.append(element.start if opens else element.end or "")
            if number not in begun:
                index = len(raw)
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
    # Of a word are letters, numbers and objects.
    inner = [
        n for n in range(start, stop) if unicodedata.category(text[n])[0] in "LMNC"
    ]
    first, last = (inner[0], inner[-1] + 1) if inner else (start, stop)
    begin = start
    for end in range(start + 1, stop + 1):
        if end in (first, last, stop) or end in breaks:
            part = "before" if end <= first else "after" if begin >= last else "word"
            yield Unit(begin, end, part)
            begin = end


def place(
    elements: Sequence[Element], owners: Sequence[int], links: Sequence[int | None]
) -> list[Tags]:
    """Return the tags before each unit of a translation and after the last.

    An element contains those units of its parent that are linked to its own, from the
    first to the last of them but for outliers. Siblings do not overlap. An element
    without linked units is empty, after the unit that is linked to the one before it.

    Args:
        elements: of a block, which is the first.
        owners: the innermost element of each source unit.
        links: for each unit of the translation the source unit; None: none.
    """
    children: list[list[int]] = [[] for _ in elements]
    for number, element in enumerate(elements[1:], start=1):
        children[element.parent].append(number)
    # How many units before each have a link; those that are linked to each element.
    linked = [0, *accumulate(link is not None for link in links)]
    members: list[list[int]] = [[] for _ in elements]
    for unit, link in enumerate(links):
        number = 0 if link is None else owners[link]
        while number:
            members[number].append(unit)
            number = elements[number].parent
    tags: list[Tags] = [[] for _ in linked]

    def fill(parent: int, start: int, stop: int) -> None:
        """Place the children of an element that contains a range of units."""
        runs, spans, latest = [], dict[int, tuple[int, int]](), start
        for child in children[parent]:
            if own := [unit for unit in members[child] if start <= unit < stop]:
                runs.append((*densest(own, linked), child))
        # Runs never cross: one that begins within another is all in it, and left out.
        for begin, end, child in sorted(runs):
            if begin >= latest:
                spans[child], latest = (begin, end), end
        begins, stops = zip((-1, start), *sorted(spans.values()), strict=True)
        last = {links[unit]: unit for unit in range(start, stop)}
        sources = sorted(link for link in last if link is not None)
        for child in children[parent]:
            if child not in spans:
                before = bisect_left(sources, elements[child].first)
                at = last[sources[before - 1]] + 1 if before else start
                at = stop if elements[child].first == len(owners) else at
                at = max(at, stops[bisect_left(begins, at) - 1])  # not within another
                spans[child] = at, at
        for child in sorted(children[parent], key=lambda own: (*spans[own], own)):
            begin, end = spans[child]
            tags[begin].append((True, child))
            if elements[child].end is not None:
                fill(child, begin, end)
                tags[end].append((False, child))

    fill(0, 0, len(links))
    return tags


def densest(units: Sequence[int], linked: Sequence[int]) -> tuple[int, int]:
    """Return the range of an element's units that contains the most of them, less those
    linked to other text.

    Args:
        units: that are linked to the element, ascending.
        linked: how many units before each have a link.
    """
    best, best_score, score, begin = (units[0], units[0] + 1), 1, 1, units[0]
    for before, unit in pairwise(units):
        others = linked[unit] - linked[before] - 1
        score, begin = (1, unit) if score <= others else (score + 1 - others, begin)
        if score > best_score:
            best, best_score = (begin, unit + 1), score
    return best


def link_words(
    alignment: Alignment | None, sources: Sequence[str], targets: Sequence[str]
) -> list[int | None]:
    """Return the number of the source word that each word of a translation belongs to;
    None for a word that has none.

    A word that each side has once belongs to itself. Another one belongs to the source
    word with the most attention, divided by the square root of what all words give it:
    else a word that many attend to takes those of its neighbours. A word that attends
    more to the end of the source than to any word, such as "Sie" in German imperatives,
    belongs only to a source word that no other word belongs to. Without an alignment
    words are linked in order.

    Args:
        alignment: of the pieces; its numbers of words may be wrong.
        sources: words of the sentence, at least one.
        targets: words of the translation.
    """
    count = len(targets)
    links: list[int | None] = [own * len(sources) // count for own in range(count)]
    sure = np.ones(count, bool)
    if alignment is not None and alignment.weights.size:
        attention = attend_words(alignment, len(sources), count)
        sums = attention.sum(axis=1, keepdims=True)
        sure = attention.max(axis=1) >= 1 - sums[:, 0]
        shares = attention / np.maximum(sums, _TINY)
        shares /= np.sqrt(np.maximum(shares.sum(axis=0), _TINY))
        best = zip(shares.argmax(axis=1).tolist(), shares.max(axis=1), strict=True)
        links = [link if share > 0 else None for link, share in best]
    once = Counter(sources), Counter(targets)
    places = {word: number for number, word in enumerate(sources)}
    for number, word in enumerate(targets):
        if once[0][word] == once[1][word] == 1:
            links[number], sure[number] = places[word], True
    taken = {link for link, own in zip(links, sure, strict=True) if own}
    return [
        link if own or link not in taken else None
        for link, own in zip(links, sure, strict=True)
    ]


def attend_words(alignment: Alignment, sources: int, targets: int) -> np.ndarray:
    """Return the attention of each word of a translation to each source word, float32
    [targets, sources]: the mean over its pieces of the sum over those of the source.
    """
    rows = _mark_words(alignment.target_words, targets)
    columns = _mark_words(alignment.source_words, sources)
    sums = rows.T @ alignment.weights @ columns
    return sums / np.maximum(rows.sum(axis=0), 1)[:, None]


def _mark_words(words: Sequence[int | None], count: int) -> np.ndarray:
    """Return 1 for the word of each piece, float32 [pieces, words]."""
    places = [count if word is None else min(word, count - 1) for word in words]
    return np.eye(count + 1, dtype=np.float32)[places, :count]
