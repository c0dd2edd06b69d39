"""Where the elements of a text are in its translation, by the alignment of words."""

from __future__ import annotations

import dataclasses
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import TypeAlias

import numpy as np

from jaxformer.translation.results import Alignment

# Elements deeper than that are empty: each level takes time.
_DEEPEST = 100
# Of attention that is divided by.
_TINY = np.float32(1e-9)

Tags: TypeAlias = list[tuple[bool, int]]
"""Tags in order: whether each is a start tag, and the number of its element."""


@dataclasses.dataclass
class Element:
    """An element within a block of text, or the part of it in this block.

    Attributes:
        parent: number of the element around it, -1: none. Parents come first.
        first: number of the first unit of text in it.
        last: number of the first unit after it.
        start: source of its start tag, or of all of it if it has no content; empty: it
            began in an earlier block.
        end: source of its end tag; empty: it has none in this block.
        void: whether it can have no content.
        spaced: whether white space comes before it.
    """

    parent: int
    first: int
    last: int
    start: str
    spaced: bool
    void: bool
    end: str = ""


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
    links: list[int | None] = [
        number * len(sources) // count for number in range(count)
    ]
    sure = [True] * count
    if alignment is not None and alignment.weights.size:
        attention = attend_words(alignment, len(sources), count)
        sure = list(attention.max(axis=1) >= 1 - attention.sum(axis=1))
        shares = attention / np.maximum(attention.sum(axis=1, keepdims=True), _TINY)
        shares /= np.sqrt(np.maximum(shares.sum(axis=0), _TINY))
        links = [
            int(best) if own[best] > 0 else None
            for own, best in zip(shares, shares.argmax(axis=1), strict=True)
        ]
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
    marks = np.zeros((len(words), count), np.float32)
    for piece, word in enumerate(words):
        if word is not None:
            marks[piece, min(word, count - 1)] = 1
    return marks


def place(
    elements: Sequence[Element], links: Sequence[int | None]
) -> tuple[list[tuple[int, int]], list[Tags]]:
    """Return for each element the units of the translation that it contains, as a range
    ``(start, stop)``, and the tags before each unit and after the last.

    An element contains those units of its parent that are linked to its own, from the
    first to the last of them but for outliers. Ranges of siblings do not overlap. An
    element without linked units is empty, after the unit that is linked to the one
    before it. An element without an end tag contains the rest of its parent.

    Args:
        elements: of a block.
        links: for each unit of the translation the source unit; None: none.
    """
    # The last of each list, whose number is -1, is that of the block.
    ranges = [(0, 0)] * len(elements) + [(0, len(links))]
    children: list[list[int]] = [[] for _ in ranges]
    for number, element in enumerate(elements):
        children[element.parent].append(number)
    # How many units before each have a link.
    linked = [0, *accumulate(link is not None for link in links)]
    tags: list[Tags] = [[] for _ in linked]
    pending = [(True, -1, 0)]
    while pending:
        opens, number, depth = pending.pop()
        start, stop = ranges[number]
        if number >= 0:
            tags[start if opens else stop].append((opens, number))
            if not opens or elements[number].void:
                continue
            pending.append((False, number, depth))
        own = children[number]
        if depth and _is_all(elements, number, own):
            spans = {own[0]: (start, stop)}
        else:
            spans = {}
            if depth < _DEEPEST:
                spans = _divide(elements, own, links, linked, start, stop)
            _place_empty(elements, own, links, spans, start, stop)
        for child in sorted(own, key=lambda child: (*spans[child], child))[::-1]:
            ranges[child] = spans[child]
            pending.append((True, child, depth + 1))
    return ranges[:-1], tags


def _is_all(elements: Sequence[Element], number: int, children: Sequence[int]) -> bool:
    """Return whether an element has one child of its extent, both with both tags."""
    if len(children) != 1:
        return False
    own, child = elements[number], elements[children[0]]
    whole = own.start and own.end and child.start and child.end
    return bool(whole) and (own.first, own.last) == (child.first, child.last)


def _divide(
    elements: Sequence[Element],
    children: Sequence[int],
    links: Sequence[int | None],
    linked: Sequence[int],
    start: int,
    stop: int,
) -> dict[int, tuple[int, int]]:
    """Return the ranges of the children of an element, which has ``start:stop``, that
    have linked units.
    """
    filled = [each for each in children if elements[each].last > elements[each].first]
    firsts = [elements[child].first for child in filled]
    groups: dict[int, list[int]] = {}
    for unit in range(start, stop):
        link = links[unit]
        if link is None:
            continue
        index = bisect_right(firsts, link) - 1
        if index >= 0 and link < elements[filled[index]].last:
            groups.setdefault(filled[index], []).append(unit)
    runs = [(child, densest(own, linked)) for child, own in groups.items()]
    spans: dict[int, tuple[int, int]] = {}
    latest = start
    # Runs never cross: one that begins within another is all in it, and is left out.
    for child, units in sorted(runs, key=lambda run: run[1][0]):
        if units[0] >= latest:
            latest = units[-1] + 1
            spans[child] = units[0], latest
    # Those without a tag extend to an end of their parent, as far as siblings allow.
    for child in spans:
        element, (begin, end) = elements[child], spans[child]
        if element.start and element.end:
            continue
        others = [span for other, span in spans.items() if other != child]
        if element.start:
            spans[child] = max([begin, *(last for _, last in others)]), stop
        else:
            spans[child] = start, min([end, *(first for first, _ in others)])
    return spans


def densest(units: list[int], linked: Sequence[int]) -> list[int]:
    """Return the run of an element's units that contains the most of them, less those
    linked to other text.

    Args:
        units: that are linked to the element, ascending.
        linked: how many units before each have a link.
    """
    best, best_score, score, begin = (0, 1), 1, 1, 0
    for index in range(1, len(units)):
        others = linked[units[index]] - linked[units[index - 1]] - 1
        if score <= others:
            score, begin = 1, index
        else:
            score += 1 - others
        if score > best_score:
            best, best_score = (begin, index + 1), score
    return units[slice(*best)]


def _place_empty(
    elements: Sequence[Element],
    children: Sequence[int],
    links: Sequence[int | None],
    spans: dict[int, tuple[int, int]],
    start: int,
    stop: int,
) -> None:
    """Add the ranges of the children that have none."""
    occupied = sorted((*span, child) for child, span in spans.items())
    begins = [begin for begin, _, _ in occupied]
    latest = {links[unit]: unit for unit in range(start, stop)}
    sources = sorted(link for link in latest if link is not None)
    for child in children:
        if child in spans:
            continue
        element = elements[child]
        before = bisect_left(sources, element.first)
        place = latest[sources[before - 1]] + 1 if before else start
        if not element.void:
            place = start if not element.start else place
            place = stop if not element.end else place
        index = bisect_left(begins, place) - 1
        if index >= 0 and place < occupied[index][1]:
            begin, end, sibling = occupied[index]
            place = end if sibling < child else begin
        spans[child] = place, place
