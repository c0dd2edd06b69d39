"""Text for a terminal: tables, and escaped control characters."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def escape_controls(text: str) -> str:
    r"""Escape the control characters of a text for a terminal, as JSON does.

    Tabs and line ends stay, and JSON stays the same JSON.

    Example:
        >>> print(escape_controls("\x1b[2Jred\x9b"))
        \u001b[2Jred\u009b
    """
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


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
