"""HTML to plain text, and its translation back to HTML.

The tokens are found by one regular expression in linear time: ``html.parser`` of
Python 3.11 takes 23 s for 20 kB of ``<a "``.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from jaxformer.translation.text.blocks import Block, BlockEntry, TranslatedPart


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

# Characters that represent objects in a text.
_OBJECTS = [chr(code) for code in range(0xE000, 0xF900)]
# Characters without width, which split words of a vocabulary.
_INVISIBLE = "\u200b\u00ad\ufeff"
# A character reference, white space, or another character.
_PIECE = re.compile(
    r"&(?:#[0-9]{1,8}|#[xX][0-9a-fA-F]{1,8}|[a-zA-Z]\w{0,31});?|\s+|.", re.DOTALL
)

_TOKEN = re.compile(
    r"<!--(?:>|->|.*?(?:--!?>|\Z))"
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


class Token(NamedTuple):
    """A piece of HTML; the ``raw`` of all are the whole of it."""

    raw: str
    kind: str
    """``text``, ``start``, ``end``, ``void`` (an element without content), ``kept`` (an
    element that is not translated), or ``other`` (a comment, a declaration, a script).
    """
    name: str = ""
    keep: bool = False
    """Whether the tag asks not to translate its element."""


class Markup:
    """HTML, whose blocks of text are translated and put back.

    Everything but the text of the blocks is kept byte for byte.

    Attributes:
        blocks: the texts to translate, each of at least one letter; see
            :class:`~jaxformer.translation.text.blocks.Block`.

    Example:
        >>> markup = parse('<p>A <b>new</b> table</p>')
        >>> [block.text for block in markup.blocks]
        ['A new table']
        >>> markup.render([[TranslatedPart(0, 11, "Eine neue Tabelle")]])
        '<p>Eine <b>neue</b> Tabelle</p>'
    """

    def __init__(self, blocks: list[Block], kept: list[str]) -> None:
        """Keep the blocks and the source before, between and after them."""
        self.blocks = blocks
        self._kept = kept

    def render(self, translations: Sequence[Sequence[TranslatedPart]]) -> str:
        """Return the HTML with the blocks translated.

        Args:
            translations: the sentences of each block in order, with their spans of its
                text. Text outside of the spans is kept.

        Raises:
            ValueError: the number of blocks is another.
        """
        pairs = zip(self.blocks, translations, strict=True)
        rendered = [block.render(parts) for block, parts in pairs]
        pieces = zip(self._kept, [*rendered, ""], strict=True)
        return "".join(text for pair in pieces for text in pair)


def parse(source: str) -> Markup:
    """Find the text to translate in HTML: a document, or a part of one.

    An element of the HTML standard that forms a paragraph, row, item and the like ends
    a sentence, and so does ``br``. All other elements are within a sentence. ``code``,
    ``kbd``, ``samp``, ``var``, ``dir``, ``acronym``, ``math``, ``svg``, an empty ``x``,
    and elements with ``translate="no"`` or the class ``notranslate`` are copied.
    Attributes are not translated. Any string is accepted; a tag that does not end is
    text, and an end tag that closes nothing stays where it is.
    """
    return _Parser().parse(source)


class _Parser:
    """The state of :func:`parse`."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.kept = [""]
        # Elements within sentences that are open: their names, numbers, and the entries
        # of the blocks in which they began.
        self.open: list[tuple[str, int, list[BlockEntry]]] = []
        self.names: Counter[str] = Counter()
        self.count = self.lines = 0
        self.begin_block()

    def begin_block(self) -> None:
        self.entries: list[BlockEntry] = []
        self.objects: dict[str, str] = {}
        self.spaced = True

    def parse(self, source: str) -> Markup:
        for token in _join_kept(tokenize(source)):
            if token.kind == "text":
                self.add_lines(token.raw)
            elif token.kind == "kept" and token.name not in _BLOCKS:
                self.add_object(token.raw)
            elif token.name in _BLOCKS:
                if token.name in _LINES:
                    self.lines += {"start": 1, "end": -1}.get(token.kind, 0)
                self.end_block(token.raw)
            elif token.kind == "start":
                self.open_element(token)
            elif token.kind == "end" and self.names[token.name]:
                self.close_element(token)
            else:
                self.entries.append(BlockEntry("void", token.raw))
        self.end_block("")
        return Markup(self.blocks, self.kept)

    def add_lines(self, raw: str) -> None:
        for line in re.split(r"([\r\n]+)", raw) if self.lines > 0 else [raw]:
            if self.lines > 0 and line and not line.strip("\r\n"):
                self.end_block(line)
            else:
                self.add_text(line)

    def add_text(self, raw: str) -> None:
        """Add source text; a run of white space is one space."""
        for piece in _PIECE.findall(raw):
            text = html.unescape(piece) if piece[0] == "&" else piece
            if text.isspace():
                self.add_space(piece)
            elif text in _INVISIBLE:
                self.entries.append(BlockEntry("space", piece))
            elif unicodedata.category(text[0]) == "Co":
                self.add_object(piece)
            else:
                self.spaced = False
                for number, character in enumerate(text):
                    own = "" if number else piece
                    self.entries.append(BlockEntry("text", own, character))

    def add_space(self, raw: str) -> None:
        self.entries.append(BlockEntry("space", raw, "" if self.spaced else " "))
        self.spaced = True

    def add_object(self, raw: str) -> None:
        """Add source that is copied, a character of the text."""
        if len(self.objects) == len(_OBJECTS):
            self.entries.append(BlockEntry("void", raw))
            return
        character = _OBJECTS[len(self.objects)]
        self.objects[character] = raw
        self.entries.append(BlockEntry("text", raw, character))
        self.spaced = False

    def open_element(self, token: Token) -> None:
        if self.entries and self.entries[-1].kind == "close" and not self.spaced:
            self.add_space("")  # two links are two words
        self.count += 1
        self.names[token.name] += 1
        self.open.append((token.name, self.count, self.entries))
        self.entries.append(BlockEntry("open", token.raw, element=self.count))

    def close_element(self, token: Token) -> None:
        """Close an element, and those in it that have no end tag."""
        own = ""
        while not own:
            name, number, entries = self.open.pop()
            self.names[name] -= 1
            own = token.raw if name == token.name else ""
            if own or entries is self.entries:
                self.entries.append(BlockEntry("close", own, element=number))

    def end_block(self, raw: str) -> None:
        """End a block before ``raw``, which is kept; without a letter it is no block,
        and all of it is kept.
        """
        inner, entries = [], self.entries
        if any(each.text.isalpha() for each in entries if each.kind == "text"):
            inner = [each for each, own in enumerate(entries) if own.kind != "space"]
        first, last = (inner[0], inner[-1] + 1) if inner else (0, 0)
        raws = [entry.raw for entry in entries]
        if inner:
            self.kept[-1] += "".join(raws[:first])
            self.kept.append("")
            self.blocks.append(Block(entries[first:last], self.objects))
        self.kept[-1] += "".join(raws[last:]) + raw
        self.begin_block()


