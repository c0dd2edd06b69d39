"""The scores of a translation: BLEU, chrF, chrF++ and TER of a whole test set, by
sacreBLEU, each with its signature.

The paper's own kind of BLEU is :mod:`jaxformer.evaluation.tokenized_bleu`, the F1 of
parsers :mod:`jaxformer.evaluation.bracketing`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxformer.errors import InputError, require
from jaxformer.evaluation import sentences
from jaxformer.evaluation.statistics import Metric, Score, Statistics, score_rows
from jaxformer.typing import Float


@dataclass(frozen=True)
class SacreMetric:
    """A metric that sacreBLEU counts and scores; see
    :class:`jaxformer.evaluation.statistics.Metric`.

    Attributes:
        key: its name in options and records.
        kind: the name of sacreBLEU's class.
        options: what that class is given.
        higher_is_better: False for an error rate.
        digits: decimals that a record keeps.
    """

    key: str
    kind: str
    options: tuple[tuple[str, Any], ...]
    higher_is_better: bool = True
    digits: int = 2

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
    ) -> Statistics:
        """Count in each sentence.

        Raises:
            InputError: as :func:`jaxformer.evaluation.sentences.check`.
        """
        sentences.check(hypotheses, references, sources)
        metric = _build(self.kind, self.options)
        # What sacreBLEU's own corpus_score and significance tests begin with.
        rows = metric._extract_corpus_statistics(
            list(hypotheses), [list(lines) for lines in references]
        )
        return Statistics(np.asarray(rows, np.float64), metric.get_signature().format())

    def score(self, total: Float[np.ndarray, " K"], signature: str) -> Score:
        """Score the sentences whose rows were summed to ``total``."""
        result = _build(self.kind, self.options)._compute_score_from_stats(list(total))
        return Score(result.name, float(result.score), signature)


@functools.cache
def _build(kind: str, options: tuple[tuple[str, Any], ...]) -> Any:
    return getattr(require("sacrebleu", "train"), kind)(**dict(options))


def _options(**options: Any) -> tuple[tuple[str, Any], ...]:
    return tuple(options.items())


BLEU: Metric = SacreMetric(
    "bleu",
    "BLEU",
    _options(
        lowercase=False, tokenize="13a", smooth_method="exp", effective_order=False
    ),
)
"""BLEU as sacreBLEU computes it by default (Papineni et al. 2002, Post 2018), 0 to
100.
"""

CHRF: Metric = SacreMetric(
    "chrf",
    "CHRF",
    _options(char_order=6, word_order=0, beta=2, lowercase=False, whitespace=False),
)
"""chrF2, of characters alone (Popović 2015), 0 to 100."""

CHRF_PLUS_PLUS: Metric = SacreMetric(
    "chrf++",
    "CHRF",
    _options(char_order=6, word_order=2, beta=2, lowercase=False, whitespace=False),
)
"""chrF2++, of characters and words (Popović 2017), 0 to 100."""

TER: Metric = SacreMetric(
    "ter",
    "TER",
    _options(
        normalized=False, no_punct=False, asian_support=False, case_sensitive=False
    ),
    higher_is_better=False,
)
"""Edits a hundred words of the reference, shifts among them (Snover et al. 2006);
lower is better.
"""


def tokenizing_bleu(tokenizer: str) -> Metric:
    """Return BLEU with another of sacreBLEU's tokenizers: ``zh``, ``ja-mecab`` and
    ``ko-mecab`` for text without blanks.

    Raises:
        InputError: there is no such tokenizer, or what it needs is not installed.
    """
    known = sorted(require("sacrebleu", "train").BLEU.TOKENIZERS - {"none"})
    if tokenizer not in known:
        raise InputError(
            f"sacreBLEU has no tokenizer {tokenizer!r}; it has {', '.join(known)}"
        )
    metric = SacreMetric(f"bleu:{tokenizer}", "BLEU", _options(tokenize=tokenizer))
    try:
        metric.prepare(1)
    except (ImportError, OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"sacreBLEU's tokenizer {tokenizer} cannot be used: {reason}"
        ) from None
    return metric


def bleu(hypotheses: Sequence[str], *references: Sequence[str]) -> Score:
    """Score translations by BLEU: cased, tokenizer 13a, exponential smoothing.

    Both sides are detokenised text. The references are the raw lines of the test set,
    never text that went through a vocabulary, whose normalisation would change them. A
    hypothesis may be empty: it counts as a translation without words.

    Args:
        hypotheses: one translation for each sentence, in the order of the references.
        *references: one raw reference for each sentence, in one flat list; of several
            translations of the test set, one such list for each.

    Raises:
        InputError: a list is empty, nested or a bare string; two differ in length;
            something in them is no string or holds a line break.

    References:
        Papineni et al., "BLEU: a Method for Automatic Evaluation of Machine
        Translation", 2002; Post, "A Call for Clarity in Reporting BLEU Scores", 2018.

    >>> bleu(["Ein neues Haus steht hier."], ["Ein neues Haus steht hier."]).value
    100.0...
    """
    return score(BLEU, hypotheses, *references)


def chrf(hypotheses: Sequence[str], *references: Sequence[str]) -> Score:
    """Score translations by chrF2: F-score, recall twice as important, of character
    n-grams up to six characters.

    Args:
        hypotheses: one translation for each sentence, in the order of the references.
        *references: as for :func:`bleu`. With several, each sentence is compared with
            the one that it is most like.

    Raises:
        InputError: as :func:`bleu`.

    References:
        Popović, "chrF: character n-gram F-score for automatic MT evaluation", 2015.

    >>> chrf(["Haus"], ["Haus"]).value
    100.0
    """
    return score(CHRF, hypotheses, *references)


def chrf_plus_plus(hypotheses: Sequence[str], *references: Sequence[str]) -> Score:
    """Score translations by chrF++: chrF2 with words and pairs of words beside the
    character n-grams.

    Args:
        hypotheses: one translation for each sentence, in the order of the references.
        *references: as for :func:`chrf`.

    Raises:
        InputError: as :func:`bleu`.

    References:
        Popović, "chrF++: words helping character n-grams", 2017.

    >>> chrf_plus_plus(["das Haus"], ["das Haus"]).value
    100.0
    """
    return score(CHRF_PLUS_PLUS, hypotheses, *references)


def ter(hypotheses: Sequence[str], *references: Sequence[str]) -> Score:
    """Score translations by TER: edits (a word changed, added, left out; a phrase
    moved) for a hundred reference words.

    Less is better; it has no upper end. As Tercom does, it ignores case.

    Args:
        hypotheses: one translation for each sentence, in the order of the references.
        *references: as for :func:`bleu`. With several, the fewest edits count, for the
            mean of their lengths.

    Raises:
        InputError: as :func:`bleu`.

    References:
        Snover et al., "A Study of Translation Edit Rate with Targeted Human
        Annotation", 2006.

    >>> ter(["das alte Haus"], ["das neue Haus dort"]).value
    50.0
    """
    return score(TER, hypotheses, *references)


def score(
    metric: Metric,
    hypotheses: Sequence[str],
    *references: Sequence[str],
    sources: Sequence[str] | None = None,
) -> Score:
    """Score translations by any metric.

    Args:
        metric: such as :data:`BLEU`.
        hypotheses: one translation for each sentence, in the order of the references.
        *references: as for :func:`bleu`.
        sources: the text that was translated, for a metric that reads it.

    Raises:
        InputError: as :func:`bleu`; or the metric lacks something, which the error
            names.
    """
    return score_rows(
        metric, metric.statistics(hypotheses, *references, sources=sources)
    )
