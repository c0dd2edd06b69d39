"""Which words translate which: IBM model 1, learned from pairs of token sequences (Brown et al. 1993, section 4.2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from jaxformer.typing import Float, Int

_LINKS = 1 << 21
"""Links between source and target tokens that are in memory at once."""


class Side(NamedTuple):
    """Sentences of one language, end to end."""

    tokens: Int[np.ndarray, " M"]
    offsets: Int[np.ndarray, " N+1"]
    """Sentence i is ``tokens[offsets[i]:offsets[i + 1]]``."""
    size: int
    """Of the vocabulary: every token is below it."""


class Translations(NamedTuple):
    """What a source token may become, the most probable first; ties by the lower token."""

    tokens: Int[np.ndarray, " k"]
    probabilities: Float[np.ndarray, " k"]


class _Index(NamedTuple):
    """Where each source token stands; one more than the vocabulary has stands in every sentence: the null word."""

    sentences: np.ndarray
    """Of the first token, then of the second, ..."""
    counts: np.ndarray
    """How often it comes there."""
    starts: np.ndarray
    """Where each token's begin."""


def learn_translations(source: Side, target: Side, *, iterations: int = 4, candidates: int = 256) -> list[Translations]:
    """Estimate t(target token | source token) by expectation maximisation, from uniform probabilities on.

    Each target token comes from a source token of its pair or from the null word, all alike probable before t is known.
    The first iteration counts all tokens that come in pairs together; after it and each later one, a source token keeps
    its most probable candidates alone, so that memory is that of the text and of ``candidates`` numbers a token,
    whatever the number of different pairs of tokens is.

    Args:
        source: sentences.
        target: their translations, as many.
        iterations: at least 1; a few are enough for a ranking.
        candidates: target tokens that a source token keeps. The null word keeps all.

    Returns:
        Translations of each source token; none for one that does not come.
    """
    index = _index(source)
    # Before t is known, every source token of the pair and the null word is as likely as any other.
    totals = np.repeat(np.diff(source.offsets) + 1, np.diff(target.offsets)).astype(np.float64)
    table: list[Translations | None] = [None] * (source.size + 1)
    for _ in range(max(iterations, 1)):
        following = np.zeros_like(totals)
        for token in range(source.size + 1):
            known = table[token]
            row = np.ones(target.size) if known is None else _row(known, target.size)
            counts = _expected_counts(index, token, target, row, totals)
            found = table[token] = _best(counts, target.size if token == source.size else candidates)
            row = _row(found, target.size)
            for places, times in _links(index, token, target):
                following[places] += times * row[target.tokens[places]]
        totals = following
    return [each for each in table[:-1] if each is not None]


def _index(source: Side) -> _Index:
    sentences = len(source.offsets) - 1
    owners = np.repeat(np.arange(sentences, dtype=np.int64), np.diff(source.offsets))
    found, counts = np.unique(source.tokens.astype(np.int64) * sentences + owners, return_counts=True)
    starts = np.searchsorted(found, np.arange(source.size + 1, dtype=np.int64) * sentences)
    everywhere = np.arange(sentences, dtype=np.int64)
    return _Index(
        np.concatenate([found % max(sentences, 1), everywhere]),
        np.concatenate([counts, np.ones_like(everywhere)]),
        np.append(starts, len(found) + sentences),
    )


def _links(index: _Index, token: int, target: Side) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Give the places in the target text that a source token may have made, each once, and how often it comes there."""
    inside = slice(index.starts[token], index.starts[token + 1])
    sentences, counts = index.sentences[inside], index.counts[inside]
    ends = np.cumsum(target.offsets[sentences + 1] - target.offsets[sentences])
    first = 0
    while first < len(sentences):
        before = ends[first - 1] if first else 0
        last = max(int(np.searchsorted(ends, before + _LINKS, side="right")), first + 1)
        part = sentences[first:last]
        starts, lengths = target.offsets[part], target.offsets[part + 1] - target.offsets[part]
        shifts = np.repeat(starts - (ends[first:last] - lengths - before), lengths)
        yield np.arange(len(shifts)) + shifts, np.repeat(counts[first:last], lengths)
        first = last


def _expected_counts(
    index: _Index, token: int, target: Side, row: Float[np.ndarray, " V"], totals: Float[np.ndarray, " M"]
) -> Float[np.ndarray, " V"]:
    """Count how often a source token became each target token, as the probabilities of this iteration expect it."""
    expected = np.zeros(target.size)
    for places, counts in _links(index, token, target):
        words = target.tokens[places]
        total = totals[places]
        shares = np.divide(counts * row[words], total, out=np.zeros(len(places)), where=total > 0)
        expected += np.bincount(words, shares, minlength=target.size)
    return expected


def _row(translations: Translations, size: int) -> Float[np.ndarray, " V"]:
    """Give each target token its probability."""
    row = np.zeros(size)
    row[translations.tokens] = translations.probabilities
    return row


def _best(counts: Float[np.ndarray, " V"], keep: int) -> Translations:
    """Make probabilities of the highest counts."""
    tokens = np.flatnonzero(counts)
    tokens = tokens[np.argsort(-counts[tokens], kind="stable")][:keep]
    return Translations(tokens.astype(np.int32), counts[tokens] / max(counts[tokens].sum(), np.finfo(float).tiny))
