"""Tune the weights of reranking on a validation set."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxformer.errors import InputError
from jaxformer.evaluation.metrics import BLEU
from jaxformer.evaluation.statistics import Metric, Score
from jaxformer.translation.rerank import SEARCH
from jaxformer.typing import Float

GRID = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0)
"""Weights to try for each score. The search's own score has weight 1, since only
ratios matter.
"""


class Tuned(NamedTuple):
    """Hold the result of tuning.

    Attributes:
        weights: the best ones by the names of the scores; the smallest of equally good
            ones.
        before: the score of the first translations as they are.
        after: the score with the weights.
    """

    weights: dict[str, float]
    before: Score
    after: Score


def tune(
    lists: Sequence[Sequence[str]],
    scores: Mapping[str, Sequence[Sequence[float]]],
    references: Sequence[str],
    *,
    metric: Metric = BLEU,
    grid: Sequence[float] = GRID,
) -> Tuned:
    """Try all combinations of weights and return the best by a metric.

    Each translation is counted once. A combination then needs one sum of rows: two
    scores with eleven weights have 121 combinations, three have 1331.

    Args:
        lists: translations of each sentence, the search's best first.
        scores: of the translations, by name; the search's score keeps the weight 1.
        references: one for each sentence.
        metric: the metric to optimise.
        grid: weights to try.

    Raises:
        InputError: there are no sentences, references do not fit, or the search's own
            scores are missing.
    """
    if len(references) != len(lists) or not lists:
        raise InputError(
            f"there are {len(lists)} lists of translations and {len(references)}"
            " references: give one reference for each list"
        )
    if SEARCH not in scores:
        raise InputError(
            "the scores of the search are missing: there are"
            f" {', '.join(scores) or 'none'}"
        )
    flat = [text for texts in lists for text in texts]
    repeated = [
        line for texts, line in zip(lists, references, strict=True) for _ in texts
    ]
    statistics = metric.statistics(flat, repeated)
    starts = np.concatenate(
        [[0], np.cumsum([len(texts) for texts in lists])[:-1]]
    ).astype(np.int64)
    tables = {name: _table(rows) for name, rows in scores.items()}
    impossible = np.any([np.isneginf(table) for table in tables.values()], axis=0)
    tables = {name: np.where(impossible, 0.0, table) for name, table in tables.items()}

    def judge(weights: Mapping[str, float]) -> Score:
        sums = np.sum(
            [weight * tables[name] for name, weight in weights.items()], axis=0
        )
        chosen = np.argmax(np.where(impossible, -np.inf, sums), axis=1)
        return metric.score(
            statistics.rows[starts + chosen].sum(0), statistics.signature
        )

    others = [name for name in scores if name != SEARCH]
    tried = [
        {SEARCH: 1.0, **dict(zip(others, weights, strict=True))}
        for weights in itertools.product(sorted(grid, key=abs), repeat=len(others))
    ]
    found = [judge(weights) for weights in tried]
    sign = 1 if metric.higher_is_better else -1
    best = max(
        range(len(tried)),
        key=lambda number: (
            sign * found[number].value,
            -sum(map(abs, tried[number].values())),
        ),
    )
    before = metric.score(statistics.rows[starts].sum(0), statistics.signature)
    return Tuned(tried[best], before, found[best])


def _table(rows: Sequence[Sequence[float]]) -> Float[np.ndarray, "N n"]:
    """Pad lists to one length with minus infinity."""
    table = np.full((len(rows), max(map(len, rows))), -np.inf)
    for line, row in zip(table, rows, strict=True):
        line[: len(row)] = row
    return table
