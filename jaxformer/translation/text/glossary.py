"""A glossary: terms whose translations are given."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from jaxformer.data.files import open_lines
from jaxformer.errors import InputError
from jaxformer.translation.paragraphs import UNSPACED

_PAIR = re.compile(r"([A-Za-z]\w+-[A-Za-z][\w-]+):(.+)", re.DOTALL)
# A character of a script without spaces between words; a word, whose vowel signs are no
# \w in Indic scripts; or a mark.
_TOKEN = re.compile(
    rf"[{UNSPACED}]|(?:[^\W{UNSPACED}]|[\u0900-\u0963\u0980-\u0dff])+|[^\w\s]"
)


class Glossary:
    """Terms and their translations.

    A term is found as whole words, with any white space between them; in scripts
    without spaces between words, anywhere. One that begins with a lower-case letter is
    also found with a capital, as at the beginning of a sentence; otherwise case counts.
    Of terms that overlap, the one that begins first is found, of these the longest.

    Example:
        >>> glossary = Glossary({"spreadsheet": "Tabelle", "text box": "Textfeld"})
        >>> glossary.terms_in("Spreadsheets, a spreadsheet and a text  box")
        ['Tabelle', 'Textfeld']
        >>> glossary.unmet("A text box in a spreadsheet", "Ein Textfeld in einer Tafel")
        ['Tabelle']
    """

    def __init__(self, terms: Mapping[str, str]) -> None:
        """Take the translation of each term."""
        self._translations = {_split(term): own for term, own in terms.items()}
        for term, own in terms.items():
            if term[:1].islower():
                capital = _split(term[0].upper() + term[1:])
                self._translations.setdefault(capital, own)
        self._longest = max(map(len, self._translations), default=0)

    def terms_in(self, text: str) -> list[str]:
        """Return the translations of the terms in a text, each once, in its order."""
        tokens, found, place = _split(text), dict[str, None](), 0
        while place < len(tokens):
            for stop in range(place + self._longest, place, -1):
                own = self._translations.get(tokens[place:stop])
                if own is not None:
                    found[own] = None
                    place = min(stop, len(tokens)) - 1
                    break
            place += 1
        return list(found)

    def unmet(self, text: str, translation: str) -> list[str]:
        """Return the translations of the terms in a text that its translation has not
        as whole words.
        """
        words = _join(translation)
        return [term for term in self.terms_in(text) if _join(term) not in words]


def read_terms(path: str | Path) -> dict[str, str]:
    """Read a file of lines with a term, a tab, and its translation, in UTF-8.

    Empty lines and lines that begin with ``#`` are passed over.

    Raises:
        InputError: the file cannot be read, has no term, one twice, or a line of
            another form.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(open_lines([path], empty=True), 1):
        if line.strip() and not line.startswith("#"):
            term, translation = map(str.strip, f"{line}\t".split("\t", 1))
            if not term or not translation or "\t" in translation:
                raise InputError(
                    f"{path}, line {number} must be a term, a tab, and its translation,"
                    f" not {line!r}"
                )
            if found.setdefault(term, translation) != translation:
                raise InputError(
                    f"{path}, line {number} has the term {term!r} of an earlier line:"
                    " leave one out"
                )
    if not found:
        raise InputError(f"{path} has no terms: add one")
    return found


def load_glossaries(names: Sequence[str]) -> dict[str, Glossary]:
    """Read glossaries, each of a pair of languages.

    Args:
        names: ``FILE`` or ``PAIR:FILE``, of a pair such as ``en-de``.

    Returns:
        By pair; that of no pair by an empty text.

    Raises:
        InputError: a file cannot be read, or a pair has two.
    """
    found: dict[str, Glossary] = {}
    for name in names:
        match = _PAIR.fullmatch(name)
        pair, path = match.groups() if match else ("", name)
        if pair in found:
            raise InputError(
                f"--glossary must be of one file for each pair, and {name} is another"
                f" for {pair or 'it'}: put the terms into one file"
            )
        found[pair] = Glossary(read_terms(path))
    return found


def _split(text: str) -> tuple[str, ...]:
    return tuple(_TOKEN.findall(text))


def _join(text: str) -> str:
    """Return the words of a text between line feeds, which occur in none."""
    return "\n".join(("", *_split(text), ""))
