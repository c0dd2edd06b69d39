"""Where translations are good and bad: by the length of sentences, by the frequency
of words, sentence by sentence.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jaxformer.errors import require
from jaxformer.evaluation.metrics import CHRF
from jaxformer.evaluation.statistics import Metric, Statistics

LENGTHS = (1, 10, 20, 30, 40, 50, 60)
"""The first length, in words, of each bucket of sentences."""

FREQUENCIES = (0, 1, 2, 5, 10, 100, 1000)
"""The least frequency of each bucket of words."""


@dataclass(frozen=True)
class LengthBucket:
    """Hold the scores of the sentences of some length.

    Attributes:
        least: words of the shortest.
        most: words of the longest allowed; None: any.
        sentences: how many there are.
        scores: of each system, by the metric's key.
    """

    least: int
    most: int | None
    sentences: int
    scores: tuple[Mapping[str, float], ...]


@dataclass(frozen=True)
class WordBucket:
    """Hold how well systems translate into words of some frequency.

    Attributes:
        least: occurrences of the rarest.
        most: of the most frequent; None: any.
        words: of the references, every occurrence counted.
        f1: of each system, in percent: harmonic mean of the shares of its words that
            the reference has, and of the reference's that it has.
    """

    least: int
    most: int | None
    words: int
    f1: tuple[float, ...]


@dataclass(frozen=True)
class Difference:
    """Hold a sentence that two systems translate unlike well.

    Attributes:
        number: its place in the test set, from 1.
        source: what was translated; None where it is not known.
        references: what it should have become.
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
        """Return by how many points the system is better than the baseline."""
        return self.chrf[1] - self.chrf[0]


def split_words(text: str) -> list[str]:
    """Split a line into words and punctuation as sacreBLEU's tokenizer 13a does."""
    return _tokenizer()(text).split()


@functools.cache
def _tokenizer() -> Callable[[str], str]:
    return require("sacrebleu.tokenizers.tokenizer_13a", "train").Tokenizer13a()


def by_length(
    metrics: Sequence[Metric],
    systems: Sequence[Mapping[str, Statistics]],
    lines: Sequence[str],
) -> list[LengthBucket]:
    """Score the sentences of each length together; lengths that none has are left out.

    Args:
        metrics: what to score by.
        systems: statistics of each system, by the metric's key.
        lines: what length is counted in, words each: sources or references.
    """
    lengths = np.asarray([len(split_words(line)) for line in lines])
    places = np.searchsorted(LENGTHS, np.maximum(lengths, LENGTHS[0]), side="right") - 1
    buckets = []
    for place, (least, most) in enumerate(_ranges(LENGTHS)):
        chosen = places == place
        if not chosen.any():
            continue
        scores = tuple(
            {
                metric.key: metric.score(
                    system[metric.key].rows[chosen].sum(0), system[metric.key].signature
                ).value
                for metric in metrics
            }
            for system in systems
        )
        buckets.append(LengthBucket(least, most, int(chosen.sum()), scores))
    return buckets


def count_words(lines: Iterable[str]) -> Counter[str]:
    """Count how often each word occurs."""
    return Counter(itertools.chain.from_iterable(map(split_words, lines)))


def by_frequency(
    systems: Sequence[Sequence[str]],
    references: Sequence[str],
    frequencies: Mapping[str, int],
) -> list[WordBucket]:
    """Compare the words of translations and references, sentence by sentence, for each
    frequency of words.

    Frequencies that no word of the references has are left out.

    Args:
        systems: translations of each system.
        references: one for each sentence.
        frequencies: of each word; one that is not there has 0.

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
    """Find the sentences that two systems translate most unlike by sentence chrF.

    Returns:
        Those that the system translates better, the largest gain first, and those that
        the baseline does; at most ``most`` of each. Sentences of equal scores are in
        neither.
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
    """Count the words of each frequency."""
    totals = [0] * len(FREQUENCIES)
    for word, count in _sum_counts(lines).items():
        totals[
            int(np.searchsorted(FREQUENCIES, frequencies.get(word, 0), side="right"))
            - 1
        ] += count
    return totals


def _sum_counts(lines: Iterable[Counter[str]]) -> Counter[str]:
    """Add up the words of lines."""
    total: Counter[str] = Counter()
    for words in lines:
        total.update(words)
    return total
