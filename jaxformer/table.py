"""Tables for a terminal."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence


def align(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    r"""Align the cells of rows: the first column to the left, others to the right.

    A row may be short.

    Yields:
        A line for each row, without blanks at its end.

    Example:
        >>> rows = [["system", "BLEU"], ["ours", "27.3"], ["a longer name", "9.1"]]
        >>> print("\n".join(align(rows)))
        system         BLEU
        ours           27.3
        a longer name   9.1
    """
    columns = itertools.zip_longest(*rows, fillvalue="")
    widths = [max(map(len, column)) for column in columns]
    for row in rows:
        cells = [
            f"{cell:<{width}}" if place == 0 else f"{cell:>{width}}"
            for place, (cell, width) in enumerate(zip(row, widths, strict=False))
        ]
        yield "  ".join(cells).rstrip()
