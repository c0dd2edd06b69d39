"""Subword regularisation: segmentations drawn at random, the same ones for a seed in
any process and on any machine.

SentencePiece draws too, but salts its generator in each process, so that a run that
stops could not go on as it would have. Here SentencePiece normalises the text, and the
drawing is ours, from the pieces of its model.
"""

from __future__ import annotations

import itertools
import math
import re
import struct
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

# Field numbers and values of SentencePiece's model file.
_PIECES, _TRAINER = 1, 2
_PIECE_TEXT, _PIECE_SCORE, _PIECE_TYPE = 1, 2, 3
_MODEL_TYPE, _BYTE_FALLBACK = 3, 35
_UNIGRAM, _BPE = 1, 2
_NORMAL, _UNKNOWN, _USER_DEFINED, _BYTE = 1, 2, 4, 6
# What SentencePiece takes from the worst score for a character that no piece spells.
_UNKNOWN_PENALTY = 10.0
_SPACE = "▁"

# Steps of words that are kept, in each of two generations: up to 100 MB.
_KEPT = 400_000
# Random numbers that are drawn together.
_BLOCK = 2048


def sample(
    processor: Any, texts: Sequence[str], *, alpha: float, seed: int
) -> list[list[int]]:
    """Turn each text into the token ids of a segmentation drawn at random, without bos
    and eos.

    BPE: words are split into characters, and at each step every possible merge is left
    out with probability ``alpha``, until none is left to make (BPE-dropout, Provilkov
    et al. 2020, section 3.1): 0 gives the best segmentation, 1 gives characters.
    Unigram: a segmentation x is drawn from all with probability proportional to p(x) **
    ``alpha`` (Kudo 2018, section 3.3, with l = infinity): 0 draws evenly, and large
    values give the best. Those with more unknown characters than needed are left out. A
    model of words or of characters has one segmentation.

    The result depends on the model, the texts, ``alpha`` and ``seed`` alone.

    Args:
        processor: the model, a ``sentencepiece.SentencePieceProcessor``.
        texts: valid Unicode.
        alpha: at least 0, and for BPE at most 1.
        seed: not negative.
    """
    if processor not in _samplers:
        _samplers[processor] = _sampler(processor.serialized_model_proto())
    sampler = _samplers[processor]
    if sampler is None:
        return processor.encode(list(texts))
    words = sampler.pieces.words
    return sampler.sample(
        [words(text) for text in processor.normalize(list(texts))],
        alpha,
        np.random.default_rng(seed),
    )


@dataclass(frozen=True)
class _Pieces:
    """The pieces that text can be made of; control pieces are none."""

    ids: Mapping[str, int]
    scores: Mapping[str, float]
    """log-probability (unigram) or minus the rank (BPE)"""
    user_defined: frozenset[str]
    unk_id: int
    byte_ids: Sequence[int]
    """of the bytes 0 to 255; empty: the model has unk for a character that no piece
    spells
    """
    prefixes: frozenset[str] = field(init=False, repr=False)
    """all beginnings of pieces, the pieces among them"""
    words: Callable[[str], list[str]] = field(init=False, repr=False)
    """cuts a text where no piece crosses"""

    def __post_init__(self) -> None:
        prefixes = {
            piece[:length] for piece in self.ids for length in range(1, len(piece) + 1)
        }
        object.__setattr__(self, "prefixes", frozenset(prefixes))
        object.__setattr__(self, "words", re.compile(self._word()).findall)

    def _word(self) -> str:
        """Return the pattern of the longest parts of a text that no piece crosses."""
        if _SPACE not in self.ids:
            # a run of unknown characters is one unk, and may cross a space
            return "(?s).+"
        if not any(re.search(f"[^{_SPACE}]{_SPACE}", piece) for piece in self.ids):
            return f"{_SPACE}*[^{_SPACE}]+|{_SPACE}+"
        if not any(re.search(f"{_SPACE}[^{_SPACE}]", piece) for piece in self.ids):
            return f"[^{_SPACE}]+{_SPACE}*|{_SPACE}+"
        return "(?s).+"

    def spelt(self, symbols: Sequence[str]) -> list[int]:
        """Look up the ids of pieces and characters; a run of unknown characters is
        one unk, or their bytes.
        """
        ids = []
        for symbol in symbols:
            id_ = self.ids.get(symbol)
            if id_ is not None:
                ids.append(id_)
            elif self.byte_ids:
                ids += [self.byte_ids[byte] for byte in symbol.encode()]
            elif not ids or ids[-1] != self.unk_id:
                ids.append(self.unk_id)
        return ids


