"""Findings as lines of text and as one record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from jaxformer.diagnosis.findings import VERDICTS, Finding

_PAGE = 'the page "Why is my BLEU lower?" of the documentation'


def write_report(findings: Sequence[Finding], looked_at: str | None) -> list[str]:
    """Write one line a finding, the worst first, one for each reason of what is unseen,
    and one that counts them.

    Args:
        findings: of a run.
        looked_at: the name of its result that the findings are of; None: there is none.
    """
    width = max(len(finding.check) for finding in findings)
    seen = [finding for finding in findings if finding.verdict != "unseen"]
    ordered = sorted(seen, key=lambda finding: VERDICTS.index(finding.verdict))
    return [
        *(_line(finding, width) for finding in ordered),
        *_unseen(findings),
        *(
            []
            if looked_at is None
            else [f"of the result {looked_at!r}; --dataset names another"]
        ),
        f"{_counts(findings)}; {_PAGE} explains each",
    ]


def to_record(
    directory: str, findings: Sequence[Finding], looked_at: str | None
) -> dict[str, Any]:
    """Return what the report says as an object for JSON."""
    counts = Counter(finding.verdict for finding in findings)
    return {
        "workdir": directory,
        "result": looked_at,
        **{verdict: counts[verdict] for verdict in VERDICTS},
        "findings": [finding._asdict() for finding in findings],
    }


def _line(finding: Finding, width: int) -> str:
    words = f"{finding.verdict:<6}  {finding.check:<{width}}  {finding.found}"
    if finding.expected:
        words += f" | expected: {finding.expected}"
    return f"{words} | cure: {finding.cure}" if finding.cure else words


def _unseen(findings: Sequence[Finding]) -> list[str]:
    """Write what could not be seen, one line a reason."""
    checks: dict[str, list[str]] = {}
    for finding in findings:
        if finding.verdict == "unseen":
            checks.setdefault(finding.found, []).append(finding.check)
    return [f"unseen  {', '.join(names)}: {reason}" for reason, names in checks.items()]


def _counts(findings: Sequence[Finding]) -> str:
    counts = Counter(finding.verdict for finding in findings)
    return (
        f"{counts['wrong']} wrong, {counts['look']} to look at, {counts['ok']} ok,"
        f" {counts['unseen']} unseen"
    )
