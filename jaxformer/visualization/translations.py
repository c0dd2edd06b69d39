"""The page of compared systems; :mod:`jaxformer.visualization.translations_table`
writes the same as text.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from jaxformer.evaluation.comparison import Comparison
from jaxformer.visualization.page import round_numbers, write_page
from jaxformer.visualization.translations_table import (
    DIGITS,
    length_buckets,
    word_buckets,
)


def write_html(comparison: Comparison, page: Path) -> Path:
    """Write a page with scores, tests, breakdowns and the sentences that differ most.

    The page is self-contained: it loads nothing, and translations are only text in it.

    Args:
        comparison: result of :func:`jaxformer.evaluation.comparison.compare`.
        page: the file to write; its directory is created.

    Returns:
        The file.
    """
    record = comparison.to_record()
    titles = {result.metric: result.score.name for result in comparison.results}
    data = {
        "systems": comparison.systems,
        "sentences": comparison.sentences,
        "config": record["config"],
        "wordSource": comparison.word_source,
        "metrics": [
            {
                "title": title,
                "digits": DIGITS,
                "results": [x for x in record["results"] if x["metric"] == key],
            }
            for key, title in titles.items()
        ],
        "lengths": [
            [asdict(bucket) for bucket in length_buckets(comparison, key)]
            for key in titles
        ],
        "words": [asdict(bucket) for bucket in word_buckets(comparison)],
        "differences": record["differences"],
    }
    return write_page(
        "translations", "Translations compared", round_numbers(data), page
    )
