"""The form of lines of text: tokenised, escaped, their quotes and their case."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

# French puts a space before ? ! : and ;, but not before a comma or a full stop.
_SPACED = re.compile(r"\S [,.](?= |$)")
_ESCAPED = re.compile(r"&(?:quot|apos|amp|lt|gt|#91|#93|#124);")
_JOINED = re.compile(r"@-@|@@(?: |$)|##AT##|\u2581")
_QUOTES = {'"': "plain", "«": "guillemets", "»": "guillemets"}
_CURLY = "„“”"
_FEWEST_QUOTES, _CLEAR = 10, 0.7
_FEWEST_LETTERS = 1_000


def share(lines: Sequence[str], holds: Callable[[str], object]) -> float:
    """Return the share of lines that fulfil a condition; 0 without lines."""
    return sum(bool(holds(line)) for line in lines) / len(lines) if lines else 0.0


def spaced(lines: Sequence[str]) -> float:
    """Return the share with a space before a comma or a full stop."""
    return share(lines, _SPACED.search)


def escaped(lines: Sequence[str]) -> float:
    """Return the share with an entity of Moses' tokenizer, such as ``&quot;``."""
    return share(lines, _ESCAPED.search)


def joined(lines: Sequence[str]) -> float:
    """Return the share with marks of a tokenizer: ``@-@``, subword-nmt's ``@@`` or
    SentencePiece's ``▁``.
    """
    return share(lines, _JOINED.search)


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
