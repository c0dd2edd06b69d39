"""Whether one translation is better than another, or was lucky in its test set.

Both tests draw sentences again and again, and score each draw by the sums of its
sentences' statistics. sacreBLEU's own tests count only draws that differ by more than
the observed difference, which calls two equal systems different; here a draw that
differs as much counts too, as both papers have it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from jaxformer.evaluation.statistics import Metric, Statistics
from jaxformer.typing import Float

_BLOCK = 64  # draws that are in memory together
_CLOSE = 1e-9  # points: differences of fewer are those of rounding


@dataclass(frozen=True)
class Interval:
    """Hold where a score would lie on other test sets of this kind.

    Attributes:
        mean: of the score over the resamples.
        low: the end that 2.5 % of the resamples lie below.
        high: the end that 2.5 % lie above.
    """

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Bootstrap:
    """Hold the result of a paired bootstrap.

    Attributes:
        interval: of the difference, system less baseline.
        wins: share of the resamples in which the system is better than the baseline.
        p_value: of the observed difference or a larger one to either side, if there
            were none.
    """

    interval: Interval
    wins: float
    p_value: float


def bootstrap_scores(
    metric: Metric, statistics: Statistics, resamples: int, seed: int
) -> Float[np.ndarray, " R"]:
    """Score test sets of the same size, drawn from this one's sentences with
    replacement.

    The same seed draws the same sentences for every system and metric, which pairs
    their scores.
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
    """Compare two systems by their scores on the same resamples of
    :func:`bootstrap_scores`.

    The p-value is twice the share of the resamples in which the one that is mostly
    better is not; the share of wins is the confidence of Koehn 2004, "Statistical
    Significance Tests for Machine Translation Evaluation".
    """
    gain = (system - baseline) * (1 if metric.higher_is_better else -1)
    not_better, not_worse = int(np.sum(gain <= _CLOSE)), int(np.sum(gain >= -_CLOSE))
    p_value = min(1.0, 2 * (1 + min(not_better, not_worse)) / (1 + len(gain)))
    return Bootstrap(summarize(system - baseline), 1 - not_better / len(gain), p_value)


def randomize(
    metric: Metric, system: Statistics, baseline: Statistics, trials: int, seed: int
) -> float:
    """Test by approximate randomisation whether two systems differ, and give the
    p-value.

    In each trial every sentence's two translations change places or not, by the toss of
    a coin. If the systems were the same, the observed difference would be one like
    those of the trials.

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
