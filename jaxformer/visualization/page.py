"""Write the pages for the browser: one file each, which loads nothing.

``pages/page.html`` is the frame of every page. The style sheets and scripts that it
names are inlined, and the data of a page go in as JSON.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from jaxformer.files import write_whole

_PAGES = Path(__file__).with_name("pages")
_STYLE = re.compile(r'<link rel="stylesheet" href="(.+)">')
_SCRIPT = re.compile(r'<script src="(.+)"></script>')


def write_page(name: str, title: str, data: object, path: Path) -> Path:
    """Write a page with its style, its script and its data, and return the file.

    Args:
        name: of its files in the folder ``pages``.
        title: of the page before its script runs.
        data: what its script reads, of dicts, lists, text and numbers.
        path: the file to write; its directory is created.
    """
    page = _read("page.html").replace("{name}", name).replace("{title}", title)
    page = page.replace("{body}", _read(f"{name}.html"))
    page = _STYLE.sub(lambda link: f"<style>\n{_read(link[1])}</style>", page)
    page = _SCRIPT.sub(lambda link: f"<script>\n{_read(link[1])}</script>", page)
    content = json.dumps(data, separators=(",", ":"))
    # Escaped like this, no text can end the element that holds the data.
    for sign in "<>&":
        content = content.replace(sign, f"\\u{ord(sign):04x}")
    page = page.replace("{data}", content)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, page)
    return path


def round_numbers(data: Any) -> Any:
    """Round every number of the data of a page to six digits."""
    if isinstance(data, float):
        return float(f"{data:.6g}")
    if isinstance(data, dict):
        return {key: round_numbers(value) for key, value in data.items()}
    is_list = isinstance(data, (list, tuple))
    return [round_numbers(value) for value in data] if is_list else data


def _read(name: str) -> str:
    return (_PAGES / name).read_text(encoding="utf-8")
