"""The words that may come next in a translation."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
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
        """Read where words begin."""
        self._vocabulary = vocabulary

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        pieces = self._vocabulary.pieces(range(self._vocabulary.size))
        return {piece: token for token, piece in enumerate(pieces)}

    @functools.cached_property
    def _continuing(self) -> list[bool]:
        return self._vocabulary.continuing.tolist()

    def encode(self, pieces: Iterable[str]) -> list[int]:
        """Return the tokens of pieces."""
        return [self._ids.get(piece, self._vocabulary.unk_id) for piece in pieces]

    def begins(self, token: int) -> bool:
        """Whether a token begins a word: after white space, or in a script without."""
        if token >= self._vocabulary.size:
            return False
        (piece,) = self._vocabulary.pieces([token])
        return not self._continuing[token] or is_unspaced(piece[:1])

    def has_text(self, token: int) -> bool:
        """Whether a token is written."""
        return bool(self._vocabulary.decode([token]).strip())

    def may_begin(self, token: int, *, first: bool) -> bool:
        """Whether a token begins a word where one ends, or the first of a text."""
        return self.has_text(token) and (first or self.begins(token))

    def ends(self, token: int) -> bool:
        """Whether a token after a word ends it."""
        return not self.has_text(token) or self.begins(token)

    def rank(
        self,
        found: Iterable[Hypothesis],
        before: int,
        k: int,
        ending: Callable[[Sequence[int]], float],
    ) -> list[Alternative]:
        """Return the words of translations after their first ``before`` tokens, the
        most probable first, each once, with the best of its translations.

        Args:
            found: the translations.
            before: tokens that all of them have.
            k: how many words at most; those that are most probable as a beginning.
            ending: returns the probability that the last word of a translation ends
                after these tokens of it.
        """
        best: dict[str, tuple[Alternative, list[int]]] = {}
        for each in sorted(found, key=lambda each: -each.score):
            own, ids = self._read(each, before)
            if own.word:
                best.setdefault(own.word, (own, ids))
        likely = sorted(best.values(), key=lambda own: -own[0].probability)[:k]
        whole = [
            own._replace(probability=own.probability * ending(ids))
            for own, ids in likely
        ]
        return sorted(whole, key=lambda own: -own.probability)

    def _read(self, found: Hypothesis, before: int) -> tuple[Alternative, list[int]]:
        """Return the word of a translation after its first ``before`` tokens, as the
        beginning of one, and the tokens up to its end; an empty word where the
        translation has no text there.
        """
        ids = self.encode(found.tokens)
        end = before + 1
        while end < len(ids) and not self.ends(ids[end]):
            end += 1
        text = self._vocabulary.decode(ids[:before])
        word = self._vocabulary.decode(ids[:end])[len(text) :].strip()
        value = math.fsum(found.token_log_probabilities[before:end])
        return Alternative(word, math.exp(value), found.text), ids[:end]
