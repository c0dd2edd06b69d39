"""Rules by which SentencePiece normalises text, as tables of its form.

A line of a table has a text and its replacement, each as the hexadecimal numbers of its
characters, with a tab between them. SentencePiece replaces the longest match.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from unicodedata import normalize

KNOWN = ("nmt_nfkc", "nfkc", "nmt_nfkc_cf")
"""The names of SentencePiece's own rules."""


def identity() -> dict[str, str]:
    """Return the rules that only clean a line: other separators of lines, tabs, and
    SentencePiece's sign for a space become a space, and control characters nothing.
    """
    # NUL has no place in SentencePiece's table.
    rules = dict.fromkeys(map(chr, (*range(1, 32), *range(127, 160))), "")
    blanks = [each for each in rules if each.isspace()]
    return rules | dict.fromkeys([*blanks, "\u2028", "\u2029", "▁"], " ")


def nfc() -> dict[str, str]:
    """Return the rules of :func:`identity`, and those that compose letters with their
    marks in any order, and jamo to Hangul syllables (Unicode NFC).

    Marks that compose with no letter keep their order.
    """
    rules = identity()
    for character in map(chr, range(0xA0, 0x110000)):
        composed, parts = (normalize(form, character) for form in ("NFC", "NFD"))
        if parts == character:
            continue
        for each in map("".join, itertools.permutations(parts)):
            for stop in range(len(each) + 1):
                text = normalize("NFC", each[:stop]) + each[stop:]
                if normalize("NFC", text) == composed != text:
                    rules[text] = composed
        if composed != character:
            rules[character] = composed
    return rules


TABLES = {"identity": identity, "nfc": nfc}
"""The rules that SentencePiece does not have."""


def write(rules: Mapping[str, str]) -> str:
    """Return the table of rules."""
    return "".join(
        f"{_numbers(text)}\t{_numbers(replacement)}\n"
        for text, replacement in rules.items()
    )


def _numbers(text: str) -> str:
    return " ".join(f"{ord(character):X}" for character in text)
