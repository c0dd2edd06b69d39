"""Metrics by the names that a person types."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from jaxformer.errors import UsageError
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

METRICS = (
    "bleu",
    "chrf",
    "chrf++",
    "ter",
    "tokenized_bleu",
    "compound_split_bleu",
    "f1",
)
"""All names."""

DEFAULT_METRICS = ("bleu", "chrf")
"""What is scored where nothing else is asked for."""


def choose_metrics(
    names: Sequence[str] = DEFAULT_METRICS, *, language: str | None = None
) -> list[Metric]:
    """Return the metrics of these names, each once, in their order.

    Args:
        names: of :data:`METRICS`; or ``bleu:TOKENIZER``, for another tokenizer of
            sacreBLEU's.
        language: of the translations, for the tokenizer of ``tokenized_bleu`` and
            ``compound_split_bleu``; None: the text is tokenised already.

    Raises:
        UsageError: there is no such metric, or none at all is named.
    """
    known: dict[str, Metric] = {
        "bleu": BLEU,
        "chrf": CHRF,
        "chrf++": CHRF_PLUS_PLUS,
        "ter": TER,
        "tokenized_bleu": TokenizedBleu(language, compounds=False),
        "compound_split_bleu": TokenizedBleu(language, compounds=True),
        "f1": F1,
    }
    for name in names:
        kind, _, tokenizer = name.partition(":")
        if kind == "bleu" and tokenizer:
            known[name] = tokenizing_bleu(tokenizer)
        elif name not in known:
            near = difflib.get_close_matches(name, METRICS, n=1, cutoff=0.0)[0]
            raise UsageError(
                f"there is no metric {name!r}; did you mean {near}? All are"
                f" {', '.join(METRICS)}"
            )
    if not names:
        raise UsageError(f"no metric is named: give some of {', '.join(METRICS)}")
    return [known[name] for name in dict.fromkeys(names)]
