"""Checks of the translations that were scored."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from jaxformer.diagnosis.alignment import FEWEST, find_misfits, lengths
from jaxformer.diagnosis.checks.recipe import is_imported
from jaxformer.diagnosis.evidence import Evidence, UnseenError
from jaxformer.diagnosis.findings import Finding, grade, judge
from jaxformer.evaluation.tokenizers import split_words

_ORDER, _TIMES = 4, 3  # a loop: so many words in a row, so often in one sentence


def check_length(run: Evidence) -> Finding:
    """Compare the words of translations and references: BLEU penalises short output."""
    words, expected = (
        sum(len(split_words(line)) for line in texts)
        for texts in (run.hypotheses, run.references)
    )
    ratio = words / max(expected, 1)
    penalty = math.exp(min(0.0, 1.0 - 1.0 / ratio)) if ratio else 0.0
    short = grade(1.0 - ratio, 0.05, 0.3)
    return judge(
        short if short != "ok" else grade(ratio, 1.1, 1.5),
        f"{ratio:.3f} times the words of the references; the brevity penalty leaves"
        f" {penalty:.0%} of BLEU",
        "0.95 to 1.1 (Papineni et al. 2002, section 2.2.2)",
        f"{'a larger' if ratio < 1.0 else 'look for loops; a smaller'} --alpha, chosen"
        + _unless_imported(run, " on data.valid, or longer training", " on other text"),
    )


def check_cut(run: Evidence) -> Finding:
    """Count the translations that reached the maximum length."""
    count, total = run.record.get("unfinished"), run.record.get("sentences")
    if count is None or not total:
        raise UnseenError("the result does not count unfinished translations")
    return judge(
        grade(count / total, 0.01, 0.1),
        f"{count} of {total:,} translations have no end",
        "hardly any, with 50 tokens more than the source (paper, section 6.1)",
        "larger decoding.max_extra_length or max_target_length"
        + _unless_imported(run, "; if they loop, longer training"),
    )


def check_empty(run: Evidence) -> Finding:
    """Count the empty translations."""
    return _judge_share(
        [not line.strip() for line in run.hypotheses],
        (0.005, 0.05),
        "are empty",
        "--min_length=2, a larger --alpha"
        + _unless_imported(run, "; look for empty targets in the training text"),
        expected="none",
    )


def check_copies(run: Evidence) -> Finding:
    """Count the translations that repeat their source where the reference does not."""
    copied = [
        hypothesis.strip() == source.strip()
        for hypothesis, (source, _), reference in zip(
            run.hypotheses, run.test, run.references, strict=True
        )
        if len(source.split()) >= 3 and source.strip() != reference.strip()
    ]
    if not copied:
        raise UnseenError("no source has three words with blanks between them")
    return _judge_share(
        copied,
        (0.02, 0.2),
        "are their source",
        _unless_imported(
            run,
            "--config.data.drop_identical=True and --config.data.detect_languages=True"
            " in a new run; ",
        )
        + "check the direction",
    )


def check_loops(run: Evidence) -> Finding:
    """Count the translations that repeat the same words."""
    return _judge_share(
        [_loops(line) for line in run.hypotheses],
        (0.02, 0.2),
        f"have {_ORDER} words {_TIMES} times",
        _unless_imported(run, "longer training; ") + "--no_repeat_ngram=4 hides it",
    )


def check_variety(run: Evidence) -> Finding:
    """Check that different sources have different translations."""
    different, expected = len(set(run.hypotheses)), len(set(run.references))
    return judge(
        grade(1.0 - different / max(expected, 1), 0.2, 0.5),
        f"{different:,} different translations of {expected:,} different references",
        "about as many",
        _unless_imported(
            run,
            "compare the sides of the training text line by line; where they fit, a"
            " longer --config.training.warmup_steps, or more training",
            "check the direction",
        ),
    )


def check_order(run: Evidence) -> Finding:
    """Check that translations are not shifted against their references."""
    if len(run.hypotheses) < FEWEST:
        raise UnseenError(f"{len(run.hypotheses)} translations are too few")
    pairs = zip(run.hypotheses, run.references, strict=True)
    shifted = [misfit for misfit in find_misfits(lengths(pairs)) if misfit.shift]
    found = "lengths of translations and references agree"
    if shifted:
        found = (
            f"from about line {shifted[0].line:,} on the references"
            f" {shifted[0].shift:+d} lines further belong there"
        )
    return judge(
        "wrong" if shifted else "ok",
        found,
        "line i of the translations belongs to line i of the references",
        "a line was lost or added: translate the whole file again, and split lines only"
        " at \\n",
    )


def _unless_imported(run: Evidence, cure: str, otherwise: str = "") -> str:
    """Return a cure, if the run was trained here."""
    return otherwise if is_imported(run.config) else cure


def _judge_share(
    translations: Sequence[bool],
    limits: tuple[float, float],
    fault: str,
    cure: str,
    expected: str = "hardly any",
) -> Finding:
    """Judge the share of translations with a fault."""
    share = sum(translations) / max(len(translations), 1)
    return judge(
        grade(share, *limits),
        f"{share:.1%} of {len(translations):,} translations {fault}",
        expected,
        cure,
    )


def _loops(line: str) -> bool:
    words = line.split()
    found = Counter(zip(*(words[start:] for start in range(_ORDER)), strict=False))
    return max(found.values(), default=0) >= _TIMES