class _Recent:
    """What was worked out for the words of late: the young and, while the young
    grow, those that were so before.
    """

    def __init__(self) -> None:
        self.young: dict[Any, Any] = {}
        self.weight = 0
        self._old: dict[Any, Any] = {}

    def recall(self, key: Any) -> Any:
        """Find what is no longer young, if it is there."""
        return self._old.get(key)

    def keep(self, key: Any, value: Any, weight: int) -> None:
        """Add to the young; where they weigh too much already, they become the old
        first.
        """
        if self.weight > _KEPT:
            self._old, self.young, self.weight = self.young, {}, 0
        self.young[key] = value
        self.weight += weight


class _Word:
    """A word on its ways from characters to pieces.

    How far it has come is a number, whose bit i says whether a piece begins or ends
    before character i: a merge takes one bit away.
    """

    __slots__ = ("_pieces", "_possible", "_text", "characters", "ids", "merges")

    def __init__(self, text: str, characters: Sequence[str], pieces: _Pieces) -> None:
        self._text, self._pieces = text, pieces
        ends = list(itertools.accumulate(map(len, characters), initial=0))
        self.characters = sum(1 << end for end in ends)
        self.merges: dict[int, tuple[int, ...]] = {}
        """what each possible merge makes of it, best first"""
        self.ids: dict[int, list[int]] = {}
        spans = set(itertools.pairwise(ends))
        found = []
        for first in range(len(characters)):
            for last in range(first + 1, len(characters)):
                start, end = ends[first], ends[last + 1]
                part = text[start:end]
                # A user-defined piece stands as it is.
                if (
                    part not in pieces.prefixes
                    or characters[last] in pieces.user_defined
                ):
                    break
                if (
                    part in pieces.scores
                    and characters[first] not in pieces.user_defined
                ):
                    spans.add((start, end))
                    found.append(
                        (-pieces.scores[part], start, end, ends[first + 1 : last + 1])
                    )
        found.sort()
        self._possible = [
            (
                (2 << end) - (1 << start),
                1 << start | 1 << middle | 1 << end,
                1 << middle,
            )
            for _, start, end, middles in found
            for middle in middles
            if (start, middle) in spans and (middle, end) in spans
        ]
        """merges, best first: bits that matter, what they must be, the bit to take
        away
        """

    def find(self, state: int) -> tuple[int, ...]:
        """Fill in ``merges[state]``."""
        found = tuple(
            [
                state ^ bit
                for window, pattern, bit in self._possible
                if state & window == pattern
            ]
        )
        self.merges[state] = found
        return found

    def spell(self, state: int) -> list[int]:
        """Fill in ``ids[state]``."""
        ends = [place for place in range(len(self._text) + 1) if state >> place & 1]
        self.ids[state] = ids = self._pieces.spelt(
            [self._text[start:end] for start, end in itertools.pairwise(ends)]
        )
        return ids

    @property
    def weight(self) -> int:
        """How much it keeps by now, in steps."""
        return len(self._possible) + len(self.merges)


