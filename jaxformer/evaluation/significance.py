"""Significance tests: is one system better than another, or lucky in its test set?

Both tests resample the sentences and score each draw by the sum of its sentences'
statistics. A draw that differs as much as observed counts, as in both papers.
sacreBLEU counts only draws that differ by more, and so calls equal systems different.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from jaxformer.evaluation.statistics import Metric, SentenceStatistics
from jaxformer.typing import Float

_BLOCK = 64  # draws in memory at a time
_CLOSE = 1e-9  # points: smaller differences come from rounding


@dataclass(frozen=True)
class Interval:
    """Hold the 95 % interval of a resampled score.

    Attributes:
        mean: over the resamples.
        low: the 2.5th percentile.
        high: the 97.5th percentile.
    """

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Bootstrap:
    """Hold the result of a paired bootstrap.

    Attributes:
        interval: of the difference, system minus baseline.
        wins: share of the resamples in which the system beats the baseline.
        p_value: two-sided, of the observed difference.
    """

    interval: Interval
    wins: float
    p_value: float


def bootstrap_scores(
    metric: Metric, statistics: SentenceStatistics, resamples: int, seed: int
) -> Float[np.ndarray, " R"]:
    """Score test sets of the same size, sampled from the sentences with replacement.

    A seed draws the same sentences for every system and metric: scores are paired.
    """
    rng, size = np.random.default_rng(seed), len(statistics.rows)
    scores = []
    for count in _blocks(resamples):
        drawn = rng.integers(size, size=(count, size))
        weights = np.stack([np.bincount(row, minlength=size) for row in drawn]).astype(
            np.float64
        )
        scores += [
            metric.score(total, statistics.signature).value
            for total in weights @ statistics.rows
        ]
    return np.asarray(scores)


def summarize(scores: Float[np.ndarray, " R"]) -> Interval:
    """Return mean and 95 % interval of resampled scores."""
    low, high = np.percentile(scores, (2.5, 97.5))
    return Interval(float(scores.mean()), float(low), float(high))


def compare_bootstraps(
    metric: Metric, system: Float[np.ndarray, " R"], baseline: Float[np.ndarray, " R"]
) -> Bootstrap:
    """Compare two systems on the same resamples of :func:`bootstrap_scores`.

    The p-value is twice the share of the resamples that the winner does not win.

    References:
        Koehn, "Statistical Significance Tests for Machine Translation Evaluation",
        2004.
    """
    gain = (system - baseline) * (1 if metric.higher_is_better else -1)
    not_better, not_worse = int(np.sum(gain <= _CLOSE)), int(np.sum(gain >= -_CLOSE))
    p_value = min(1.0, 2 * (1 + min(not_better, not_worse)) / (1 + len(gain)))
    return Bootstrap(summarize(system - baseline), 1 - not_better / len(gain), p_value)


def randomize(
    metric: Metric,
    system: SentenceStatistics,
    baseline: SentenceStatistics,
    trials: int,
    seed: int,
) -> float:
    """Compute the p-value of approximate randomisation.

    Each trial swaps the two translations of each sentence with probability 0.5. The
    p-value is the share of trials that differ at least as much as the systems do.

    References:
        Riezler and Maxwell, "On Some Pitfalls in Automatic Evaluation and Significance
        Testing for MT", 2005.
    """
    rng = np.random.default_rng(seed)
    difference = system.rows - baseline.rows
    total, base = system.rows.sum(0), baseline.rows.sum(0)

    def distance(one: Float[np.ndarray, " K"], other: Float[np.ndarray, " K"]) -> float:
        return abs(
            metric.score(one, system.signature).value
            - metric.score(other, baseline.signature).value
        )

    observed = distance(total, base)
    as_large = 0
    for count in _blocks(trials):
        moved = (
            rng.integers(2, size=(count, len(difference))).astype(np.float64)
            @ difference
        )
        as_large += sum(
            distance(total - move, base + move) >= observed - _CLOSE for move in moved
        )
    return (1 + as_large) / (1 + trials)


def _blocks(total: int) -> Iterator[int]:
    for start in range(0, total, _BLOCK):
        yield min(_BLOCK, total - start)
