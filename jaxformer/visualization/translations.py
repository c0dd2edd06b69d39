"""The page of compared systems; :mod:`jaxformer.visualization.translations_table`
writes the same as text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jaxformer.evaluation.comparison import Comparison
from jaxformer.visualization.page import write_page
from jaxformer.visualization.translations_table import DIGITS, format_range


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
            [
                {
                    "label": format_range(bucket.least, bucket.most),
                    "count": bucket.sentences,
                    "values": [scores[key] for scores in bucket.scores],
                }
                for bucket in comparison.lengths
            ]
            for key in titles
        ],
        "words": [
            {
                "label": format_range(bucket.least, bucket.most),
                "count": bucket.words,
                "values": list(bucket.f1),
            }
            for bucket in comparison.words
        ],
        "differences": record["differences"],
    }
    return write_page("translations", "Translations compared", _rounded(data), page)


def _rounded(data: Any) -> Any:
    """Round every number to six digits."""
    if isinstance(data, float):
        return float(f"{data:.6g}")
    if isinstance(data, dict):
        return {key: _rounded(value) for key, value in data.items()}
    return (
        [_rounded(value) for value in data] if isinstance(data, (list, tuple)) else data
    )
