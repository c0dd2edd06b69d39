"""Build pairs from records with named fields; suggest names for wrong ones."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from jaxformer.errors import InputError


class Pair(NamedTuple):
    """A sentence and its translation, as raw text."""

    source: str
    target: str


def pair_of(record: object, source_language: str, target_language: str) -> Pair:
    """Return the pair of two languages in a record.

    Its fields are the languages, at the top (``{"en": ..., "de": ...}``) or under
    ``translation`` (the form of Hugging Face); other fields are ignored. Bytes are
    UTF-8.

    Example:
        >>> pair_of({"id": 7, "de": "Hallo.", "en": "Hello."}, "en", "de")
        Pair(source='Hello.', target='Hallo.')

    Raises:
        InputError: a field is missing or is not text. The caller adds the place of the
            record.
    """
    if not isinstance(record, Mapping):
        raise InputError(
            f"needs an object with the fields {source_language!r} and"
            f" {target_language!r}"
        )
    nested = record.get("translation")
    if isinstance(nested, Mapping) and not (
        source_language in record and target_language in record
    ):
        record = nested
    return Pair(_text(record, source_language), _text(record, target_language))


def _text(record: Mapping[str, object], language: str) -> str:
    """Return the text of one language."""
    if language not in record:
        names = [str(name) for name in record]
        raise InputError(
            f"no language {language!r}: the fields are"
            f" {', '.join(names) or 'none'}{did_you_mean(language, names)}"
        )
    text = record[language]
    if isinstance(text, bytes):
        try:
            return text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"field {language!r} is not UTF-8 ({error.reason}); convert the text to"
                " UTF-8"
            ) from None
    if not isinstance(text, str):
        raise InputError(
            f"field {language!r} holds {type(text).__name__} and not text; mend or"
            " remove the record"
        )
    check_encodable(text, f"field {language!r}")
    return text


def check_encodable(text: str, name: str) -> None:
    """Refuse text with half of a surrogate pair: JSON can escape it, UTF-8 has none.

    Raises:
        InputError: it has one; ``name`` names the text.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        half = f"U+{ord(text[error.start]):04X}"
        raise InputError(
            f"{name} has {half}, half of a surrogate pair and no character; mend or"
            " remove it"
        ) from None


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return the question that ends an error if one of the names is near, else "".

    Example:
        >>> did_you_mean("wmt41", ["wmt13", "wmt14"])
        '; did you mean wmt14?'
    """
    near = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {near[0]}?" if near else ""
