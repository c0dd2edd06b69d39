"""BLEU, chrF, chrF++ and TER of a whole test set, each with sacreBLEU's signature.

Each sentence is counted and each sum is scored by sacreBLEU itself, as in its own tests
of significance.

The paper's own kind of BLEU is :mod:`jaxformer.evaluation.tokenized_bleu`, the F1 of
parsers :mod:`jaxformer.evaluation.bracketing`.
"""

from __future__ import annotations

import functools
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
    score_rows,
)
from jaxformer.typing import Float

Options: TypeAlias = tuple[tuple[str, str | int | bool], ...]


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
        rows = [
            metric._extract_corpus_statistics([hypothesis], [[x] for x in lines])[0]
            for hypothesis, *lines in zip(hypotheses, *references, strict=True)
        ]
        return SentenceStatistics(
            np.asarray(rows, np.float64), metric.get_signature().format()
        )

    def score(self, total: Float[np.ndarray, " K"], signature: str) -> Score:
        """Score the sentences whose rows sum to ``total``."""
        metric = _build(self.kind, self.options)
        found = metric._compute_score_from_stats(total.tolist())
        return Score(found.name, float(found.score), signature)


@functools.cache
def _build(kind: str, options: Options) -> Any:
    """Build a metric of sacreBLEU, which has no types."""
    return getattr(require("sacrebleu", "train"), kind)(**dict(options))


def load_tokenizer(name: str) -> Callable[[str], str]:
    """Return a tokenizer of sacreBLEU, which puts spaces between words."""
    return _build("BLEU", (("tokenize", name),)).tokenizer


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
