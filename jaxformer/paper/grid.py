"""Tables of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def to_grid(
    header: Sequence[str], rows: Iterable[Sequence[str]], words: Sequence[int]
) -> str:
    """Lay out a table of Markdown whose columns are numbers, to the right, but for
    those of words.

    Args:
        header: of the columns.
        rows: cells, as many in each as the header has.
        words: the places of the columns of words.
    """
    aligned = ["---" if place in words else "---:" for place in range(len(header))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, aligned, *rows))
