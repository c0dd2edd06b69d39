"""The words that may come next in a translation."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from jaxformer.data.vocabulary import Vocabulary
from jaxformer.translation.paragraphs import is_unspaced
from jaxformer.translation.results import Hypothesis


class Alternative(NamedTuple):
    """A word that a translation may have after its prefix.

    Attributes:
        word: between white space; in a script without spaces, a piece.
        probability: that it is the next word, as a whole: not as the beginning of a
            longer one. Those of different words add up to at most 1.
        text: the best translation found that begins with both.
    """

    word: str
    probability: float
    text: str


class NextWords:
    """Words in the pieces of a target vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Read where words begin: after white space, or in a script without."""
        self._vocabulary, self._ids = vocabulary, dict[str, int]()
        self._first = set[int]()
        pieces = vocabulary.pieces(range(vocabulary.size))
        for token, inner in enumerate(vocabulary.continuing):
            self._ids[piece := pieces[token]] = token
            if not inner or is_unspaced(piece[:1]):
                self._first.add(token)

    def encode(self, pieces: Iterable[str]) -> list[int]:
        """Return the tokens of pieces."""
        return [self._ids.get(piece, self._vocabulary.unk_id) for piece in pieces]

    def begins(self, token: int, *, first: bool = False) -> bool:
        """Whether a token begins a word after one, or the first of a text."""
        text = self._vocabulary.decode([token]).strip()
        return bool(text) and (first or token in self._first)

    def ends(self, token: int) -> bool:
        """Whether a token after a word ends it."""
        return self.begins(token) or not self._vocabulary.decode([token]).strip()

    def read(self, found: Hypothesis, before: int) -> tuple[Alternative, list[int]]:
        """Return the word of a translation after its first ``before`` tokens, as the
        beginning of one, and the tokens up to its end; an empty word where the
        translation has no text there.
        """
        ids = self.encode(found.tokens)
        ends = (place for place in range(before + 1, len(ids)) if self.ends(ids[place]))
        end = next(ends, len(ids))
        text = self._vocabulary.decode(ids[:before])
        word = self._vocabulary.decode(ids[:end])[len(text) :].strip()
        value = math.fsum(found.token_log_probabilities[before:end])
        return Alternative(word, math.exp(value), found.text), ids[:end]
