"""Metrics by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jaxformer.data.language_codes import short_code
from jaxformer.errors import UsageError, did_you_mean
from jaxformer.evaluation.bracketing import F1
from jaxformer.evaluation.metrics import (
    BLEU,
    CHRF,
    CHRF_PLUS_PLUS,
    TER,
    tokenizing_bleu,
)
from jaxformer.evaluation.statistics import Metric
from jaxformer.evaluation.tokenized_bleu import TokenizedBleu
from jaxformer.evaluation.tokenizers import USUAL, choose_tokenizer

_FIXED = {metric.key: metric for metric in (BLEU, CHRF, CHRF_PLUS_PLUS, TER, F1)}

METRICS = (*_FIXED, "tokenized_bleu", "compound_split_bleu")
"""All names."""

DEFAULT_METRICS = ("bleu", "chrf")
"""The metrics of an evaluation that names none."""


def choose_metrics(
    names: Sequence[str] = DEFAULT_METRICS,
    *,
    language: str | None = None,
    references: Sequence[str] = (),
    notice: Callable[[str], object] = lambda _: None,
) -> list[Metric]:
    """Return the metrics of these names, each once, in their order.

    Args:
        names: of :data:`METRICS`; or ``bleu:TOKENIZER``, with another tokenizer of
            sacreBLEU.
        language: of the translations, for the tokenizer of ``bleu``,
            ``tokenized_bleu`` and ``compound_split_bleu``. None: that of ``bleu``
            suits the references, and for the others the text is already tokenised.
        references: of the translations.
        notice: see :func:`jaxformer.evaluation.tokenizers.choose_tokenizer`.

    Raises:
        UsageError: a metric is unknown, or no metric is named.
    """
    tokenizer = USUAL
    if BLEU.key in names:
        tokenizer = choose_tokenizer(language, references, notice)
    bleu = BLEU if tokenizer == USUAL else tokenizing_bleu(tokenizer, BLEU.key)
    language = language and short_code(language)
    known: dict[str, Metric] = _FIXED | {
        BLEU.key: bleu,
        "tokenized_bleu": TokenizedBleu(language, compounds=False),
        "compound_split_bleu": TokenizedBleu(language, compounds=True),
    }
    for name in names:
        kind, _, tokenizer = name.partition(":")
        if kind == "bleu" and tokenizer:
            known[name] = tokenizing_bleu(tokenizer)
        elif name not in known:
            near = did_you_mean(name, METRICS) or "."
            raise UsageError(
                f"there is no metric {name!r}{near} All are {', '.join(METRICS)}"
            )
    if not names:
        raise UsageError(f"no metric is named: give some of {', '.join(METRICS)}")
    return [known[name] for name in dict.fromkeys(names)]
