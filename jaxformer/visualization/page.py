"""What all pages have in common: they load nothing, and data go into them as text
that nothing can break out of.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jaxformer.files import write_whole

DATA_SLOT = "{{data}}"
"""Where a template wants its data."""

# The policy lets a page load nothing at all.
_HEAD = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
      content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>{{title}}</title>
"""


def begin(title: str) -> str:
    """Return the first lines of a page, with its title as HTML; its style is to
    follow.
    """
    return _HEAD.replace("{{title}}", title)


def write_page(template: str, data: Any, page: Path) -> Path:
    """Write a page with its data, which its script reads as JSON.

    Args:
        template: the page, with :data:`DATA_SLOT` inside an element that holds JSON.
        data: plain dicts, lists, text and numbers.
        page: the file to write; its directory is created.

    Returns:
        The file.
    """
    content = json.dumps(data, separators=(",", ":"))
    # escaped in this way no text can end the element that holds the data
    for sign in "<>&":
        content = content.replace(sign, f"\\u{ord(sign):04x}")
    head, tail = template.rsplit(DATA_SLOT, 1)
    page.parent.mkdir(parents=True, exist_ok=True)
    write_whole(page, head + content + tail)
    return page
