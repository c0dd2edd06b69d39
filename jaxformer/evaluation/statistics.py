"""Sufficient statistics: numbers of each sentence whose sum over a test set is all that
its score needs.

Scores of parts cannot be averaged to that of the whole, and sums can: over hosts, over
buckets of sentences, and over the resamples of a significance test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from jaxformer.errors import InputError
from jaxformer.typing import Float


@dataclass(frozen=True)
class Score:
    """Hold one score of a whole test set.

    Attributes:
        name: the name of the metric, such as ``BLEU`` or ``chrF2``.
        value: the score, in points from 0 to 100; an error rate may exceed 100.
        signature: what must agree before two scores may be compared: number of
            references, case, tokenizer, smoothing and version, as sacreBLEU writes
            them.
    """

    name: str
    value: float
    signature: str


@dataclass(frozen=True, eq=False)
class Statistics:
    """Hold what a metric has to know of each sentence.

    Attributes:
        rows: a row for each sentence. What they count is the metric's own affair.
        signature: of the metric for these references.
    """

    rows: Float[np.ndarray, "N K"]
    signature: str


class Metric(Protocol):
    """Turn translations into statistics, and their sum into a score."""

    @property
    def key(self) -> str:
        """Return its name in options and records."""
        ...

    @property
    def higher_is_better(self) -> bool:
        """Return whether more is better, as it is not for an error rate."""
        ...

    @property
    def digits(self) -> int:
        """Return the decimals that a record keeps."""
        ...

    def prepare(self, references: int) -> None:
        """Load what it needs, and refuse so many references if it must, before the
        work of translating.
        """
        ...

    def statistics(
        self,
        hypotheses: Sequence[str],
        *references: Sequence[str],
        sources: Sequence[str] | None = None,
    ) -> Statistics:
        """Count in each sentence; see :func:`jaxformer.evaluation.sentences.check`
        for what is refused.
        """
        ...

    def score(self, total: Float[np.ndarray, " K"], signature: str) -> Score:
        """Score the sentences whose rows were summed to ``total``."""
        ...


def score_rows(metric: Metric, statistics: Statistics) -> Score:
    """Score all sentences of some statistics together."""
    return metric.score(statistics.rows.sum(0), statistics.signature)


@dataclass(frozen=True, eq=False)
class Shard:
    """Hold the statistics of one host's share of a test set.

    Attributes:
        numbers: the place of each row's sentence in the test set, from 0.
        statistics: of these sentences; None for a host that had none.
    """

    numbers: Sequence[int]
    statistics: Statistics | None


def measure_shard(
    metric: Metric,
    numbers: Sequence[int | None],
    hypotheses: Sequence[str],
    *references: Sequence[str],
    sources: Sequence[str] | None = None,
) -> Shard:
    """Count in one host's share of the sentences.

    Args:
        metric: what to count for.
        numbers: the place of each sentence in the test set, from 0; None for filler,
            which is left out.
        hypotheses: one translation for each number.
        *references: flat lists, each with one reference for each number.
        sources: the text that was translated, where the metric reads it.

    Raises:
        InputError: as :func:`jaxformer.evaluation.sentences.check`.
    """
    real = [place for place, number in enumerate(numbers) if number is not None]

    def choose(lines: Sequence[str]) -> list[str]:
        if len(lines) != len(numbers):
            raise InputError(
                f"a shard of {len(numbers)} sentences has {len(lines)} lines: give one"
                " for each number"
            )
        return [lines[place] for place in real]

    kept = [number for number in numbers if number is not None]
    if not kept:
        return Shard((), None)
    chosen = None if sources is None else choose(sources)
    return Shard(
        kept,
        metric.statistics(choose(hypotheses), *map(choose, references), sources=chosen),
    )


def join_shards(shards: Sequence[Shard], sentences: int) -> Statistics:
    """Put the shares of all hosts together, in the order of the test set.

    Scores of the result are those of one host to the last bit: the rows are the same,
    and are summed in the same order.

    Args:
        shards: in any order, of any sizes.
        sentences: how many the test set has.

    Raises:
        InputError: a sentence is missing or there twice (named), or the shards were
            scored otherwise.
    """
    numbers = [number for shard in shards for number in shard.numbers]
    seen = np.bincount(
        np.asarray([number for number in numbers if 0 <= number < sentences], np.int64),
        minlength=sentences,
    )
    if len(numbers) != sentences or not np.all(seen == 1):
        wrong = [int(place) + 1 for place in np.flatnonzero(seen != 1)[:3]]
        raise InputError(
            f"each of {sentences} sentences must be scored once, but the shards hold"
            f" {len(numbers)}; missing or double "
            + (", ".join(map(str, wrong)) or "numbers beyond the last")
        )
    parts = [shard.statistics for shard in shards if shard.statistics is not None]
    signatures = {part.signature for part in parts}
    if len(signatures) != 1:
        raise InputError(
            "shards must be scored alike, but their signatures are"
            f" {', '.join(sorted(signatures)) or 'none'}"
        )
    return Statistics(
        np.concatenate([part.rows for part in parts])[np.argsort(numbers)],
        signatures.pop(),
    )
