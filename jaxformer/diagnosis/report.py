"""Findings as lines of text and as one record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxformer.diagnosis.findings import VERDICTS, Finding


def write_report(findings: Mapping[str, Finding], result: str | None) -> list[str]:
    """Write a line for each finding, the worst last, after a line for each reason of
    unseen ones, and the counts.

    Args:
        findings: of a run, by check.
        result: the name of the examined result; None: there is none.
    """
    width = max(map(len, findings))
    lines, unseen = [], {}
    for check, finding in sorted(
        findings.items(), key=lambda item: -VERDICTS.index(item[1].verdict)
    ):
        if finding.verdict == "unseen":
            unseen.setdefault(finding.found, []).append(check)
            continue
        line = f"{finding.verdict:<6}  {check:<{width}}  {finding.found}"
        line += f" | expected: {finding.expected}" if finding.expected else ""
        lines.append(f"{line} | cure: {finding.cure}" if finding.cure else line)
    missed = [f"unseen  {', '.join(checks)}: {why}" for why, checks in unseen.items()]
    if result is not None:
        lines.append(f"examined the result {result!r}; --dataset=NAME: another")
    wrong, look, ok, missing = _count(findings).values()
    return [
        *missed,
        *lines,
        f"{wrong} wrong, {look} to look at, {ok} ok, {missing} unseen; the page"
        ' "Why is my BLEU lower?" of the documentation explains each',
    ]


def to_record(
    directory: str, findings: Mapping[str, Finding], result: str | None
) -> dict[str, Any]:
    """Return the report as an object for JSON."""
    return {
        "workdir": directory,
        "result": result,
        **_count(findings),
        "findings": [
            {"check": check, **finding._asdict()} for check, finding in findings.items()
        ],
    }


def _count(findings: Mapping[str, Finding]) -> dict[str, int]:
    verdicts = [finding.verdict for finding in findings.values()]
    return {verdict: verdicts.count(verdict) for verdict in VERDICTS}
