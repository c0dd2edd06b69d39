"""The weights of a reranking, tuned for the best score of a validation set."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxformer.errors import InputError
from jaxformer.evaluation.choice import choose_metrics
from jaxformer.evaluation.statistics import Score, score_rows
from jaxformer.translation.rerank import Record, texts_of

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
    grid: Sequence[float] = GRID,
) -> Tuned:
    """Try all combinations of weights, and return the best by BLEU.

    Each translation is compared with its reference once. A combination then takes one
    sum of rows: two scores have 121 combinations of eleven weights, three have 1331.

    Args:
        records: n-best lists, the search's best translation first.
        scores: of the translations, by name, flat; the first is that of the search.
        references: a human translation of each sentence.
        grid: weights to try.

    Raises:
        InputError: there are no sentences, or not as many references.
    """
    if len(references) != len(records) or not records:
        raise InputError(
            f"there are {len(records)} lists of translations and {len(references)}"
            " references: give one reference for each list"
        )
    counts = np.array([len(record["translations"]) for record in records])
    repeated = np.repeat(np.array(references, object), counts).tolist()
    language = records[0].get("target_language")
    bleu = choose_metrics(language=language, references=references)[0]
    statistics = bleu.statistics(texts_of(records), repeated)
    starts = np.cumsum(counts) - counts
    # Translations of each list, int [longest, lists]; -1 fills up.
    ranges = map(range, starts, starts + counts)
    places = np.array([*itertools.zip_longest(*ranges, fillvalue=-1)])
    flat = np.array([*scores.values()], float)
    impossible = np.isneginf(flat).any(axis=0)
    flat[:, impossible] = 0.0

    def judge(weights: Sequence[float]) -> Score:
        sums = sum(weight * row for weight, row in zip(weights, flat, strict=True))
        sums = np.append(np.where(impossible, -np.inf, sums), -np.inf)
        chosen = starts + np.argmax(sums[places], axis=0)
        return score_rows(bleu, statistics, chosen)

    others = itertools.product(sorted(grid, key=abs), repeat=len(scores) - 1)
    found = [(judge((1.0, *weights)), (1.0, *weights)) for weights in others]
    after, best = max(found, key=lambda one: (one[0].value, -sum(map(abs, one[1]))))
    weights = dict(zip(scores, best, strict=True))
    return Tuned(weights, score_rows(bleu, statistics, starts), after)
