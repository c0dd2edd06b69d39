"""Findings as lines of text and as one record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from jaxformer.diagnosis.findings import VERDICTS, Finding

_PAGE = 'the page "Why is my BLEU lower?" of the documentation'


def write_report(findings: Mapping[str, Finding], result: str | None) -> list[str]:
    """Write a line for each finding, the worst first, a line for each reason of unseen
    ones, and the counts.

    Args:
        findings: of a run, by check.
        result: the name of the examined result; None: there is none.
    """
    width = max(map(len, findings))
    lines, unseen = [], {}
    for check, finding in sorted(
        findings.items(), key=lambda item: VERDICTS.index(item[1].verdict)
    ):
        if finding.verdict == "unseen":
            unseen.setdefault(finding.found, []).append(check)
            continue
        line = f"{finding.verdict:<6}  {check:<{width}}  {finding.found}"
        line += f" | expected: {finding.expected}" if finding.expected else ""
        lines.append(f"{line} | cure: {finding.cure}" if finding.cure else line)
    lines += [f"unseen  {', '.join(checks)}: {why}" for why, checks in unseen.items()]
    if result is not None:
        lines.append(f"of the result {result!r}; --dataset names another")
    counts = Counter(finding.verdict for finding in findings.values())
    return [
        *lines,
        f"{counts['wrong']} wrong, {counts['look']} to look at, {counts['ok']} ok,"
        f" {counts['unseen']} unseen; {_PAGE} explains each",
    ]


def to_record(
    directory: str, findings: Mapping[str, Finding], result: str | None
) -> dict[str, Any]:
    """Return the report as an object for JSON."""
    counts = Counter(finding.verdict for finding in findings.values())
    return {
        "workdir": directory,
        "result": result,
        **{verdict: counts[verdict] for verdict in VERDICTS},
        "findings": [
            {"check": check, **finding._asdict()} for check, finding in findings.items()
        ],
    }
