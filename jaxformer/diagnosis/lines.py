"""The form of lines of text: tokenised, escaped, their quotes and their case."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

SPACED = re.compile(r"\S [,.](?= |$)")
"""A space before a comma or a full stop; French puts one only before ? ! : and ;."""

ESCAPED = re.compile(r"&(?:quot|apos|amp|lt|gt|#91|#93|#124);")
"""An entity of Moses' tokenizer."""

JOINED = re.compile(r"@-@|@@(?: |$)|##AT##|\u2581")
"""A mark of a tokenizer: ``@-@``, subword-nmt's ``@@`` or SentencePiece's ``▁``."""

_QUOTES = {'"': "plain", "«": "guillemets", "»": "guillemets"}
_CURLY = "„“”"
_FEWEST_QUOTES, _CLEAR = 10, 0.7
_FEWEST_LETTERS = 1_000

Item = TypeVar("Item")


def share(items: Sequence[Item], holds: Callable[[Item], object]) -> float:
    """Return the share of items that fulfil a condition; 0 without items."""
    return sum(bool(holds(item)) for item in items) / len(items) if items else 0.0


def quotes(lines: Sequence[str]) -> str | None:
    """Return the style of a text's quotation marks, or None if there are too few.

    Styles are ``plain``, ``guillemets``, ``low`` (opened by „, as in German), ``high``
    (“ ”, as in English) and ``mixed``.
    """
    found: Counter[str] = Counter()
    for line in lines:
        curly = sum(map(line.count, _CURLY))
        if curly:
            found["low" if "„" in line else "high"] += curly
        found.update(_QUOTES[letter] for letter in line if letter in _QUOTES)
    if found.total() < _FEWEST_QUOTES:
        return None
    style, count = found.most_common(1)[0]
    return style if count >= _CLEAR * found.total() else "mixed"


def capitals(lines: Sequence[str]) -> float | None:
    """Return the share of capitals among cased letters; None if these are few, or a
    minority.
    """
    text = "".join(lines)
    upper, lower, letters = (
        sum(map(kind, text)) for kind in (str.isupper, str.islower, str.isalpha)
    )
    cased = upper + lower
    return upper / cased if cased >= _FEWEST_LETTERS and 2 * cased > letters else None
