"""Plain text for people: tables, and characters that a terminal would obey."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def escape_controls(text: str) -> str:
    r"""Write control characters as JSON does, since a terminal obeys them; tabs and
    line ends stay.

    Args:
        text: for a terminal. It may be JSON, and stays the same JSON.

    Example:
        >>> print(escape_controls("\x1b[2Jred\x9b"))
        \u001b[2Jred\u009b
    """
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def align(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    r"""Set rows of cells under each other, names to the left and numbers to the right;
    a row may be short.

    Args:
        rows: the head of the table and its lines, of which the first cell is a name.

    Yields:
        A line for each row, without blanks at its end.

    Example:
        >>> print("\n".join(align([["system", "BLEU"], ["ours", "27.3"], ["a longer name", "9.1"]])))
        system         BLEU
        ours           27.3
        a longer name   9.1
    """
    columns = max(map(len, rows))
    widths = [
        max((len(row[place]) for row in rows if place < len(row)), default=0)
        for place in range(columns)
    ]
    for row in rows:
        cells = [
            f"{cell:<{width}}" if place == 0 else f"{cell:>{width}}"
            for place, (cell, width) in enumerate(zip(row, widths, strict=False))
        ]
        yield "  ".join(cells).rstrip()
