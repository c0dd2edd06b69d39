"""BLEU, chrF, chrF++ and TER of a whole test set, each with sacreBLEU's signature.

Each sentence is counted through sacreBLEU's public interface. chrF, whose counts
sacreBLEU does not publish, is counted here. Scores equal sacreBLEU's to the last bit.

The paper's own kind of BLEU is :mod:`jaxformer.evaluation.tokenized_bleu`, the F1 of
parsers :mod:`jaxformer.evaluation.bracketing`.
"""

from __future__ import annotations

import functools
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from jaxformer.errors import InputError, require
from jaxformer.evaluation.sentences import check_sentences
from jaxformer.evaluation.statistics import (
    Metric,
    Score,
    SentenceStatistics,
    count_ngrams,
    score_rows,
)
from jaxformer.typing import Float

Options: TypeAlias = tuple[tuple[str, str | int | bool], ...]

_PUNCTUATION = frozenset(string.punctuation)


@dataclass(frozen=True)
class SacreMetric:
    """A metric of sacreBLEU; see :class:`jaxformer.evaluation.statistics.Metric`.

    Attributes:
        key: its name in options and records.
        kind: sacreBLEU's class.
        options: arguments of that class, where they are not its defaults.
        higher_is_better: False for an error rate.
    """

    key: str
    kind: Literal["BLEU", "CHRF", "TER"]
    options: Options
    higher_is_better: bool = True

    def prepare(self, references: int) -> None:
        """Load sacreBLEU.

        Raises:
            InputError: it is not installed.
        """
        _build(self.kind, self.options)

    def statistics(
        self,
        hypotheses: Sequence[str],
        *references: Sequence[str],
        sources: Sequence[str] | None = None,
    ) -> SentenceStatistics:
        """Count the n-grams or edits of each sentence.

        Raises:
            InputError: see :func:`jaxformer.evaluation.sentences.check_sentences`.
        """
        check_sentences(hypotheses, references, sources)
        metric = _build(self.kind, self.options)
        count = {"BLEU": _count_bleu, "CHRF": _count_chrf, "TER": _count_ter}[self.kind]
        rows = [
            count(metric, hypothesis, lines)
            for hypothesis, *lines in zip(hypotheses, *references, strict=True)
        ]
        # The signature has the number of references of the last scored corpus.
        metric.corpus_score([""], [[""] for _ in references])
        return SentenceStatistics(
            np.asarray(rows, np.float64), metric.get_signature().format()
        )

    def score(self, total: Float[np.ndarray, " K"], signature: str) -> Score:
        """Score the sentences whose rows sum to ``total``."""
        metric, counts = _build(self.kind, self.options), total.tolist()
        if self.kind == "BLEU":
            length, reference_length, *grams = counts
            value = metric.compute_bleu(
                grams[: len(grams) // 2],
                grams[len(grams) // 2 :],
                int(length),
                int(reference_length),
                smooth_method=metric.smooth_method,
            ).score
            return Score("BLEU", float(value), signature)
        if self.kind == "CHRF":
            name = f"chrF{metric.beta}{'+' * metric.word_order}"
            return Score(name, _f_score(counts, metric.beta), signature)
        edits, length = counts
        rate = edits / length if length else float(edits > 0)
        return Score("TER", 100 * rate, signature)


@functools.cache
def _build(kind: str, options: Options) -> Any:
    """Build a metric of sacreBLEU, which has no types."""
    return getattr(require("sacrebleu", "train"), kind)(**dict(options))


def load_tokenizer(name: str) -> Callable[[str], str]:
    """Return a tokenizer of sacreBLEU, which puts spaces between words."""
    return _build("BLEU", (("tokenize", name),)).tokenizer


def _count_bleu(metric: Any, hypothesis: str, lines: Sequence[str]) -> list[float]:
    """Count words of both sides, then matching and all n-grams of each order."""
    found = metric.corpus_score([hypothesis], [[line] for line in lines])
    return [found.sys_len, found.ref_len, *found.counts, *found.totals]


def _count_ter(metric: Any, hypothesis: str, lines: Sequence[str]) -> list[float]:
    """Count edits and the mean number of reference words."""
    found = metric.corpus_score([hypothesis], [[line] for line in lines])
    return [found.num_edits, found.ref_length]


def _count_chrf(metric: Any, hypothesis: str, lines: Sequence[str]) -> list[float]:
    """Count n-grams of the hypothesis, of the most similar reference, and of both.

    The three counts of an order follow each other.
    """
    given = _chrf_ngrams(metric, hypothesis)
    rows = []
    for line in lines:
        row: list[float] = []
        for ours, theirs in zip(given, _chrf_ngrams(metric, line), strict=True):
            matched = (ours & theirs).total()
            row += [ours.total() if theirs else 0, theirs.total(), matched]
        rows.append(row)
    return max(rows, key=lambda row: _f_score(row, metric.beta))


def _chrf_ngrams(metric: Any, text: str) -> list[Counter[tuple[str, ...]]]:
    """Count character n-grams without white space, then word n-grams."""
    characters, words = "".join(text.split()), []
    if metric.word_order:
        words = _split_punctuation(text)
    return [
        count_ngrams(units, order)
        for units, orders in (
            (characters, metric.char_order),
            (words, metric.word_order),
        )
        for order in range(1, orders + 1)
    ]


def _split_punctuation(text: str) -> list[str]:
    """Split off the last character of a word if it is punctuation, else the first."""
    words = []
    for word in text.split():
        if len(word) > 1 and word[-1] in _PUNCTUATION:
            words += [word[:-1], word[-1]]
        elif len(word) > 1 and word[0] in _PUNCTUATION:
            words += [word[0], word[1:]]
        else:
            words.append(word)
    return words


def _f_score(counts: Sequence[float], beta: int) -> float:
    """Compute chrF, 0 to 100, of precision and recall averaged over the orders."""
    precision = recall = orders = 0.0
    for place in range(0, len(counts), 3):
        given, wanted, matched = counts[place : place + 3]
        if given > 0 and wanted > 0:
            precision += matched / given
            recall += matched / wanted
            orders += 1
    if not precision + recall:
        return 0.0
    precision, recall, factor = precision / orders, recall / orders, beta**2
    return 100 * ((1 + factor) * precision * recall / (factor * precision + recall))


BLEU: Metric = SacreMetric("bleu", "BLEU", ())
"""BLEU, 0 to 100: cased, tokenizer 13a, exponential smoothing (Papineni et al. 2002,
Post 2018).
"""

CHRF: Metric = SacreMetric("chrf", "CHRF", ())
"""chrF2, 0 to 100: F-score of character n-grams, recall counted twice (Popović 2015).

With several references each sentence is compared with the most similar one.
"""

CHRF_PLUS_PLUS: Metric = SacreMetric("chrf++", "CHRF", (("word_order", 2),))
"""chrF2++, 0 to 100: chrF2 with words and pairs of words (Popović 2017)."""

TER: Metric = SacreMetric("ter", "TER", (), higher_is_better=False)
"""TER: edits for 100 reference words, uncased; lower is better (Snover et al. 2006).

An edit changes, adds or removes a word, or moves a phrase. With several references the
fewest edits count, for the mean of their lengths.
"""


def tokenizing_bleu(tokenizer: str, key: str = "") -> Metric:
    """Return BLEU with another tokenizer of sacreBLEU, such as ``zh``, ``ja-mecab`` or
    ``ko-mecab`` for text without spaces.

    Args:
        tokenizer: its name.
        key: of the metric; by default ``bleu:TOKENIZER``.

    Raises:
        InputError: the tokenizer is unknown or lacks a package.
    """
    known = sorted(require("sacrebleu", "train").BLEU.TOKENIZERS - {"none"})
    if tokenizer not in known:
        raise InputError(
            f"sacreBLEU has no tokenizer {tokenizer!r}; it has {', '.join(known)}"
        )
    metric = SacreMetric(key or f"bleu:{tokenizer}", "BLEU", (("tokenize", tokenizer),))
    try:
        metric.prepare(1)
    except (ImportError, OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"sacreBLEU's tokenizer {tokenizer} cannot be used: {reason}"
        ) from None
    return metric


def score(
    metric: Metric,
    hypotheses: Sequence[str],
    *references: Sequence[str],
    sources: Sequence[str] | None = None,
) -> Score:
    """Score translations by a metric.

    Both sides are detokenised text. References are the raw lines of the test set, not
    text that a vocabulary normalised. An empty hypothesis counts as a translation
    without words.

    Args:
        metric: such as :data:`BLEU`.
        hypotheses: one translation for each sentence, in the order of the references.
        *references: flat lists, each with one reference for each sentence.
        sources: the text that was translated, for a metric that reads it.

    Raises:
        InputError: see :func:`jaxformer.evaluation.sentences.check_sentences`; or the
            metric lacks a package, which the error names.

    >>> score(CHRF, ["Haus"], ["Haus"]).value
    100.0
    >>> score(TER, ["das alte Haus"], ["das neue Haus dort"]).value
    50.0
    """
    return score_rows(
        metric, metric.statistics(hypotheses, *references, sources=sources)
    )
