"""The weights of a reranking, tuned for the best score of a validation set."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxformer.errors import InputError
from jaxformer.evaluation.metrics import BLEU
from jaxformer.evaluation.statistics import Metric, Score
from jaxformer.translation.rerank import SEARCH, Record, texts_of

GRID = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0)
"""The weights to try for each score. The weight of the search's own score is 1, since
only ratios matter.
"""


class Tuned(NamedTuple):
    """The result of a tuning.

    Attributes:
        weights: the best ones, by the names of the scores; in a tie the smallest.
        before: the score of the first translations.
        after: the score with the weights.
    """

    weights: dict[str, float]
    before: Score
    after: Score


def tune(
    records: Sequence[Record],
    scores: Mapping[str, Sequence[float]],
    references: Sequence[str],
    *,
    metric: Metric = BLEU,
    grid: Sequence[float] = GRID,
) -> Tuned:
    """Try all combinations of weights, and return the best by a metric.

    Each translation is compared with its reference once. A combination then takes one
    sum of rows: two scores have 121 combinations of eleven weights, three have 1331.

    Args:
        records: n-best lists, the search's best translation first.
        scores: of the translations, by name, flat; the first is that of the search.
        references: a human translation of each sentence.
        metric: to judge by.
        grid: weights to try.

    Raises:
        InputError: there are no sentences, references or scores of the search.
    """
    if len(references) != len(records) or not records:
        raise InputError(
            f"there are {len(records)} lists of translations and {len(references)}"
            " references: give one reference for each list"
        )
    if SEARCH not in scores:
        raise InputError(
            "the scores of the search are missing: there are"
            f" {', '.join(scores) or 'none'}"
        )
    counts = np.array([len(record["translations"]) for record in records])
    repeated = np.repeat(np.array(references, object), counts).tolist()
    statistics = metric.statistics(texts_of(records), repeated)
    starts = np.cumsum(counts) - counts
    places = _number(counts)
    flat = {name: np.asarray(values, float) for name, values in scores.items()}
    impossible = np.any([np.isneginf(values) for values in flat.values()], axis=0)
    flat = {name: np.where(impossible, 0.0, values) for name, values in flat.items()}

    def judge(weights: Mapping[str, float]) -> Score:
        sums = sum(weight * flat[name] for name, weight in weights.items())
        sums = np.append(np.where(impossible, -np.inf, sums), -np.inf)
        chosen = starts + np.argmax(sums[places], axis=1)
        return metric.score(statistics.rows[chosen].sum(0), statistics.signature)

    others = [name for name in scores if name != SEARCH]
    tried = [
        {SEARCH: 1.0, **dict(zip(others, weights, strict=True))}
        for weights in itertools.product(sorted(grid, key=abs), repeat=len(others))
    ]
    found = [(judge(weights), weights) for weights in tried]
    sign = 1 if metric.higher_is_better else -1
    after, best = max(
        found, key=lambda one: (sign * one[0].value, -sum(map(abs, one[1].values())))
    )
    before = metric.score(statistics.rows[starts].sum(0), statistics.signature)
    return Tuned(best, before, after)


def _number(counts: np.ndarray) -> np.ndarray:
    """Number the translations of each list, int [lists, longest]; -1 fills up."""
    places, starts = np.arange(counts.max())[None, :], np.cumsum(counts) - counts
    return np.where(places < counts[:, None], starts[:, None] + places, -1)
