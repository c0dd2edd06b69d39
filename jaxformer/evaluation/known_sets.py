"""Published test sets: their names within names of data sets, and their sizes."""

from __future__ import annotations

import re
import types
from collections.abc import Mapping

SENTENCES: Mapping[str, int] = types.MappingProxyType(
    {"newstest2013": 3_000, "newstest2014": 3_003, "section 23": 2_416}
)
"""Sentences of each set; section 23 is of the Wall Street Journal."""

FILTERED_NEWSTEST2014 = 2_737
"""Sentences of the filtered English-German newstest2014, sacreBLEU's wmt14 (mtdata
issue 3).
"""

_FILES = ("text", "tsv", "jsonl")
_NEWSTEST = re.compile(r"newstest(?:20)?(\d\d)(?!\d)")
# Hindi has a newstest2014 of its own, of another size.
_HINDI = re.compile(r"(?<![a-z])(?:en-?)?hi(?:-?en)?(?![a-z])")
_SECTION_23 = re.compile(r"(?<![a-z0-9])(?:wsj|sec(?:tion)?)[-_.]?23(?!\d)|^23(?:\.|$)")
# Names in packages.
_SPLITS = (
    (re.compile(r"(?:tfds|hf):.*wmt14.*/test\b"), "newstest2014"),
    (re.compile(r"(?:tfds|hf):.*wmt14.*/validation\b"), "newstest2013"),
    (re.compile(r"sacrebleu:wmt14(?:/full)?(?![\w/])"), "newstest2014"),
    (re.compile(r"sacrebleu:wmt13(?![\w/])"), "newstest2013"),
)


def find_known(dataset: str) -> str | None:
    """Return the published test set that a data set's name means, or None.

    Folders of files do not count, and all files must name the same set.

    Example:
        >>> find_known("text:data/wmt14/newstest2013.en,data/wmt14/newstest2013.de")
        'newstest2013'
        >>> find_known("sacrebleu:wmt14/full")
        'newstest2014'
    """
    kind, _, rest = dataset.lower().strip().partition(":")
    if kind in _FILES:
        found = {
            _find_in_file(path.rpartition("/")[2].strip()) for path in rest.split(",")
        }
        return found.pop() if len(found) == 1 else None
    name = f"{kind}:{rest}"
    if _HINDI.search(rest):
        return None
    return next(
        (known for pattern, known in _SPLITS if pattern.match(name)), None
    ) or _find_newstest(rest)


def _find_in_file(name: str) -> str | None:
    if _SECTION_23.search(name):
        return "section 23"
    return None if _HINDI.search(name) else _find_newstest(name)


def _find_newstest(name: str) -> str | None:
    years = set(_NEWSTEST.findall(name))
    return f"newstest20{years.pop()}" if len(years) == 1 else None