class _Dropout:
    """BPE-dropout (Provilkov et al. 2020, algorithm 1), word by word.

    Which merge is made depends only on how many better ones are left out: one random
    number a step tells, and what follows from it is worked out once for each word.
    """

    def __init__(self, pieces: _Pieces) -> None:
        self.pieces = pieces
        self._recent = _Recent()
        # The longest where several user-defined pieces begin.
        longest_first = sorted(pieces.user_defined, key=len, reverse=True)
        self._characters = re.compile(
            "(?s)" + "|".join([*map(re.escape, longest_first), "."])
        ).findall

    def sample(
        self, texts: list[list[str]], alpha: float, rng: np.random.Generator
    ) -> list[list[int]]:
        """Draw the ids of each text, given as its words."""
        longest = max((len(word) for words in texts for word in words), default=0)
        # P(the first n left out) = alpha ** n. Products rather than logarithms are the
        # same on all machines.
        powers = -np.multiply.accumulate(np.full(longest, alpha))
        draw = itertools.chain.from_iterable(
            np.searchsorted(powers, -numbers).tolist() for numbers in _numbers(rng)
        ).__next__
        drawn, recent = [], self._recent
        for words in texts:
            ids: list[int] = []
            for text in words:
                word: _Word = recent.young.get(text) or self._word(text)
                state, known = word.characters, word.merges
                while True:
                    merges = known.get(state)
                    if merges is None:
                        recent.weight += 1
                        merges = word.find(state)
                    if not merges:
                        break
                    left_out = draw()
                    if left_out >= len(merges):
                        break
                    state = merges[left_out]
                ids += word.ids.get(state) or word.spell(state)
            drawn.append(ids)
        return drawn

    def _word(self, text: str) -> _Word:
        word = self._recent.recall(text) or _Word(
            text, self._characters(text), self.pieces
        )
        self._recent.keep(text, word, word.weight)
        return word


@dataclass(frozen=True)
class _Choice:
    """A place in a word from which several pieces go on."""

    cumulative: list[float]
    """of the probabilities, without the last, which is 1"""
    ways: list[tuple[list[int], _Choice | None]]
    """ids up to the next choice, and that; None: the word ends"""


class _Lattice:
    """Sampling from all segmentations of a unigram model, word by word.

    Forward-filtering and backward-sampling, in the mirror so that the pieces come in
    order: sums over what may follow a place are worked out once for each word, and give
    the probability of each piece there.
    """

    def __init__(self, pieces: _Pieces) -> None:
        self.pieces = pieces
        self._recent = _Recent()
        scores = [
            score
            for piece, score in pieces.scores.items()
            if piece not in pieces.user_defined
        ]
        self._unknown = min(scores, default=0.0) - _UNKNOWN_PENALTY
        best = max(scores, default=0.0)
        # Better than any other pieces of as many characters, as SentencePiece has it.
        self._scores = {
            **pieces.scores,
            **{piece: len(piece) * best - 0.1 for piece in pieces.user_defined},
        }

    def sample(
        self, texts: list[list[str]], alpha: float, rng: np.random.Generator
    ) -> list[list[int]]:
        """Draw the ids of each text, given as its words."""
        draw = itertools.chain.from_iterable(
            numbers.tolist() for numbers in _numbers(rng)
        ).__next__
        unk_id, drawn, recent = self.pieces.unk_id, [], self._recent
        for words in texts:
            ids: list[int] = []
            for word in words:
                way = recent.young.get((word, alpha))
                if way is None:
                    way = recent.recall((word, alpha)) or self._way(word, alpha)
                    recent.keep((word, alpha), way, len(word))
                part, choice = way
                ids += part
                while choice is not None:
                    part, choice = choice.ways[bisect(choice.cumulative, draw())]
                    ids += part
            # A run of unknown characters is one unk.
            if unk_id in ids:
                ids = [
                    one
                    for one, before in zip(ids, [None, *ids], strict=False)
                    if one != unk_id or before != unk_id
                ]
            drawn.append(ids)
        return drawn

    def _way(self, word: str, alpha: float) -> tuple[list[int], _Choice | None]:
        """Make the choices of a word, from its end: what is sure until the first,
        and that one.
        """
        sums, steps = self._filtered(word, alpha)
        ways: list[tuple[list[int], _Choice | None]] = [([], None)] * (len(word) + 1)
        for start in range(len(word) - 1, -1, -1):
            onward = []
            for _, end in steps[start]:
                ids, choice = ways[end]
                onward.append(([*self.pieces.spelt([word[start:end]]), *ids], choice))
            if len(onward) == 1:
                ways[start] = onward[0]
            else:
                shares = [
                    math.exp(weight - sums[start]) for weight, _ in steps[start][:-1]
                ]
                ways[start] = [], _Choice(list(itertools.accumulate(shares)), onward)
        return ways[0]

    def _filtered(
        self, word: str, alpha: float
    ) -> tuple[list[float], list[list[tuple[float, int]]]]:
        """Sum over all ways to the end: for each place the log of it, and the pieces
        there as (log of share, end).
        """
        sums, unknown = [0.0] * (len(word) + 1), [0] * (len(word) + 1)
        steps: list[list[tuple[float, int]]] = [[] for _ in word]
        scores, prefixes = self._scores, self.pieces.prefixes
        for start in range(len(word) - 1, -1, -1):
            found = []
            if word[start] not in scores:
                found.append(
                    (
                        unknown[start + 1] + 1,
                        alpha * self._unknown + sums[start + 1],
                        start + 1,
                    )
                )
            for end in range(start + 1, len(word) + 1):
                part = word[start:end]
                if part not in prefixes:
                    break
                if part in scores:
                    found.append((unknown[end], alpha * scores[part] + sums[end], end))
            # As few unknown characters as can be: one that longer pieces spell would be
            # lost for no reason.
            unknown[start] = fewest = min(found)[0]
            steps[start] = kept = [
                (weight, end) for lost, weight, end in found if lost == fewest
            ]
            best = max(kept)[0]
            sums[start] = (
                best + math.log(sum([math.exp(weight - best) for weight, _ in kept]))
                if kept[1:]
                else best
            )
        return sums, steps


