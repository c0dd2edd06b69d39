"""How the translations of a line's parts become that of the line."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from jaxformer.decoding.results import Alignment, Hypothesis

# Han, kana and their marks: what is written without spaces, also between sentences.
_UNSPACED = re.compile("[\u3001-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff01-\uff65\U00020000-\U0003ffff]")


def spacing(left: str, right: str, source: str) -> str:
    """Give what stands between two translated parts of which ``source`` stood between in the source.

    That is the source's own white space, on one line; a space where the source has none, as between sentences of
    Chinese; and nothing where the translation itself is in a script without spaces, or one side is empty.

    Example:
        >>> spacing("Eins.", "Zwei.", "  "), spacing("One.", "Two.", ""), spacing("一。", "二。", " ")
        ('  ', ' ', '')
    """
    if not left or not right or (_UNSPACED.match(left[-1]) and _UNSPACED.match(right[0])):
        return ""
    return re.sub(r"[\r\n]", " ", source) or " "


def join(parts: Sequence[Sequence[Hypothesis]], spaces: Sequence[str]) -> list[Hypothesis]:
    """Put the translations of the parts of a line together, the best with the best.

    Scores and log-probabilities add up, pieces follow each other, each part's end of sentence among them.

    Args:
        parts: hypotheses of each part, the best first; a part without any leaves the line without any.
        spaces: white space before each part in the source.
    """
    if len(parts) == 1:
        return list(parts[0])
    return [_join_row(row, spaces) for row in zip(*parts, strict=False)]


def _join_row(row: Sequence[Hypothesis], spaces: Sequence[str]) -> Hypothesis:
    text, alignment = "", row[0].alignment
    for number, (part, space) in enumerate(zip(row, spaces, strict=True)):
        between = spacing(text, part.text, space)
        if number and alignment is not None and part.alignment is not None:
            alignment = _join_alignments(alignment, part.alignment, bool(space), bool(between))
        text += between + part.text
    return Hypothesis(
        text,
        sum(part.score for part in row),
        sum(part.log_probability for part in row),
        [token for part in row for token in part.tokens],
        all(part.finished for part in row),
        alignment,
        [value for part in row for value in part.token_log_probabilities],
    )


def _join_alignments(left: Alignment, right: Alignment, spaced_source: bool, spaced_target: bool) -> Alignment:
    """Put two alignments end to end; where no space is between them, the last word goes on."""
    rows, columns = left.weights.shape
    weights = np.zeros((rows + right.weights.shape[0], columns + right.weights.shape[1]), np.float32)
    weights[:rows, :columns], weights[rows:, columns:] = left.weights, right.weights
    return Alignment(
        left.source_tokens + right.source_tokens,
        weights,
        _join_words(left.source_words, right.source_words, spaced_source),
        _join_words(left.target_words, right.target_words, spaced_target),
    )


def _join_words(left: list[int | None], right: list[int | None], spaced: bool) -> list[int | None]:
    last = max((word for word in left if word is not None), default=None)
    first = 0 if last is None else last + spaced
    return [*left, *(None if word is None else word + first for word in right)]
