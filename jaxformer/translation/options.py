"""What a caller may ask of a search: the options that the methods of a translator
take beside their texts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias, TypedDict

from jaxformer.errors import InputError
from jaxformer.search.config import MOST_BEAM, DecodingConfig
from jaxformer.translation.batch import check_beam

Prefixes: TypeAlias = Iterable[str | Sequence[str]] | None
"""What the translation of each line begins with: one text, or several of which it is
one.
"""

Required: TypeAlias = Iterable[Sequence[str]] | None
"""Phrases that the translation of each line holds."""


class SearchOptions(TypedDict, total=False):
    """How to search: what
    :meth:`~jaxformer.translation.translator.Translator.translate` takes.
    """

    beam_size: int | None
    """Hypotheses alive at a time; by default that of ``decoding``."""
    alpha: float | None
    """Strength of the length penalty; by default that of ``decoding``."""
    decoding: DecodingConfig | None
    """How to search; by default as the run says."""
    ban: Sequence[str]
    """Words or phrases that no translation holds as the vocabulary spells them: at the
    begin of a word, and small ones with a capital first letter too; see
    :meth:`~jaxformer.translation.codec.Codec.banned`.
    """
    prefixes: Prefixes
    """What the translation of each sentence begins with, as text; an empty one asks for
    nothing. Its last word may go on, and what is banned may stand in it. Several, in a
    list, are alternatives. Of a sentence that is split, the first part has it; a blank
    sentence stays empty.
    """
    required: Required
    """Words or phrases that the translation of each sentence holds, in any order, as
    the vocabulary spells them at the begin of a word; they need a beam of at least 2.
    Of a sentence that is split, the first part has them.
    """
    paragraphs: bool
    """Whether each text is cut into sentences, which are translated alone and put
    together again with the white space that was between them; by default not.
    """


class ResultOptions(SearchOptions, total=False):
    """How to search, and what to give of what is found; for the methods that give
    hypotheses.
    """

    n_best: int
    """Translations of each sentence, at most ``beam_size``; or how many are drawn.
    By default 1.
    """
    alignment: bool
    """Whether each translation comes with where the model looked in the source; by
    default not.
    """
    alignment_layer: int | None
    """Of the decoder, counted from 1, whose attention that is; by default the one
    before the last.
    """


def check_names(
    method: str, options: Mapping[str, object], known: type[SearchOptions]
) -> None:
    """Refuse what is no option of a method, as Python does where a signature lists
    them.

    Raises:
        TypeError: an option is unknown; it is named.
    """
    for name in options:
        if name not in known.__optional_keys__:
            raise TypeError(f"{method}() got an unexpected keyword argument {name!r}")


def resolve(
    texts: object, options: ResultOptions, own: DecodingConfig
) -> DecodingConfig:
    """Check what can be checked before any text is read, and give how to search.

    Args:
        texts: to translate, as they were given.
        options: of the call.
        own: how the run says to search.

    Raises:
        InputError: one string in place of a list, or a value out of range.
    """
    ban = options.get("ban", ())
    lists = {
        "texts": texts,
        "ban": ban,
        "prefixes": options.get("prefixes"),
        "required": options.get("required"),
    }
    for name, given in lists.items():
        if isinstance(given, str):  # a list of letters, to Python
            raise InputError(
                f"{name} must be a list, not one string: put it in a list,"
                f" [{given[:20]!r}]"
            )
    for place, text in enumerate(ban):
        check_text(f"ban[{place}]", text)
    beam_size, alpha, n_best = (
        options.get("beam_size"),
        options.get("alpha"),
        options.get("n_best", 1),
    )
    chosen = {
        name: value
        for name, value in (("beam_size", beam_size), ("alpha", alpha))
        if value is not None
    }
    decoding = dataclasses.replace(options.get("decoding") or own, **chosen)
    if n_best > MOST_BEAM:
        raise InputError(f"n_best must be at most {MOST_BEAM:,}, not {n_best}")
    if n_best < 1 or (n_best > decoding.beam_size and not decoding.sample):
        most = (
            "" if decoding.sample else f" and at most the beam of {decoding.beam_size}"
        )
        cure = "" if n_best < 1 else f"; a beam_size of {n_best} gives as many"
        raise InputError(f"n_best must be at least 1{most}, not {n_best}{cure}")
    if options.get("required") is not None:
        check_beam(decoding)
    if options.get("alignment_layer") is not None and not options.get("alignment"):
        raise InputError(
            "an alignment layer is for alignments: ask for them too, or leave it out"
        )
    return decoding


def gather(options: ResultOptions, sentences: int) -> tuple[Prefixes, Required]:
    """Return the prefixes and the required phrases of a list of sentences.

    Raises:
        InputError: there are more of them than sentences, or fewer.
    """
    prefixes, required = options.get("prefixes"), options.get("required")
    prefixes, required = (
        None if given is None else list(given) for given in (prefixes, required)
    )
    for name, given in (
        ("prefixes", prefixes),
        ("lists of required phrases", required),
    ):
        if given is not None and len(given) != sentences:
            raise InputError(
                f"there are {len(given)} {name} for {sentences} sentences: give one for"
                " each, empty where nothing is asked for"
            )
    return prefixes, required


def check_text(name: str, value: object) -> None:
    """Refuse what is no text.

    Raises:
        InputError: it is no string; ``name`` says which argument it is.
    """
    if not isinstance(value, str):
        raise InputError(
            f"{name} must be a string, not {type(value).__name__}: give text, '' where"
            " there is none"
        )


def check_phrases(name: str, given: object) -> tuple[str, ...]:
    """Return the phrases of one sentence, of which one may stand alone.

    Raises:
        InputError: it is neither a string nor a list of strings; ``name`` says which
            argument it is.
    """
    if isinstance(given, str):
        return (given,)
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise InputError(
            f"{name} must be a string or a list of strings, not {type(given).__name__}"
        )
    phrases = tuple(given)
    for place, text in enumerate(phrases):
        check_text(f"{name}[{place}]", text)
    return phrases
