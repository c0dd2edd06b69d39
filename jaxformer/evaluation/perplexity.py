"""Perplexity of a model on a test set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxformer.errors import InputError
from jaxformer.files import finite
from jaxformer.translation.results import PairScore


class Perplexity(NamedTuple):
    """Hold the sums over a test set.

    Attributes:
        sentences: their number.
        tokens: of the targets, with an end of sentence in each.
        words: of the targets, split at white space, with an end of sentence in each.
        log_probability: natural logarithm of the probability of all targets.
    """

    sentences: int
    tokens: int
    words: int
    log_probability: float

    @property
    def nll(self) -> float:
        """Return the mean negative log-likelihood, in nats per token."""
        return -self.log_probability / self.tokens

    @property
    def per_token(self) -> float:
        """Return the perplexity per token, which compares models of one vocabulary."""
        return _exp(self.nll)

    @property
    def per_word(self) -> float:
        """Return the perplexity per word, which compares models of any vocabulary."""
        return _exp(-self.log_probability / self.words)

    def to_record(self) -> dict[str, Any]:
        """Return all numbers for JSON; None for a number that is not finite."""
        record = {
            "sentences": self.sentences,
            "tokens": self.tokens,
            "words": self.words,
            "log_probability": round(self.log_probability, 6),
            "nll": round(self.nll, 6),
            "perplexity": round(self.per_token, 4),
            "word_perplexity": round(self.per_word, 4),
        }
        return finite(record)


def perplexity(scores: Sequence[PairScore], targets: Sequence[str]) -> Perplexity:
    """Sum up the scores of a test set.

    Args:
        scores: of each pair, by
            :meth:`jaxformer.translation.translator.Translator.score`.
        targets: the text that was scored.

    Raises:
        InputError: there are no scores, or not as many as targets.
    """
    if not scores or len(scores) != len(targets):
        raise InputError(
            "perplexity needs a score for each of some targets, but there are"
            f" {len(scores)} scores and {len(targets)} targets"
        )
    words = sum(len(target.split()) + 1 for target in targets)
    total = math.fsum(score.log_probability for score in scores)
    return Perplexity(len(scores), sum(score.tokens for score in scores), words, total)


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
