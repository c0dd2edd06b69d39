"""A glossary: terms whose translations are given."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from jaxformer.data.files import read_lines
from jaxformer.errors import InputError
from jaxformer.translation.paragraphs import is_unspaced

_TOKEN = re.compile(r"\w+|[^\w\s]")


class Glossary:
    """Terms and their translations.

    A term is found as whole words, with any white space between them. One that begins
    with a lower-case letter is also found with a capital, as at the beginning of a
    sentence; otherwise case counts. Of terms that overlap, the one that begins first
    is found, of these the longest.

    Example:
        >>> glossary = Glossary({"spreadsheet": "Tabelle", "text box": "Textfeld"})
        >>> glossary.terms_in("Spreadsheets, a spreadsheet and a text  box")
        ['Tabelle', 'Textfeld']
        >>> glossary.unmet("A text box in a spreadsheet", "Ein Textfeld in einer Tafel")
        ['Tabelle']
    """

    def __init__(self, terms: Mapping[str, str]) -> None:
        """Take the translation of each term."""
        self._translations: dict[tuple[str, ...], str] = {}
        for term, translation in terms.items():
            self._translations[tuple(_tokens(term))] = translation
            if term[:1].islower():
                capital = tuple(_tokens(term[0].upper() + term[1:]))
                self._translations.setdefault(capital, translation)
        # The lengths of the terms that begin with each token, the longest first.
        lengths: dict[str, set[int]] = {}
        for tokens in self._translations:
            lengths.setdefault(tokens[0], set()).add(len(tokens))
        self._lengths = {
            token: sorted(own, reverse=True) for token, own in lengths.items()
        }

    @classmethod
    def load(cls, path: str | Path) -> Glossary:
        """Read a file of lines with a term, a tab, and its translation, in UTF-8.

        Empty lines and lines that begin with ``#`` are passed over.

        Raises:
            InputError: the file cannot be read or has no term; a line has another form,
                or the term of another line.
        """
        terms: dict[str, str] = {}
        for number, line in enumerate(read_lines(path), start=1):
            if not line.strip() or line.startswith("#"):
                continue
            term, *rest = map(str.strip, line.split("\t"))
            if not _TOKEN.search(term) or len(rest) != 1 or not rest[0]:
                raise InputError(
                    f"{path}, line {number} must be a term, a tab, and its translation,"
                    f" not {line!r}"
                )
            if term in terms:
                raise InputError(
                    f"{path}, line {number} has the term {term!r} of an earlier line:"
                    " leave one out"
                )
            terms[term] = rest[0]
        if not terms:
            raise InputError(f"{path} has no terms: add one")
        return cls(terms)

    def terms_in(self, text: str) -> list[str]:
        """Return the translations of the terms in a text, each once, in its order."""
        tokens, found, place = list(_tokens(text)), {}, 0
        while place < len(tokens):
            for length in self._lengths.get(tokens[place], ()):
                own = self._translations.get(tuple(tokens[place : place + length]))
                if own is not None:
                    found[own] = None
                    place += length
                    break
            else:
                place += 1
        return list(found)

    def unmet(self, text: str, translation: str) -> list[str]:
        """Return the translations of the terms in a text that its translation has not
        as whole words.
        """
        words = _join(translation)
        return [term for term in self.terms_in(text) if _join(term) not in words]


def _join(text: str) -> str:
    """Return the words of a text between line feeds, which occur in none."""
    return "\n".join(("", *_tokens(text), ""))


def _tokens(text: str) -> Iterator[str]:
    """Yield the words, marks, and characters of scripts without spaces."""
    for token in _TOKEN.findall(text):
        start = 0
        for place, character in enumerate(token):
            if is_unspaced(character):
                if place > start:
                    yield token[start:place]
                yield character
                start = place + 1
        if start < len(token):
            yield token[start:]
