"""Build pairs from records with named fields; suggest names for wrong ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from jaxformer.data.language_codes import find_language
from jaxformer.errors import InputError, did_you_mean


class Pair(NamedTuple):
    """A sentence and its translation, as raw text."""

    source: str
    target: str


def pair_of(record: object, languages: tuple[str, str], place: str) -> Pair:
    """Return the pair of two languages in a record.

    Its fields are the languages, at the top (``{"en": ..., "de": ...}``) or under
    ``translation`` (the form of Hugging Face); other fields are ignored. Bytes are
    UTF-8. A field may have another code of its language, ``en`` for ``eng_Latn``.

    Example:
        >>> record = {"id": 7, "de": "Hallo.", "en": "Hello."}
        >>> pair_of(record, ("en", "de"), "line 1")
        Pair(source='Hello.', target='Hallo.')

    Raises:
        InputError: a field is missing or is not text; it begins with ``place``.
    """
    if not isinstance(record, Mapping):
        raise InputError(
            f"{place}: needs an object with the fields {languages[0]!r} and"
            f" {languages[1]!r}"
        )
    nested = record.get("translation")
    if isinstance(nested, Mapping) and not has_languages(record, languages):
        record = nested
    return Pair(*(_text(record, language, place, "language") for language in languages))


def has_languages(record: Mapping[str, object], languages: tuple[str, str]) -> bool:
    """Return whether a record has a field for each language."""
    return all(find_language(each, record.keys()) for each in languages)


def read_field(record: object, name: str, place: str) -> str:
    """Return the text of a field.

    Raises:
        InputError: it is missing or is not text; it begins with ``place``.
    """
    if not isinstance(record, Mapping):
        raise InputError(f"{place}: needs an object with the field {name!r}")
    return _text(record, name, place, "field")


def _text(record: Mapping[str, object], language: str, place: str, what: str) -> str:
    """Return the text of one language or field."""
    field = find_language(language, record.keys()) if what == "language" else language
    if field is None or field not in record:
        names = [str(name) for name in record]
        raise InputError(
            f"{place}: no {what} {language!r}: the fields are"
            f" {', '.join(names) or 'none'}{did_you_mean(language, names)}"
        )
    text = record[field]
    if not isinstance(text, str | bytes):
        raise InputError(
            f"{place}: field {field!r} holds {type(text).__name__} and not text;"
            " mend or remove the record"
        )
    try:
        text = text.decode("utf-8") if isinstance(text, bytes) else text
        text.encode("utf-8")  # JSON can escape half of a surrogate pair
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        raise InputError(
            f"{place}: field {field!r} is not UTF-8 ({error.reason}); mend or remove"
            " the record"
        ) from None
    return text
