"""HTML to plain text, and its translation back to HTML: each element is put around the
words of the translation that belong to its own.

Tags are found by one regular expression in linear time: ``html.parser`` of Python 3.11
takes 23 s for 20 kB of ``<a "``.
"""

from __future__ import annotations

import html
import html.entities
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import NamedTuple
from unicodedata import category

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

# The first of the characters that represent objects in a text, and how many there are.
_OBJECT, _OBJECTS = 0xE000, 0x1900
_PRIVATE = re.compile("[\ue000-\uf8ff\U000f0000-\U0010ffff]")
# Characters without width, which split words of a vocabulary.
_INVISIBLE = "\u200b\u00ad\ufeff"
# A character reference, white space, or another character.
_REFERENCES = "|".join(sorted(html.entities.html5, key=len, reverse=True))
_PIECE = re.compile(
    rf"&(?:#[0-9]{{1,8}};?|#[xX][0-9a-fA-F]{{1,8}};?|{_REFERENCES})|\s+|.", re.DOTALL
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
# Elements deeper than that are not moved: each level takes time.
_DEEPEST = 100
# Of attention that is divided by.
_TINY = np.float32(1e-9)


class Token(NamedTuple):
    """A piece of HTML; the ``raw`` of all are the whole of it."""

    raw: str
    name: str = ""
    """Of the element, in lower case; ``!`` of a comment or declaration; empty: text."""
    depth: int = 0
    """1 of a start tag, -1 of an end tag, 0 of what has no content to translate."""
    block: bool = False
    """Whether it ends a sentence."""
    keep: bool = False
    """Whether its element is not translated."""


class SourcePiece(NamedTuple):
    """A piece of the source."""

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
    """The translation, with each object of the sentence once."""
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
                ``inline`` or ``keep``; the name ``*`` is of all others, and a line
                feed means that line breaks end sentences.
        """
        self.blocks: list[Block] = []
        self._kept = [""]
        for pieces, end in _read(source, tags or {}):
            if any(own.text.isalpha() for own in pieces):
                inner = [n for n, x in enumerate(pieces, 1) if x.tag or x.text.strip()]
                self.blocks.append(Block(pieces[: inner[-1]]))
                self._kept.append("")
                pieces = pieces[inner[-1] :]
            self._kept[-1] += "".join(own.raw for own in pieces) + end

    def render(self, translations: Sequence[Sequence[TranslatedPart]]) -> str:
        """Return the HTML with the blocks translated.

        Args:
            translations: the sentences of each block in order, with their spans of its
                text; all of the text is in a span or a gap.
        """
        rendered = map(Block.render, self.blocks, translations)
        return "".join(chain(*zip(self._kept, chain(rendered, [""]), strict=True)))


def _read(
    source: str, tags: Mapping[str, str]
) -> Iterator[tuple[list[SourcePiece], str]]:
    """Yield the pieces of each block of HTML, in which a run of white space is one
    space, and the source after it.
    """
    pieces, objects, spaced, last = list[SourcePiece](), 0, True, 0
    lines = int("\n" in tags)
    tokens = tokenize(source, tags)
    for token in tokens:
        whole, depth = [token.raw], token.depth * token.keep
        while depth and (own := next(tokens, None)):
            whole.append(own.raw)
            depth += own.depth * (own.name == token.name)
        lines += token.depth * (token.name in _LINES and not token.keep)
        for raw in ["".join(whole)] if token.name else _PIECE.findall(token.raw):
            text = "" if token.name else html.unescape(raw)
            copied = token.keep or bool(_PRIVATE.match(text))
            is_edge = not pieces or (lines > 0 and {*raw} & {*"\r\n"})
            is_end = token.block or (copied and objects == _OBJECTS)
            if is_end or (is_edge and text.isspace()):
                yield pieces, raw
                pieces, objects, spaced, last = [], 0, True, 0
                continue
            if text.isspace():
                text = "" if spaced else " "
            elif copied:
                text, objects = chr(_OBJECT + objects), objects + 1
            elif token.depth > 0 and last == -1 and not spaced:
                pieces.append(SourcePiece("", " "))  # two links are two words
                spaced = True
            tag = token if token.name and not copied else None
            pieces.append(SourcePiece(raw, text.strip(_INVISIBLE), tag))
            spaced = text == " " or (spaced and text in _INVISIBLE)
            last = token.depth
    yield pieces, ""


def tokenize(source: str, tags: Mapping[str, str]) -> Iterator[Token]:
    """Split HTML at its tags, comments and declarations, in linear time."""
    place = 0
    while found := _TOKEN.search(source, place):
        end, name, attributes, whole = found.groups("")
        if name and not whole:
            break  # no later tag is certain to end, and none is looked for
        if found.start() > place:
            yield Token(source[place : found.start()])
        place, name = found.end(), name.lower()
        rule = tags.get(name, tags.get("*")) if name else None
        block = rule == "block" or (rule != "inline" and name in _BLOCKS)
        is_void = not name or name in _VOID or bool(_EMPTY.search(attributes))
        depth = -1 if end else int(not is_void)
        keep = rule == "keep" or name in _COPIED or bool(_KEEP.search(attributes))
        # An empty x is what XLIFF and programs put in place of something.
        keep |= name == "x" and (is_void or source.startswith("</x>", place))
        if depth > 0 and name in _RAW:
            pattern = rf"</{name}(?=[\s/>])[^>]*+>"
            close, depth = re.compile(pattern, re.I).search(source, place), 0
            place = close.end() if close else len(source)
        raw = source[found.start() : place]
        yield Token(raw, name or "!", depth, block, keep and not end)
    if place < len(source):
        yield Token(source[place:])


class Link(NamedTuple):
    """A unit of a translation: a part of a word."""

    space: str
    """White space before it."""
    text: str
    """Its source, with that of objects."""
    start: int
    """Where that which it translates begins in the source's text."""
    stop: int
    """Where it ends; the same place if unknown."""


class Block:
    """A block of text, one or several sentences, with the tags in it.

    Elements have numbers from 1 in the order of their start tags, which have the same
    numbers; an end tag has the negative number.

    Attributes:
        text: on one line, without tags. Objects that are copied, such as ``code``, are
            private characters of Unicode, each another one.
        objects: the source of each object, by the code of its character.
    """

    def __init__(self, pieces: Sequence[SourcePiece]) -> None:
        """Read the pieces of the source."""
        self.text = "".join(own.text for own in pieces).rstrip(" ")
        self.objects = {
            ord(own.text): own.raw for own in pieces if _PRIVATE.match(own.text)
        }
        # The source of tags and the like before each character, and of the character;
        # the tags before each.
        self._source, self._tags = [""], list[list[int]]([[]])
        # The source of each tag and its place; the element around each.
        self._raw, self._places, parents = {0: ""}, {0: 0}, [0]
        begun = [("", 0)]
        for raw, text, tag in pieces:
            if text:
                shown = "&lt;" if raw == "<" else raw
                self._source += [shown, *[""] * (2 * len(text) - 1)]
                self._tags += [[] for _ in text]
                continue
            self._source[-1] += raw
            if tag is None:
                continue
            number = len(parents)
            if tag.depth < 0 and any(tag.name == name for name, _ in begun):
                # Those in it that have no end tag have no content.
                while begun[-1][0] != tag.name:
                    begun.pop()
                number = -begun.pop()[1]
            else:
                parents.append(begun[-1][1])
                if tag.depth > 0 and len(begun) <= _DEEPEST:
                    begun.append((tag.name, number))
            self._raw[number] = raw
            self._places[number] = min(len(self._tags) - 1, len(self.text))
            self._tags[-1].append(number)
        self._children: list[list[int]] = [[] for _ in parents]
        for number, parent in enumerate(parents[1:], start=1):  # parents first
            parents[number] = parent if -parent in self._raw else parents[parent]
            self._children[parents[number]].append(number)

    def render(self, parts: Sequence[TranslatedPart]) -> str:
        """Return the source of the block with its sentences translated.

        Args:
            parts: the sentences in order; the last may be empty, with what is before
                the end.
        """
        links = [*self._translate(parts)]
        placed, pieces, left = self._place(links[:-1]), list[str](), 0
        for tags, (space, text, start, stop) in zip(placed, links, strict=True):
            # Between translations of neighbours the source stays, if it has these tags.
            linked = start < stop
            start = 0 if tags is placed[0] else start
            left = len(self.text) if tags is placed[-1] else left
            own = [*chain(*self._tags[left : start + 1])]
            if own == tags and self.text[left:start] == " " * bool(space):
                pieces += self._source[2 * left : 2 * start + 1]
            else:
                raw, begun = [self._raw[tag] for tag in tags], {*tags}
                ends = enumerate(zip(tags, raw, strict=True), start=1)
                closed = (
                    n for n, (tag, x) in ends if x[:2] == "</" and -tag not in begun
                )
                raw.insert(max(closed, default=0), space)
                pieces += raw
            pieces.append(text)
            left = stop if linked else len(self._tags)
        return "".join(pieces)

    def _translate(self, parts: Sequence[TranslatedPart]) -> Iterator[Link]:
        """Yield the units of the translation, then the end; words between the parts are
        their own translation.
        """
        space = ""
        for part in parts:
            gap = part.start - len(part.gap), part.start, part.gap, None
            for start, stop, target, alignment in (gap, part[:4]):
                sources = [*_WORD.finditer(self.text, start, stop)]
                targets, place = [*_WORD.finditer(target)], 0
                spans = [*map(divide_word, sources), [(0, 0)] * 3]
                words = self.text[start:stop].split(), target.split()
                links = link_words(alignment, *words)
                for number, word in zip(links, targets, strict=True):
                    space += target[place : word.start()]
                    place = word.end()
                    before, inner, after = spans[number]
                    if word is targets[-1] and word[0] != sources[number][0]:
                        after = spans[-2][2]  # the last mark of the sentence
                    own = zip(divide_word(word), (before, inner, after), strict=True)
                    for (begin, end), span in own:
                        for text, *bounds in self._link(target[begin:end], *span):
                            yield Link(space, text, *bounds)
                            space = ""
                space += target[place:]
        end = len(self._tags) - 1
        yield Link(space, "", end, end)

    def _link(self, text: str, start: int, stop: int) -> Iterator[tuple[str, int, int]]:
        """Yield the source of a part of a translated word, cut at tags if it is that of
        ``self.text[start:stop]``, which it translates.
        """
        if text == self.text[start:stop] != "":
            cuts = [n for n in range(start + 1, stop) if self._source[2 * n]]
            for begin, end in pairwise((start, *cuts, stop)):
                yield "".join(self._source[2 * begin + 1 : 2 * end]), begin, end
        elif text:
            yield html.escape(text, quote=False).translate(self.objects), start, stop

    def _place(self, links: Sequence[Link]) -> list[list[int]]:
        """Return the tags before each unit of a translation and after the last.

        An element contains those units of its parent that are linked to its own, from
        the first to the last of them but for outliers. Siblings do not overlap. An
        element without linked units is empty, after the unit that is linked to what is
        before it.
        """
        # The units that are linked to each character, and the place after the last.
        linked: list[list[int]] = [[] for _ in self.text]
        for unit, link in enumerate(links):
            for place in range(link.start, link.stop):
                linked[place].append(unit)
        after = [0]
        for units in linked:
            after.append(units[-1] + 1 if units else after[-1])
        placed: list[list[int]] = [[] for _ in (*links, None)]

        def fill(parent: int, start: int, stop: int) -> None:
            """Place the children of an element that contains a range of units."""
            runs = []
            for child in self._children[parent]:
                first = self._places[child]
                at = after[first] if start <= after[first] <= stop else start
                at = stop if first == len(self.text) else at
                own = chain(*linked[first : self._places.get(-child, 0)])
                units = sorted({unit for unit in own if start <= unit < stop})
                runs.append((*densest(units, links, at), child))
            # A run that begins within another is all in it, and left out.
            for begin, end, child in sorted(runs):
                begin = max(begin, start)
                start = max(begin, end)
                placed[begin].append(child)
                if -child in self._raw:
                    fill(child, begin, start)
                    placed[start].append(-child)

        fill(0, 0, len(links))
        return placed


def divide_word(word: re.Match[str]) -> list[tuple[int, int]]:
    """Return where the marks before the letters, numbers and objects of a word are,
    what is from the first to the last of them, and the marks after; a word of marks is
    the second.
    """
    start, stop = word.span()
    inner = [n for n, own in enumerate(word[0], start) if category(own)[0] in "LMNC"]
    first, last = (inner[0], inner[-1] + 1) if inner else (start, stop)
    return [*pairwise((start, first, last, stop))]


def densest(units: Sequence[int], links: Sequence[Link], at: int) -> tuple[int, int]:
    """Return the range of an element's units that contains the most of them, less those
    linked to other text.

    Args:
        units: that are linked to the element, ascending.
        links: of all units.
        at: where the element is if it has none.
    """
    score, begin, stop = 0, at, units[0] if units else at
    runs = [(0, at, at)]
    for unit in units:
        score -= sum(own.start < own.stop for own in links[stop:unit])
        score, begin = (score, begin) if score > 0 else (0, unit)
        score, stop = score + 1, unit + 1
        runs.append((score, begin, stop))
    return max(runs, key=lambda run: run[0])[1:]


def link_words(
    alignment: Alignment | None, sources: Sequence[str], targets: Sequence[str]
) -> list[int]:
    """Return the number of the source word that each word of a translation belongs to;
    -1 for a word that has none.

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
    links, sure = [own * len(sources) // count for own in range(count)], [True] * count
    if alignment is not None and alignment.weights.size:
        attention = attend_words(alignment, len(sources), count)
        sums = attention.sum(axis=1, keepdims=True)
        sure = (attention.max(axis=1) >= 1 - sums[:, 0]).tolist()
        taken = (attention / np.maximum(sums, _TINY)).sum(axis=0)
        links = (attention / np.sqrt(np.maximum(taken, _TINY))).argmax(axis=1).tolist()
    once = Counter(sources), Counter(targets)
    places = {word: number for number, word in enumerate(sources)}
    for number, word in enumerate(targets):
        if once[0][word] == once[1][word] == 1:
            links[number], sure[number] = places[word], True
    pairs = [*zip(links, sure, strict=True)]
    taken = {link for link, own in pairs if own}
    return [link if own or link not in taken else -1 for link, own in pairs]


def attend_words(alignment: Alignment, sources: int, targets: int) -> np.ndarray:
    """Return the attention of each word of a translation to each source word, float32
    [targets, sources]: the mean over its pieces of the sum over those of the source.
    """
    rows, columns = (
        np.eye(count + 1, dtype=np.float32)[
            [count if word is None else min(word, count - 1) for word in words], :count
        ]
        for words, count in (
            (alignment.target_words, targets),
            (alignment.source_words, sources),
        )
    )
    sums = rows.T @ alignment.weights @ columns
    return sums / np.maximum(rows.sum(axis=0), 1)[:, None]
