"""What a translator gives: translations, scores of pairs, alignments and attention."""

from __future__ import annotations

import dataclasses
import math
import warnings
from typing import Any

import numpy as np

from jaxformer.errors import LongSourceWarning


@dataclasses.dataclass(frozen=True, eq=False)
class Alignment:
    """Where a model looks in the source for each piece of a translation.

    Attributes:
        source_tokens: the pieces that the model reads, with its tags and its ends of
            sentence.
        weights: cross-attention of one layer, mean over its heads, float32 [target
            pieces, source pieces]. Row t is where the model looks when it predicts
            piece t; it sums to 1. Of a sentence that was translated in parts, each part
            looks at its own source alone.
        source_words: for each source piece, which word of the source it belongs to;
            None: to no text.
        target_words: for each piece of the translation, which of its words it belongs
            to; None: to no text.
    """

    source_tokens: list[str]
    weights: np.ndarray
    source_words: list[int | None]
    target_words: list[int | None]

    def links(self) -> list[tuple[int, int]]:
        """Link each piece of the translation to the source piece that it looks at most,
        as ``(source, target)``.

        Both are counted from 0, as they stand in ``source_tokens`` and in the tokens of
        the hypothesis. Pieces without text are left out: a model rests its eyes on the
        end of the sentence where no word calls for them.
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
        """Link words between white space, counted from 0: those of which any two
        pieces are linked.
        """
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
        """Return the links in Pharaoh's form, ``0-0 1-2``, as a JSON object; if asked
        for, the weights too.
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


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """One translation of a sentence.

    Attributes:
        text: the translation, on one line.
        score: log-probability, changed by a repetition penalty if there is one, divided
            by the length penalty, and the coverage penalty if there is one; what
            hypotheses are ranked by. Minus infinity: the options of the search left no
            translation at all.
        log_probability: natural logarithm of the translation's probability, end of
            sentence included, by the model alone, whatever the options of the search;
            within a shortlist it is that among the tokens of the list.
        tokens: its pieces.
        finished: whether it ended by itself, before the longest length allowed.
        alignment: where the model looked in the source; None where it was not asked
            for.
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
        """Return the parts as a JSON object; JSON has no infinity for the scores of no
        translation, which are None.
        """
        record: dict[str, Any] = {
            "text": self.text,
            "score": _number(self.score),
            "log_probability": _number(self.log_probability),
            "tokens": self.tokens,
            "finished": self.finished,
            "token_log_probabilities": self.token_log_probabilities,
        }
        if self.alignment is not None:
            record |= self.alignment.to_json(soft=soft_alignment)
        return record


def blank(*, aligned: bool) -> Hypothesis:
    """Return the translation of a blank sentence, a new one each time since its lists
    may be written to.
    """
    alignment = Alignment([], np.zeros((0, 0), np.float32), [], []) if aligned else None
    return Hypothesis("", 0.0, 0.0, [], finished=True, alignment=alignment)


def nothing() -> Hypothesis:
    """Return what a search finds whose options leave no translation at all."""
    return Hypothesis("", -math.inf, -math.inf, [], finished=False)


@dataclasses.dataclass(frozen=True)
class LongSources:
    """Count the sources of a search that have more tokens than training saw.

    Attributes:
        limit: most tokens of a source in training, those added to it included; of a
            model whose training is not known, its positions.
        cut: how many longer ones were translated in parts.
        whole: how many longer ones were translated whole, or in parts that are longer
            too, as the search's options ask.
    """

    limit: int
    cut: int = 0
    whole: int = 0

    def describe(self) -> str:
        """Return one line: how many there are, what was done, and the cure."""
        done = []
        if self.cut:
            done.append(f"{self.cut} translated in parts, split at sentence ends")
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
    """How probable a model holds a given translation.

    Attributes:
        log_probability: natural logarithm of the target's probability, end of sentence
            included.
        tokens: target tokens, end of sentence included.
    """

    log_probability: float
    tokens: int

    def to_json(self) -> dict[str, Any]:
        """Return the parts as a JSON object."""
        return {"log_probability": self.log_probability, "tokens": self.tokens}


@dataclasses.dataclass(frozen=True, eq=False)
class Attention:
    """What a model attends to in one pair: pieces of both sides, and weights as
    [layers, heads, queries, keys].

    Row t of ``decoder`` and ``cross`` is where the model looks when it predicts
    ``target_tokens[t]``; the keys of ``decoder`` are the tokens that it has read,
    ``read_tokens``.
    """

    source_tokens: list[str]
    target_tokens: list[str]
    read_tokens: list[str]
    encoder: np.ndarray
    decoder: np.ndarray
    cross: np.ndarray


def pharaoh(links: list[tuple[int, int]]) -> str:
    """Write links as the aligner Pharaoh did.

    Example:
        >>> pharaoh([(0, 0), (2, 1)])
        '0-0 2-1'
    """
    return " ".join(f"{source}-{target}" for source, target in links)


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
