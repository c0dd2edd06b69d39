"""The finding of a check: a verdict, the value, the expectation and the cure."""

from __future__ import annotations

from typing import Literal, NamedTuple

Verdict = Literal["ok", "look", "wrong", "unseen"]
"""``wrong`` spoils a score or its comparison, ``look`` is worth a look, ``unseen`` has
no evidence.
"""

VERDICTS: tuple[Verdict, ...] = ("wrong", "look", "ok", "unseen")
"""All verdicts, the worst first."""


class Finding(NamedTuple):
    """Hold the result of one check.

    Attributes:
        verdict: see :data:`Verdict`.
        found: the value in words; of ``unseen``, the reason.
        expected: what the value is compared with, and the source of that.
        cure: what to do; empty for ``ok``.
    """

    verdict: Verdict
    found: str
    expected: str = ""
    cure: str = ""


def judge(verdict: Verdict, found: str, expected: str, cure: str) -> Finding:
    """Build a finding, without a cure where nothing is wrong."""
    return Finding(verdict, found, expected, "" if verdict == "ok" else cure)


def grade(value: float, look: float, wrong: float) -> Verdict:
    """Grade a value: above ``look`` worth a look, above ``wrong`` wrong."""
    return "wrong" if value > wrong else "look" if value > look else "ok"


def worst(*verdicts: Verdict) -> Verdict:
    """Return the worst verdict."""
    return min(verdicts, key=VERDICTS.index)


def join_sides(sources: Finding, targets: Finding) -> Finding:
    """Join findings on sources and targets: the worse one, with both values."""
    worse = min(targets, sources, key=lambda finding: VERDICTS.index(finding.verdict))
    return worse._replace(found=f"sources: {sources.found}; targets: {targets.found}")
