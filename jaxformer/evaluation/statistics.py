"""Sufficient statistics: counts of each sentence whose sum determines the score.

Scores of parts cannot be averaged, but their counts can be summed: over buckets of
sentences, and over the resamples of a significance test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from jaxformer.typing import Float


@dataclass(frozen=True)
class Score:
    """Hold one score of a whole test set.

    Attributes:
        name: the name of the metric, such as ``BLEU`` or ``chrF2``.
        value: the score, in points from 0 to 100; an error rate may exceed 100.
        signature: number of references, case, tokenizer, smoothing and version, as
            sacreBLEU writes them. Scores compare only where it is equal.
    """

    name: str
    value: float
    signature: str


@dataclass(frozen=True, eq=False)
class SentenceStatistics:
    """Hold the counts of each sentence.

    Attributes:
        rows: a row for each sentence; the metric defines the columns.
        signature: of the metric for these references.
    """

    rows: Float[np.ndarray, "N K"]
    signature: str


class Metric(Protocol):
    """Turn translations into counts, and their sum into a score."""

    @property
    def key(self) -> str:
        """Return its name in options and records."""
        ...

    @property
    def higher_is_better(self) -> bool:
        """Return False for an error rate."""
        ...

    def prepare(self, references: int) -> None:
        """Load packages and check the number of references, before translating."""
        ...

    def statistics(
        self,
        hypotheses: Sequence[str],
        *references: Sequence[str],
        sources: Sequence[str] | None = None,
    ) -> SentenceStatistics:
        """Count each sentence."""
        ...

    def score(self, total: Float[np.ndarray, " K"], signature: str) -> Score:
        """Score the sentences whose rows sum to ``total``."""
        ...


def score_rows(
    metric: Metric,
    statistics: SentenceStatistics,
    chosen: NDArray[Any] | slice = slice(None),
) -> Score:
    """Score sentences together: all, or the chosen ones."""
    return metric.score(statistics.rows[chosen].sum(0), statistics.signature)
