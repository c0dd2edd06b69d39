"""What single lines of text look like: tokenised, escaped, in which quotes and in
which case.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

Share = float

# French puts a space before ? ! : and ;, nobody puts one before a comma or a full stop.
_SPACED = re.compile(r"\S [,.](?= |$)")
_ESCAPED = re.compile(r"&(?:quot|apos|amp|lt|gt|#91|#93|#124);")
_JOINED = re.compile(r"@-@|@@(?: |$)|##AT##|\u2581")
_QUOTES = {'"': "plain", "«": "guillemets", "»": "guillemets"}
_CURLY = "„“”"
_FEWEST_QUOTES, _CLEAR = 10, 0.7
_FEWEST_LETTERS = 1_000


def share(lines: Sequence[str], holds: Callable[[str], object]) -> Share:
    """Return the share of lines of which something holds; 0 of none."""
    return sum(bool(holds(line)) for line in lines) / len(lines) if lines else 0.0


def spaced(lines: Sequence[str]) -> Share:
    """Return the share with a space before a comma or a full stop, as tokenised text
    has it.
    """
    return share(lines, _SPACED.search)


def escaped(lines: Sequence[str]) -> Share:
    """Return the share with an entity such as ``&quot;`` or ``&apos;``, as Moses'
    tokenizer writes them.
    """
    return share(lines, _ESCAPED.search)


def joined(lines: Sequence[str]) -> Share:
    """Return the share with marks that a tokenizer leaves: ``@-@``, ``@@`` of
    subword-nmt, SentencePiece's ``▁``.
    """
    return share(lines, _JOINED.search)


def quotes(lines: Sequence[str]) -> str | None:
    """Name the quotation marks of a text; None where it has too few.

    They are ``plain``, ``guillemets``, ``low`` (opened by „, as in German) or ``high``
    (“ ”, as in English): “ closes the one and opens the other, and the line tells
    which.
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


def capitals(lines: Sequence[str]) -> Share | None:
    """Return the share of capitals among the letters that have a case; None where
    these are few, or fewer than others.
    """
    upper = sum(letter.isupper() for line in lines for letter in line)
    lower = sum(letter.islower() for line in lines for letter in line)
    letters = sum(letter.isalpha() for line in lines for letter in line)
    cased = upper + lower
    return upper / cased if cased >= _FEWEST_LETTERS and 2 * cased > letters else None