def tokenize(source: str) -> Iterator[Token]:
    """Split HTML at its tags, comments and declarations, in linear time."""
    place = 0
    while found := _TOKEN.search(source, place):
        name = (found["name"] or "").lower()
        if name and not found["whole"]:
            break  # no later tag is certain to end, and none is looked for
        if found.start() > place:
            yield Token(source[place : found.start()], "text")
        place = found.end()
        if not name:
            yield Token(found[0], "other")
        elif found["end"]:
            yield Token(found[0], "end", name)
        elif name in _VOID or _EMPTY.search(found["attributes"]):
            # What XLIFF and programs that translate XML put in place of something.
            yield Token(found[0], "void", name, keep=name == "x")
        elif name in _RAW:
            end = re.compile(rf"</{re.escape(name)}(?=[\s/>])[^>]*+>", re.IGNORECASE)
            last = end.search(source, place)
            stop = last.end() if last else len(source)
            yield Token(source[found.start() : stop], "other", name)
            place = stop
        else:
            keep = name in _COPIED or bool(_KEEP.search(found["attributes"]))
            keep = keep or (name == "x" and source.startswith("</x>", place))
            yield Token(found[0], "start", name, keep)
    if place < len(source):
        yield Token(source[place:], "text")


def _join_kept(tokens: Iterator[Token]) -> Iterator[Token]:
    """Join the tokens of each element that is not translated to one, ``kept``."""
    name, depth, parts = "", 0, []
    for token in tokens:
        if depth and name == "p" and token.kind == "start" and token.name in _BLOCKS:
            yield Token("".join(parts), "kept", name)
            depth = 0
        if not depth and not token.keep:
            yield token
            continue
        if not depth:
            name, parts = token.name, []
        parts.append(token.raw)
        if token.name == name:
            depth += {"start": 1, "end": -1}.get(token.kind, 0)
        if not depth:
            yield Token("".join(parts), "kept", name)
    if depth:
        yield Token("".join(parts), "kept", name)
