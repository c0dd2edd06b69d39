"""Scores by sentence length, word F1 by frequency, and the largest differences."""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jaxformer.evaluation.metrics import CHRF
from jaxformer.evaluation.statistics import Metric, SentenceStatistics, score_rows
from jaxformer.evaluation.tokenizers import split_words

LENGTHS = (1, 10, 20, 30, 40, 50, 60)
"""The least number of words of each bucket of sentences."""

FREQUENCIES = (0, 1, 2, 5, 10, 100, 1000)
"""The least frequency of each bucket of words."""


@dataclass(frozen=True)
class LengthBucket:
    """Hold the scores of sentences of similar length.

    Attributes:
        least: words of the shortest.
        most: greatest number of words; None: any.
        sentences: their number.
        scores: of each system, by the metric's key.
    """

    least: int
    most: int | None
    sentences: int
    scores: tuple[Mapping[str, float], ...]


@dataclass(frozen=True)
class WordBucket:
    """Hold how well systems produce words of similar frequency.

    Attributes:
        least: occurrences of the rarest.
        most: of the most frequent; None: any.
        words: occurrences in the references.
        f1: of each system, in percent: the harmonic mean of precision and recall.
    """

    least: int
    most: int | None
    words: int
    f1: tuple[float, ...]


@dataclass(frozen=True)
class Difference:
    """Hold a sentence that one system translates better than the other.

    Attributes:
        number: its position in the test set, from 1.
        source: None where it is not known.
        references: of the sentence.
        translations: of the baseline and of the system.
        chrf: sentence scores of both.
    """

    number: int
    source: str | None
    references: tuple[str, ...]
    translations: tuple[str, str]
    chrf: tuple[float, float]

    @property
    def gain(self) -> float:
        """Return the points of the system minus those of the baseline."""
        return self.chrf[1] - self.chrf[0]


def score_by_length(
    statistics: Mapping[Metric, Mapping[str, SentenceStatistics]], lines: Sequence[str]
) -> list[LengthBucket]:
    """Score the sentences of each length bucket together, without empty buckets.

    Args:
        statistics: of each metric, by the name of the system.
        lines: sources or references, whose words are counted.
    """
    lengths = [max(len(split_words(line)), LENGTHS[0]) for line in lines]
    places = np.searchsorted(LENGTHS, lengths, side="right") - 1
    systems = next(iter(statistics.values()))
    buckets = []
    for place, (least, most) in enumerate(_ranges(LENGTHS)):
        chosen = places == place
        if chosen.any():
            scores = tuple(
                {
                    metric.key: score_rows(metric, found[system], chosen).value
                    for metric, found in statistics.items()
                }
                for system in systems
            )
            buckets.append(LengthBucket(least, most, int(chosen.sum()), scores))
    return buckets


def count_words(lines: Iterable[str]) -> Counter[str]:
    """Count how often each word occurs."""
    return Counter(itertools.chain.from_iterable(map(split_words, lines)))


def score_by_frequency(
    systems: Sequence[Sequence[str]],
    references: Sequence[str],
    frequencies: Mapping[str, int],
) -> list[WordBucket]:
    """Compute the F1 of words in each frequency bucket, without empty buckets.

    Args:
        systems: translations of each system.
        references: one for each sentence.
        frequencies: of each word; missing words have 0.

    References:
        Neubig et al., "compare-mt: A Tool for Holistic Comparison of Language
        Generation Systems", 2019.
    """
    wanted = [Counter(split_words(line)) for line in references]
    in_reference = _occurrences(wanted, frequencies)
    found = []
    for translations in systems:
        words = [Counter(split_words(line)) for line in translations]
        right = [one & other for one, other in zip(words, wanted, strict=True)]
        found.append(
            (_occurrences(words, frequencies), _occurrences(right, frequencies))
        )
    buckets = []
    for place, (least, most) in enumerate(_ranges(FREQUENCIES)):
        wanted_here = in_reference[place]
        if wanted_here:
            f1 = tuple(
                200 * right[place] / (wanted_here + given[place])
                for given, right in found
            )
            buckets.append(WordBucket(least, most, wanted_here, f1))
    return buckets


def find_differences(
    baseline: Sequence[str],
    system: Sequence[str],
    references: Sequence[Sequence[str]],
    sources: Sequence[str] | None,
    most: int,
) -> tuple[list[Difference], list[Difference]]:
    """Find the sentences whose chrF differs most between two systems.

    Returns:
        Sentences that the system translates better, the largest gain first, and those
        that the baseline does; at most ``most`` of each.
    """
    scores = []
    for translations in (baseline, system):
        statistics = CHRF.statistics(translations, *references)
        scores.append(
            [CHRF.score(row, statistics.signature).value for row in statistics.rows]
        )
    differences = [
        Difference(
            number + 1,
            None if sources is None else sources[number],
            tuple(lines[number] for lines in references),
            (baseline[number], system[number]),
            pair,
        )
        for number, pair in enumerate(zip(*scores, strict=True))
        if pair[0] != pair[1]
    ]
    differences.sort(key=lambda difference: (-difference.gain, difference.number))
    better = [difference for difference in differences if difference.gain > 0]
    worse = [difference for difference in reversed(differences) if difference.gain < 0]
    return better[:most], worse[:most]


def _ranges(starts: Sequence[int]) -> list[tuple[int, int | None]]:
    """Return the first and the last of each bucket."""
    return [
        (start, None if end is None else end - 1)
        for start, end in zip(starts, [*starts[1:], None], strict=True)
    ]


def _occurrences(
    lines: Iterable[Counter[str]], frequencies: Mapping[str, int]
) -> list[int]:
    """Count the words in each frequency bucket."""
    totals = [0] * len(FREQUENCIES)
    for words in lines:
        for word, count in words.items():
            bucket = bisect.bisect_right(FREQUENCIES, frequencies.get(word, 0)) - 1
            totals[bucket] += count
    return totals