_samplers: WeakKeyDictionary[Any, _Dropout | _Lattice | None] = WeakKeyDictionary()


def _sampler(model: bytes) -> _Dropout | _Lattice | None:
    """Read the pieces of a model file; None where its text has one segmentation
    only.
    """
    trainer: dict[int, Any] = {}
    pieces: list[tuple[str, float, int]] = []
    for number, value in _fields(model):
        if number == _PIECES:
            entry = dict(_fields(value))
            score = struct.unpack("<f", entry.get(_PIECE_SCORE, b"\0\0\0\0"))[0]
            pieces.append(
                (
                    entry.get(_PIECE_TEXT, b"").decode(),
                    score,
                    entry.get(_PIECE_TYPE, _NORMAL),
                )
            )
        elif number == _TRAINER:
            trainer = dict(_fields(value))
    kind = {_UNIGRAM: _Lattice, _BPE: _Dropout}.get(trainer.get(_MODEL_TYPE, _UNIGRAM))
    if kind is None:
        return None
    ids = {
        type_: [id_ for id_, piece in enumerate(pieces) if piece[2] == type_]
        for type_ in {piece[2] for piece in pieces}
    }
    usable = [*ids.get(_NORMAL, []), *ids.get(_USER_DEFINED, [])]
    return kind(
        _Pieces(
            ids={pieces[id_][0]: id_ for id_ in usable},
            scores={pieces[id_][0]: pieces[id_][1] for id_ in usable},
            user_defined=frozenset(
                pieces[id_][0] for id_ in ids.get(_USER_DEFINED, [])
            ),
            unk_id=ids[_UNKNOWN][0],
            byte_ids=ids.get(_BYTE, []) if trainer.get(_BYTE_FALLBACK) else [],
        )
    )


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Read a protocol buffer's fields: (number, integer or bytes)."""
    place = 0

    def integer() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = message[place]
            place += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while place < len(message):
        key = integer()
        if key & 7 == 0:
            yield key >> 3, integer()
            continue
        size = {1: 8, 5: 4}.get(key & 7) or integer()
        yield key >> 3, message[place : place + size]
        place += size


def _numbers(rng: np.random.Generator) -> Iterator[NDArray[np.float64]]:
    """Draw numbers from 0 to 1 without end, float64 [_BLOCK] at a time."""
    while True:
        yield rng.random(_BLOCK)
