"""What a check says: a verdict, what was found, what was expected, and the cure."""

from __future__ import annotations

from typing import Literal, NamedTuple

Verdict = Literal["ok", "look", "wrong", "unseen"]
"""``wrong`` spoils a score or makes it no comparable one, ``look`` is worth a look,
``unseen`` could not be seen.
"""

VERDICTS: tuple[Verdict, ...] = ("wrong", "look", "ok", "unseen")
"""All of them, the worst first."""


class Opinion(NamedTuple):
    """What one check says.

    Attributes:
        verdict: see :data:`Verdict`.
        found: the value, in words; of ``unseen``, why it could not be seen.
        expected: what it is held against, with the source.
        cure: what to do; empty where nothing is to be done.
    """

    verdict: Verdict
    found: str
    expected: str = ""
    cure: str = ""


class Finding(NamedTuple):
    """An opinion with the name of its check."""

    check: str
    verdict: Verdict
    found: str
    expected: str
    cure: str


def judge(verdict: Verdict, found: str, expected: str, cure: str) -> Opinion:
    """Put an opinion together; what is right needs no cure."""
    return Opinion(verdict, found, expected, "" if verdict == "ok" else cure)


def grade(value: float, look: float, wrong: float) -> Verdict:
    """Judge a value of which more is worse: above ``look`` worth a look, above
    ``wrong`` wrong.
    """
    return "wrong" if value > wrong else "look" if value > look else "ok"


def join_sides(sources: Opinion, targets: Opinion) -> Opinion:
    """Make one opinion of those on the sources and on the targets: the worse, with
    what was found on both sides.
    """
    worse = min(targets, sources, key=lambda opinion: VERDICTS.index(opinion.verdict))
    return worse._replace(found=f"sources: {sources.found}; targets: {targets.found}")


def worst(*verdicts: Verdict) -> Verdict:
    """Return the worst of some verdicts."""
    return min(verdicts, key=VERDICTS.index)
