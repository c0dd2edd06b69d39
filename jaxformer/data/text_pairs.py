"""Pairs of texts that follow each other in a document, or do not (Devlin et al. 2019,
section 3.1, task 2).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxformer.data.frame import Frame
from jaxformer.data.records import Pair
from jaxformer.data.store import CutSentences, Encoded, Sentences
from jaxformer.data.vocabulary import Vocabulary
from jaxformer.errors import InputError

# Separates this generator from those of the order of pairs, of their choice and of
# windows.
_STREAM = 3


def encode_lines(
    documents: Sequence[Pair], vocabulary: Vocabulary, threads: int = -1
) -> tuple[Encoded, NDArray[np.int64]]:
    """Encode the lines of documents, each of which is a sentence.

    The first of a document begins with bos, which no text has: so documents stay apart
    in a flat array of tokens. Lines without a token are left out.

    Args:
        documents: texts of several lines.
        vocabulary: of the text.
        threads: of the tokenizer; -1: all cores.

    Returns:
        The lines, and the number of the document of each, int64 [N].
    """
    lines = [
        (origin, line)
        for origin, pair in enumerate(documents)
        for line in pair.target.split("\n")
    ]
    ids = vocabulary.encode_batch([line for _, line in lines], threads=threads)
    rows: list[list[int]] = []
    origins: list[int] = []
    for (origin, _), own in zip(lines, ids, strict=True):
        if own:
            begins = not origins or origins[-1] != origin
            rows.append([vocabulary.bos_id, *own] if begins else own)
            origins.append(origin)
    side = Sentences.from_lists(rows, vocabulary.pad_id)
    return Encoded(side, side), np.array(origins, np.int64)


@dataclass(frozen=True, eq=False)
class TextPairs(CutSentences):
    """Two texts a row in their frame, cut from tokens that stay where they are."""

    spans: NDArray[np.int64]
    """Where the first text begins and ends in ``tokens``, and the second, int64
    [N, 4].
    """
    frame: Frame

    def __len__(self) -> int:
        return len(self.spans)

    @functools.cached_property
    def lengths(self) -> NDArray[np.int32]:
        """Tokens of each row, int32 [N]."""
        begin, end, second, last = self.spans.T
        return (end - begin + last - second + self.frame.added_to_two).astype(np.int32)

    def take(self, indices: NDArray[np.integer]) -> Sentences:
        """Return the rows at these indices, in this order, in memory."""
        frame, parts = self.frame, [np.zeros(0, np.int32)]
        for begin, end, second, last in self.spans[indices].tolist():
            parts += [
                np.array(frame.source_before, np.int32),
                self.tokens[begin:end],
                np.array(frame.between, np.int32),
                self.tokens[second:last],
                np.array(frame.source_after, np.int32),
            ]
        offsets = np.concatenate([[0], np.cumsum(self.lengths[indices])])
        tokens = np.concatenate(parts).astype(np.int32)
        return Sentences(tokens, offsets.astype(np.int64), self.pad_id)


class FollowingTexts(NamedTuple):
    """Pairs of texts that follow each other.

    Attributes:
        true_pairs: the texts, each with the label 0.
        documents: number of the document of each, ascending, int64 [N].
        sizes: how many pairs each data set has.
    """

    true_pairs: Encoded
    documents: NDArray[np.int64]
    sizes: list[int]


def find_pairs(
    lines: Encoded, sizes: Sequence[int], frame: Frame, max_length: int
) -> FollowingTexts:
    """Divide documents into pairs of texts that follow each other.

    Each text has as many whole lines as half of the room holds, at least one, which may
    be cut. What follows the second text begins the next pair. A last line without a
    partner is left out.

    Args:
        lines: of :func:`encode_lines`.
        sizes: how many of them each data set has.
        frame: the tokens around two texts.
        max_length: most tokens of a row.

    Raises:
        InputError: the frame has no place for a second text, there is no room, or less
            than two documents have two lines.
    """
    half = (max_length - frame.added_to_two) // 2
    if half < 1:
        raise InputError(
            f"data.max_length={max_length} has no room for two texts: raise it"
        )
    side, spans, rows = lines.target, [], []
    offsets = side.offsets
    begins = side.tokens[offsets[:-1]] == frame.start
    stops = np.flatnonzero(np.append(begins, True))[1:]
    for row, stop in zip(np.flatnonzero(begins).tolist(), stops.tolist(), strict=True):
        own = row
        while own + 1 < stop:
            begin = int(offsets[own]) + (own == row)
            middle = _fill(offsets, begin, half, own + 1, stop - 1)
            second = int(offsets[middle])
            after = _fill(offsets, second, half, middle + 1, stop)
            ends = min(second, begin + half), min(int(offsets[after]), second + half)
            spans.append((begin, ends[0], second, ends[1]))
            rows.append((row, own))
            own = after
    documents, places = np.array(rows, np.int64).reshape(-1, 2).T
    if len(np.unique(documents)) < 2:
        raise InputError(
            "data.kind=documents needs at least two documents of two lines, each line a"
            " sentence: name such text (documents:FILE, files:PATTERN, python:train),"
            " or set data.kind=masked and training.objective=masked"
        )
    given = side.tokens, offsets, side.pad_id
    pairs = TextPairs(*given, np.array(spans, np.int64), frame)
    edges = np.concatenate([[0], np.cumsum(sizes)])
    counts = np.diff(np.searchsorted(places, edges)).tolist()
    labels = np.zeros(len(pairs), np.int32)
    return FollowingTexts(_with_labels(pairs, labels, lines.hash), documents, counts)


def _fill(
    offsets: NDArray[np.int64], begin: int, room: int, least: int, most: int
) -> int:
    """Return the first line after a text: whole ones from a place on that fit."""
    fits = int(np.searchsorted(offsets, begin + room, "right")) - 1
    return min(max(fits, least), most)


def _with_labels(
    pairs: TextPairs, labels: NDArray[np.int32], known_hash: str | None
) -> Encoded:
    offsets = np.arange(len(labels) + 1)
    return Encoded(pairs, Sentences(labels, offsets, pairs.pad_id), known_hash)


def draw_pairs(texts: FollowingTexts, seed: int, epoch: int) -> Encoded:
    """Replace the second text of half of the pairs, drawn for an epoch.

    It becomes the second text of a pair of another document, cut where the row would be
    longer than the longest of the true pairs.

    Args:
        texts: of :func:`find_pairs`.
        seed: of the run.
        epoch: its number.

    Returns:
        Sources of two texts, and as targets 0 where the second is the next, and 1 where
        it is another.
    """
    pairs, documents = texts.true_pairs.source, texts.documents
    assert isinstance(pairs, TextPairs)
    generator = np.random.default_rng([seed, epoch, _STREAM])
    labels = generator.integers(2, size=len(pairs), dtype=np.int32)
    # A pair of another document is before those of the own one, or after them.
    first = np.searchsorted(documents, documents)
    own = np.searchsorted(documents, documents, "right") - first
    others = generator.integers(len(pairs) - own)
    others += own * (others >= first)
    spans = pairs.spans.copy()
    drawn = np.flatnonzero(labels)
    spans[drawn, 2:] = pairs.spans[others[drawn], 2:]
    room = pairs.lengths.max() - pairs.frame.added_to_two - (spans[:, 1] - spans[:, 0])
    spans[:, 3] = np.minimum(spans[:, 3], spans[:, 2] + room)
    given = pairs.tokens, pairs.offsets, pairs.pad_id, spans, pairs.frame
    return _with_labels(TextPairs(*given), labels, texts.true_pairs.hash)
