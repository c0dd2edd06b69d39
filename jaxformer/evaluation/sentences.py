"""The check of sentences before any score."""

from __future__ import annotations

from collections.abc import Sequence

from jaxformer.errors import InputError


def check_sentences(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    sources: Sequence[str] | None = None,
) -> None:
    """Refuse lists that a score would misread.

    sacreBLEU reads a wrongly nested list of references as a shorter test set, and a
    string as a list of letters, without an error. Here each reference translation of a
    test set is one flat list.

    Args:
        hypotheses: one translation for each sentence.
        references: at least one flat list, with one reference for each sentence.
        sources: the text that was translated, where the score reads it.

    Raises:
        InputError: a list is empty, nested or a string; two lists differ in length; an
            item is no string or contains a line break.
    """
    _check_lines(hypotheses, "hypotheses")
    if not references:
        raise InputError(
            "each sentence needs at least one reference, and there is none"
        )
    for lines in references:
        _check_lines(lines, "references")
        if len(hypotheses) != len(lines):
            raise InputError(
                "each sentence needs one hypothesis and one reference, but there are"
                f" {len(hypotheses)} hypotheses and {len(lines)} references: score the"
                " whole test set, in its order"
            )
    if sources is not None:
        _check_lines(sources, "sources")
        if len(sources) != len(hypotheses):
            raise InputError(
                f"each sentence needs its source, but there are {len(sources)} sources"
                f" and {len(hypotheses)} hypotheses"
            )


def _check_lines(sentences: Sequence[str], role: str) -> None:
    if isinstance(sentences, str):
        raise InputError(
            f"{role} must be a list of sentences, not one string: put it in a list,"
            f" [{sentences[:20]!r}]"
        )
    if len(sentences) == 0:
        raise InputError(f"{role} must hold at least one sentence, and there are none")
    for number, sentence in enumerate(sentences, start=1):
        if not isinstance(sentence, str):
            raise InputError(
                f"{role} must be one flat list of strings, but item {number} is of type"
                f" {type(sentence).__name__}: flatten nested lists, give text, not ids"
            )
        if "\n" in sentence:
            raise InputError(
                f"{role} must be one line each, but item {number} holds a line break:"
                " replace it by a space"
            )
