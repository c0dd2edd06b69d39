"""The options of a search, and the lines that it reads: what the methods of a
translator take.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias, TypedDict

from jaxformer.errors import InputError, LineError
from jaxformer.search.config import MOST_BEAM, MOST_COUNTED, DecodingConfig

_END = object()

# A window ends with the line that brings it to so many characters, so that very long
# lines do not fill the memory.
_CHARACTERS = 1 << 22

Prefixes: TypeAlias = Iterable[str | Sequence[str]] | None
"""What the translation of each line begins with: a text, or one of several."""

Required: TypeAlias = Iterable[Sequence[str]] | None
"""Phrases that the translation of each line contains."""


class SearchOptions(TypedDict, total=False):
    """How to search: the options of
    :meth:`~jaxformer.translation.translator.Translator.translate`.
    """

    beam_size: int | None
    """Hypotheses alive at a time; by default that of ``decoding``."""
    alpha: float | None
    """Strength of the length penalty; by default that of ``decoding``."""
    decoding: DecodingConfig | None
    """How to search; by default as the run says."""
    ban: Sequence[str]
    """Words or phrases that no translation contains as the vocabulary spells them: at
    the beginning of a word, and lower-case ones with a capital first letter too; see
    :meth:`~jaxformer.translation.codec.Codec.banned`.
    """
    prefixes: Prefixes
    """What the translation of each sentence begins with, as text; an empty one is no
    constraint. Its last word may continue, and it may contain banned words. Several in
    a list are alternatives. If a sentence is split, the first part has them; a blank
    sentence stays empty.
    """
    required: Required
    """Words or phrases that the translation of each sentence contains, in any order, as
    the vocabulary spells them at the beginning of a word. They need ``beam_size`` of 2
    or more. If a sentence is split, the first part has them.
    """
    paragraphs: bool
    """Whether each text is cut into sentences, which are translated one by one and
    joined by the white space that was between them; by default not.
    """
    format: Literal["text", "html"]
    """Whether each text is an HTML document or a part of one, whose tags are kept; by
    default ``text``.
    """
    glossary: Mapping[str, str] | None
    """The translation of each term, which is required of the sentences that have the
    term where the vocabulary can write it. It needs ``beam_size`` of 2 or more.
    """
    placeholders: bool
    """Whether placeholders such as ``{name}`` and ``%s``, addresses and tags come back
    as they are; by default not. In HTML they always do.
    """


class ResultOptions(SearchOptions, total=False):
    """How to search, and what to return: the options of the methods that return
    hypotheses.
    """

    n_best: int
    """Translations of a sentence, at most ``beam_size``, or samples; by default 1."""
    alignment: bool
    """Whether each translation has its alignment to the source; by default not."""
    alignment_layer: int | None
    """Decoder layer, counted from 1, whose attention that is; by default the one before
    the last.
    """


def check_lists(
    texts: object, ban: Sequence[str], prefixes: object, required: object
) -> None:
    """Check that the lists of a call are not strings, and that banned words are.

    Raises:
        InputError: one string in place of a list, or a banned word of another type.
    """
    given = {"texts": texts, "ban": ban, "prefixes": prefixes, "required": required}
    for name, value in given.items():
        if isinstance(value, str):  # to Python, a list of letters
            raise InputError(
                f"{name} must be a list, not one string: put it in a list,"
                f" [{value[:20]!r}]"
            )
    check_phrases("ban", ban)


def check_results(
    decoding: DecodingConfig, n_best: int, required: Required, window: int | None
) -> None:
    """Check what a call asks for against its search.

    Raises:
        InputError: a value is out of range, or two values contradict each other.
    """
    most, source, cure = decoding.beam_size, "the beam", ": widen beam_size, or sample"
    if decoding.sample:
        most, source, cure = MOST_BEAM, "the most samples", ""
    if not 1 <= n_best <= most:
        raise InputError(
            f"n_best must be from 1 to {most:,}, {source}, not {n_best}{cure}"
        )
    least = 2 * decoding.diversity_groups
    if required is not None and (decoding.sample or decoding.beam_size < least):
        raise InputError(
            f"required phrases and glossaries need a beam_size of at least {least}, not"
            f" {'samples' if decoding.sample else decoding.beam_size}"
        )
    if window is not None and not 1 <= window <= MOST_COUNTED:
        raise InputError(
            f"a window must have from 1 to {MOST_COUNTED:,} sentences, not {window}"
        )


def choose_layer(alignment: bool, layer: int | None, layers: int) -> int | None:
    """Return the decoder layer whose attention aligns, counted from 1; None without
    alignment.

    By default the one before the last, which aligns best in the paper's model of six
    (Garg et al. 2019, "Jointly Learning to Align and Translate with Transformer
    Models"); of two layers the last.

    Raises:
        InputError: there is no such layer, no attention to a source, or no alignment is
            asked for.
    """
    if not alignment:
        if layer is not None:
            raise InputError(
                "an alignment layer is for alignments: ask for them too, or leave it"
                " out"
            )
        return None
    if not layers:
        raise InputError(
            "this model has no attention to its source, so no alignments, HTML or"
            " attention maps"
        )
    if layer is None:
        return layers - 1 if layers > 2 else layers
    if not 1 <= layer <= layers:
        raise InputError(
            f"the decoder has layers 1 to {layers}, not {layer}: choose another"
            " alignment layer"
        )
    return layer


class SourceLine(NamedTuple):
    """A line to translate."""

    place: int
    """How many lines came before it."""
    text: str
    prefixes: tuple[str, ...] = ()
    """Its translation begins with one of these; empty: no prefix."""
    required: tuple[str, ...] = ()
    """Phrases that its translation contains."""


def number_lines(
    texts: Iterable[str], prefixes: Prefixes, required: Required = None
) -> Iterator[SourceLine]:
    """Number lines lazily, each with its prefixes and required phrases.

    Raises:
        InputError: there are more prefixes or required phrases than lines, or fewer, or
            something is not a string.
    """
    given = {"prefixes": prefixes, "required": required}
    lists = {kind: iter(values) for kind, values in given.items() if values is not None}
    for count, text in enumerate(itertools.chain(texts, [_END])):
        own = {kind: next(values, _END) for kind, values in lists.items()}
        for kind, found in own.items():
            if (found is _END) != (text is _END):
                fault = (
                    f"is {'missing' if found is _END else 'one too many'}: give one for"
                    " each sentence, empty where nothing is asked for"
                )
                raise LineError(
                    f"{kind}[{count}] {fault}", kind=kind, number=count + 1, fault=fault
                )
        if text is not _END:
            yield SourceLine(
                count,
                check_text(f"texts[{count}]", text),
                **{
                    kind: check_phrases(f"{kind}[{count}]", found)
                    for kind, found in own.items()
                },
            )


def windows(
    lines: Iterable[SourceLine], size: int, pause: Callable[[], bool] = lambda: False
) -> Iterator[list[SourceLine]]:
    """Group lines into windows of at most ``size``, lazily. A window also ends where
    ``pause``, which is called after each line, returns True.
    """
    window: list[SourceLine] = []
    characters = 0
    for line in lines:
        window.append(line)
        characters += len(line.text)
        if len(window) == size or characters >= _CHARACTERS or pause():
            yield window
            window, characters = [], 0
    if window:
        yield window


def check_text(name: str, value: object) -> str:
    """Return an argument that is a string.

    Raises:
        InputError: the argument ``name`` is not.
    """
    if isinstance(value, str):
        return value
    raise InputError(
        f"{name} must be a string, not {type(value).__name__}: give text, '' where"
        " there is none"
    )


def check_phrases(name: str, given: object) -> tuple[str, ...]:
    """Return the phrases of a sentence as a tuple; a single one may be a string.

    Raises:
        InputError: the argument ``name`` is neither a string nor a list of strings.
    """
    if isinstance(given, str):
        return (given,)
    if not isinstance(given, Iterable):
        raise InputError(
            f"{name} must be a string or a list of strings, not {type(given).__name__}"
        )
    return tuple(check_text(f"{name}[{i}]", text) for i, text in enumerate(given))
