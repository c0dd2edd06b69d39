"""The pages of the documentation and their fenced blocks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [str(path.relative_to(ROOT)) for path in PAGES]

WIDEST = 99
"""Characters of a line of code that the site shows in a window of 1,300 pixels.

Measured in Chromium with DejaVu Sans Mono: 7.19 pixels a character; a page has room for
102, a docstring in the reference for 99.
"""

_FENCE = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+) -->\n)?^(?P<indent>"
    r" *)```(?P<kind>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    """A fenced block: its page, line and kind, why it is not run, and the file that it
    is part of.
    """

    page: str
    line: int
    kind: str
    text: str
    reason: str | None
    file: str | None = None


def read_blocks(page: str, text: str) -> list[Block]:
    """Read the blocks of a page."""
    blocks = []
    for found in _FENCE.finditer(text):
        inner = re.sub(rf"^{found['indent']}", "", found["text"], flags=re.MULTILINE)
        line = text.count("\n", 0, found.start("text")) + 1
        kind, _, rest = found["kind"].strip().partition(" ")
        part = re.fullmatch(r'title="([^"]+)"', rest)
        blocks.append(
            Block(
                page,
                line,
                kind if part or not rest else found["kind"],
                inner,
                found["reason"],
                part and part[1],
            )
        )
    return blocks


def all_blocks() -> list[Block]:
    """Read the blocks of all pages."""
    blocks: list[Block] = []
    for name, path in zip(NAMES, PAGES, strict=True):
        blocks += read_blocks(name, path.read_text(encoding="utf-8"))
    return blocks
