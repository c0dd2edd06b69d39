"""The results of a translator: translations, scores of pairs, alignments, attention."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxformer.errors import LongSourceWarning
from jaxformer.files import finite


@dataclasses.dataclass(frozen=True, eq=False)
class Alignment:
    """The attention of each piece of a translation to the source.

    Attributes:
        source_tokens: the pieces of the source, with tags and ends of sentence.
        weights: cross-attention of one layer, mean over its heads, float32 [target
            pieces, source pieces]. Row t is the attention when piece t is predicted; it
            sums to 1. If a sentence was translated in parts, each part attends only to
            its own source.
        source_words: the number of the word of each source piece; None: no text.
        target_words: the number of the word of each piece of the translation; None: no
            text.
    """

    source_tokens: list[str]
    weights: np.ndarray
    source_words: list[int | None]
    target_words: list[int | None]

    def links(self) -> list[tuple[int, int]]:
        """Link each piece of the translation to the source piece with the most weight,
        as ``(source, target)``, both counted from 0.

        Pieces without text have no links: models put weight on the end of the sentence
        if no word needs it.
        """
        text = [
            place for place, word in enumerate(self.source_words) if word is not None
        ]
        if not text:
            return []
        best = self.weights[:, text].argmax(axis=1)
        return [
            (text[best[place]], place)
            for place, word in enumerate(self.target_words)
            if word is not None
        ]

    def word_links(self) -> list[tuple[int, int]]:
        """Link the words between white space that have linked pieces, from 0."""
        words = (
            (self.source_words[source], self.target_words[target])
            for source, target in self.links()
        )
        return sorted(
            {
                (source, target)
                for source, target in words
                if source is not None and target is not None
            }
        )

    def to_json(self, *, soft: bool = False) -> dict[str, Any]:
        """Return the links in Pharaoh's format, ``0-0 1-2``, and optionally the
        weights, as a JSON object.
        """
        record: dict[str, Any] = {
            "source_tokens": self.source_tokens,
            "alignment": pharaoh(self.links()),
            "word_alignment": pharaoh(self.word_links()),
        }
        if soft:
            record["weights"] = [
                [round(float(weight), 4) for weight in row] for row in self.weights
            ]
        return record


def concatenate(alignments: Sequence[Alignment]) -> Alignment:
    """Return the alignment of consecutive texts, each of which attends only to its own
    source, with the numbers of words as they are.
    """
    shapes = np.array([each.weights.shape for each in alignments])
    weights = np.zeros(shapes.sum(axis=0), np.float32)
    row = column = 0
    for each, (rows, columns) in zip(alignments, shapes.tolist(), strict=True):
        weights[row : row + rows, column : column + columns] = each.weights
        row, column = row + rows, column + columns
    return Alignment(
        [token for each in alignments for token in each.source_tokens],
        weights,
        [word for each in alignments for word in each.source_words],
        [word for each in alignments for word in each.target_words],
    )


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """One translation of a sentence.

    Attributes:
        text: the translation, on one line.
        score: what hypotheses are ranked by: log-probability with the repetition
            penalty, divided by the length penalty, plus the coverage penalty. Minus
            infinity: the options of the search left no translation.
        log_probability: natural logarithm of the model's probability of the
            translation, end of sentence included; within a shortlist, of that among the
            tokens of the list.
        tokens: its pieces.
        finished: whether it ended before the longest length allowed.
        alignment: to the source; None: not asked for.
        token_log_probabilities: natural logarithms of the tokens' probabilities, whose
            sum is ``log_probability``.
    """

    text: str
    score: float
    log_probability: float
    tokens: list[str]
    finished: bool
    alignment: Alignment | None = dataclasses.field(default=None, compare=False)
    token_log_probabilities: list[float] = dataclasses.field(default_factory=list)

    def to_json(self, *, soft_alignment: bool = False) -> dict[str, Any]:
        """Return a JSON object; infinite scores, which JSON lacks, are None."""
        record: dict[str, Any] = {
            "text": self.text,
            "score": self.score,
            "log_probability": self.log_probability,
            "tokens": self.tokens,
            "finished": self.finished,
            "token_log_probabilities": self.token_log_probabilities,
        }
        if self.alignment is not None:
            record |= self.alignment.to_json(soft=soft_alignment)
        return finite(record)


def concatenate_hypotheses(
    parts: Sequence[Hypothesis], text: str, alignment: Alignment | None
) -> Hypothesis:
    """Return the translation of consecutive texts from those of each: scores and
    log-probabilities are summed, tokens concatenated.

    Args:
        parts: translations of the texts, in order.
        text: of all.
        alignment: of all.
    """
    return Hypothesis(
        text,
        sum(part.score for part in parts),
        sum(part.log_probability for part in parts),
        [token for part in parts for token in part.tokens],
        all(part.finished for part in parts),
        alignment,
        [value for part in parts for value in part.token_log_probabilities],
    )


def distinct(hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
    """Return the hypotheses without those whose text an earlier one has."""
    found: dict[str, Hypothesis] = {}
    for each in hypotheses:
        found.setdefault(each.text, each)
    return [*found.values()]


def blank(*, aligned: bool) -> Hypothesis:
    """Return a new translation of a blank sentence."""
    alignment = Alignment([], np.zeros((0, 0), np.float32), [], []) if aligned else None
    return Hypothesis("", 0.0, 0.0, [], finished=True, alignment=alignment)


def nothing() -> Hypothesis:
    """Return the result of a search whose options leave no translation."""
    return Hypothesis("", -math.inf, -math.inf, [], finished=False)


@dataclasses.dataclass(frozen=True)
class LongSources:
    """Counts of the sources of a search with more tokens than in training.

    Attributes:
        limit: most tokens of a source in training, those added to it included; if
            unknown, the model's positions.
        cut: number of longer ones that were translated in parts.
        whole: number of longer ones that were translated whole, or in parts that are
            longer too.
    """

    limit: int
    cut: int = 0
    whole: int = 0

    def describe(self) -> str:
        """Return one line with the counts and the cure."""
        done = []
        if self.cut:
            done.append(f"{self.cut} translated in parts, at sentence or word ends")
        if self.whole:
            done.append(
                f"{self.whole} translated whole, of which text may be missing: add"
                " --split_long (decoding.long_sources=split, max_source_length at most"
                f" {self.limit})"
            )
        return f"sources of more than {self.limit} tokens: {'; '.join(done)}"

    def warn(self) -> None:
        """Issue a :class:`~jaxformer.errors.LongSourceWarning`."""
        warnings.warn(self.describe(), LongSourceWarning, stacklevel=2)


@dataclasses.dataclass(frozen=True)
class PairScore:
    """The probability of a given translation.

    Attributes:
        log_probability: natural logarithm of the target's probability, end of sentence
            included.
        tokens: target tokens, end of sentence included.
    """

    log_probability: float
    tokens: int

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {"log_probability": self.log_probability, "tokens": self.tokens}


@dataclasses.dataclass(frozen=True, eq=False)
class Attention:
    """The attention weights of one pair, [layers, heads, queries, keys], and the pieces
    of both sides.

    Row t of ``decoder`` and ``cross`` is the attention when ``target_tokens[t]`` is
    predicted; the keys of ``decoder`` are the tokens read so far, ``read_tokens``. A
    kind that the model has not, as self-attention in a recurrent one, has no layers.
    """

    source_tokens: list[str]
    target_tokens: list[str]
    read_tokens: list[str]
    encoder: np.ndarray
    decoder: np.ndarray
    cross: np.ndarray


def pharaoh(links: list[tuple[int, int]]) -> str:
    """Write links in the format of the aligner Pharaoh.

    Example:
        >>> pharaoh([(0, 0), (2, 1)])
        '0-0 2-1'
    """
    return " ".join(f"{source}-{target}" for source, target in links)
