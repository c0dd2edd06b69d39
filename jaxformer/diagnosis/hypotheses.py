"""Checks of the translations that were scored."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from jaxformer.diagnosis import lines
from jaxformer.diagnosis.alignment import FEWEST, find_misfits, lengths
from jaxformer.diagnosis.findings import Opinion, grade, judge
from jaxformer.evaluation.breakdown import split_words
from jaxformer.evaluation.outputs import ScoredSet

_UNKNOWN = "\u2047"  # what SentencePiece writes for the unknown piece
_ORDER, _TIMES = 4, 3  # words in a row that come so often in one sentence are a loop


def length(hypotheses: Sequence[str], scored: ScoredSet) -> Opinion:
    """Compare the words of the translations with those of the references: BLEU
    punishes what is short.
    """
    words, expected = (
        sum(len(split_words(line)) for line in texts)
        for texts in (hypotheses, scored.references[0])
    )
    ratio = words / max(expected, 1)
    penalty = math.exp(min(0.0, 1.0 - 1.0 / ratio)) if ratio else 0.0
    short = grade(1.0 - ratio, 0.05, 0.3)
    return judge(
        short if short != "ok" else grade(ratio, 1.1, 1.5),
        f"{ratio:.3f} times the words of the references; the brevity penalty leaves"
        f" {penalty:.0%} of BLEU",
        "0.95 to 1.1 (Papineni et al. 2002, section 2.2.2)",
        (
            "a larger --alpha, chosen on data.valid, or longer training"
            if ratio < 1.0
            else (
                "look for loops; a smaller --alpha, chosen on data.valid, or longer"
                " training"
            )
        ),
    )


def cut(record: Mapping[str, Any]) -> Opinion:
    """Count the translations that were cut at the longest length allowed."""
    count, total = record.get("unfinished"), record.get("sentences")
    if count is None or not total:
        return Opinion("unseen", "the result does not count unfinished translations")
    return judge(
        grade(count / total, 0.01, 0.1),
        f"{count} of {total:,} translations have no end",
        "hardly any, with 50 tokens more than the source (paper, section 6.1)",
        "larger decoding.max_extra_length or max_target_length; if they loop, longer"
        " training",
    )


def empty(hypotheses: Sequence[str]) -> Opinion:
    """Count the empty translations."""
    found = lines.share(hypotheses, lambda line: not line.strip())
    return judge(
        grade(found, 0.005, 0.05),
        f"{found:.1%} of {len(hypotheses):,} translations are empty",
        "none",
        "--min_length=2, a larger --alpha; look for empty targets in the training text",
    )


def copies(hypotheses: Sequence[str], scored: ScoredSet) -> Opinion:
    """Count the translations that repeat their source where the reference does not."""
    sources = scored.sources
    if sources is None:
        return Opinion("unseen", "the sources are not known")
    asked = [
        hypothesis.strip() == source.strip()
        for hypothesis, source, reference in zip(
            hypotheses, sources, scored.references[0], strict=True
        )
        if len(source.split()) >= 3 and source.strip() != reference.strip()
    ]
    if not asked:
        return Opinion("unseen", "no source has three words with blanks between them")
    found = sum(asked) / len(asked)
    return judge(
        grade(found, 0.02, 0.2),
        f"{found:.1%} of {len(asked):,} translations are their source",
        "hardly any",
        "--config.data.drop_identical=True and --config.data.detect_languages=True in a"
        " new run; check the direction",
    )


def loops(hypotheses: Sequence[str]) -> Opinion:
    """Count the translations in which the same words come again and again."""
    found = lines.share(hypotheses, _loops)
    return judge(
        grade(found, 0.02, 0.2),
        f"{found:.1%} of {len(hypotheses):,} translations have {_ORDER} words {_TIMES}"
        " times",
        "hardly any",
        "longer training; --no_repeat_ngram=4 hides it",
    )


def unknown(hypotheses: Sequence[str]) -> Opinion:
    """Count the translations with the unknown token."""
    found = lines.share(hypotheses, re.compile(_UNKNOWN).search)
    return judge(
        grade(found, 0.01, 0.1),
        f"{found:.1%} of {len(hypotheses):,} translations hold {_UNKNOWN}",
        "hardly any",
        "--config.data.byte_fallback=True in a new run; --no_unknown hides it",
    )


def variety(hypotheses: Sequence[str], scored: ScoredSet) -> Opinion:
    """Return whether different sources have different translations: a model may ignore
    what it reads.
    """
    different, expected = len(set(hypotheses)), len(set(scored.references[0]))
    ratio = different / max(expected, 1)
    return judge(
        grade(1.0 - ratio, 0.2, 0.5),
        f"{different:,} different translations of {expected:,} different references",
        "about as many",
        "the model ignores the source: it is untrained, training stalled, or the sides"
        " do not belong together",
    )


def order(hypotheses: Sequence[str], scored: ScoredSet) -> Opinion:
    """Look for translations that stand beside the reference of another sentence."""
    if len(hypotheses) < FEWEST:
        return Opinion("unseen", f"{len(hypotheses)} translations tell too little")
    pairs = zip(hypotheses, scored.references[0], strict=True)
    shifted = [misfit for misfit in find_misfits(lengths(pairs)) if misfit.shift]
    found = "each stands beside its reference, as far as lengths tell"
    if shifted:
        found = (
            f"from about line {shifted[0].line:,} on the references"
            f" {shifted[0].shift:+d} lines further belong there"
        )
    return judge(
        "wrong" if shifted else "ok",
        found,
        "translation i beside reference i",
        "a line was lost or added: translate the whole file again, and split lines at"
        " \\n alone",
    )


def _loops(line: str) -> bool:
    words = line.split()
    found = Counter(zip(*(words[start:] for start in range(_ORDER)), strict=False))
    return max(found.values(), default=0) >= _TIMES
