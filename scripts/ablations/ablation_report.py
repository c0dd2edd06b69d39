"""Compare ablations with the paper's: which rows are better or worse, as Markdown."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ablation_results import BASE_ROW, OTHERS, ROWS, USUAL, Result
from jaxformer.errors import InputError
from jaxformer.paper.report import to_grid
from jaxformer.paper.tables import Row, find_table

BETTER, WORSE, WITHIN_NOISE = "better", "worse", "within noise"


HARDLY = {"perplexity": 0.05, "bleu": 0.15}
"""Smaller differences in the paper do not count; its noise is unknown."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One metric of a row against the base, and the paper's.

    Attributes:
        value: the mean over the seeds of the row.
        difference: of that mean from the base's.
        verdict: better, worse or within noise; None where the noise is not known, and
            of the base itself.
        paper: the paper's value; None where the paper has no such row.
        paper_difference: of the paper's value from its base's.
        hardly: a difference of the paper's below this is none to agree with.
    """

    value: float
    difference: float
    verdict: str | None
    paper: float | None
    paper_difference: float | None
    hardly: float = 0.0

    @property
    def agreement(self) -> str:
        """Return whether a row that leaves the noise does so in the paper's direction;
        empty where nothing can be said.
        """
        if self.verdict in (None, WITHIN_NOISE) or self.paper_difference is None:
            return ""
        if abs(self.paper_difference) < self.hardly:
            return "where the paper's hardly differs"
        return (
            "as in the paper"
            if self.difference * self.paper_difference > 0
            else "unlike the paper"
        )


@dataclasses.dataclass(frozen=True)
class Line:
    """A row of the ablation_results.

    Attributes:
        row: its name.
        paper: its row of Table 3; None if there is none.
        changes: what it has otherwise than the base.
        parameters: of its model.
        seeds: how many runs were made of it.
        perplexity: of the validation text.
        bleu: of the test text.
    """

    row: str
    paper: Row | None
    changes: Mapping[str, Any]
    parameters: int
    seeds: int
    perplexity: Comparison
    bleu: Comparison


def spread(values: Sequence[float]) -> float | None:
    """Return the distance of the largest from the smallest, the noise of a
    measurement; None where there is only one.
    """
    return max(values) - min(values) if len(values) > 1 else None


def judge(
    difference: float, noise: float | None, *, lower_is_better: bool
) -> str | None:
    """Return whether a difference is for the better, for the worse, or no larger than
    the noise; None: it is not known.
    """
    if noise is None:
        return None
    if abs(difference) <= noise:
        return WITHIN_NOISE
    return BETTER if (difference < 0) == lower_is_better else WORSE


def judge_pairs(differences: Sequence[float]) -> str | None:
    """Return whether differences in BLEU of the same runs are all for the better or all
    for the worse, or neither.

    None for a single one, of which nothing can be said.
    """
    if len(differences) < 2:
        return None
    if all(difference > 0 for difference in differences):
        return BETTER
    return WORSE if all(difference < 0 for difference in differences) else WITHIN_NOISE


def compare(results: Iterable[Result]) -> list[Line]:
    """Compare each row with the base, by the usual search, in the order of the rows.

    Raises:
        InputError: there is no result of the base.
    """
    usual = [result for result in results if result.decoding == USUAL.name]
    rows = {row: [result for result in usual if result.row == row] for row in ROWS}
    if not rows[BASE_ROW]:
        raise InputError(
            f"there is no result of the row {BASE_ROW}, which all are compared with:"
            " run it first"
        )
    return [_line(row, found, rows[BASE_ROW]) for row, found in rows.items() if found]


def _line(row: str, found: Sequence[Result], base: Sequence[Result]) -> Line:
    name = ROWS[row]
    table = find_table(3)
    of_paper, base_of_paper = table.find(name) if name else None, table.find("base")

    def metric(key: str, lower_is_better: bool) -> Comparison:
        bases = [getattr(result, key) for result in base]
        value = statistics.fmean(getattr(result, key) for result in found)
        difference = value - statistics.fmean(bases)
        verdict = (
            None
            if row == BASE_ROW
            else judge(difference, spread(bases), lower_is_better=lower_is_better)
        )
        if of_paper is None:
            return Comparison(value, difference, verdict, None, None)
        paper = of_paper.scores[key]
        return Comparison(
            value,
            difference,
            verdict,
            paper,
            paper - base_of_paper.scores[key],
            HARDLY[key],
        )

    perplexity, bleu = metric("perplexity", True), metric("bleu", False)
    return Line(
        row,
        of_paper,
        found[0].changes,
        found[0].parameters,
        len(found),
        perplexity,
        bleu,
    )


def to_markdown(results: Sequence[Result]) -> str:
    """Write the rows next to the paper's, then the other searches of the base, and what
    the numbers are.

    Raises:
        InputError: there is no result of the base.
    """
    lines = compare(results)
    parts = [_rows(lines), *_searches(results), *_explain(results)]
    return "\n\n".join(parts) + "\n"


def _rows(lines: Sequence[Line]) -> str:
    header = (
        *("row", "what differs", "parameters", "seeds", "perplexity", "BLEU"),
        *("row of the paper", "its perplexity", "its BLEU"),
        *("perplexity against base", "BLEU against base"),
    )
    rows = [
        (
            f"`{line.row}`",
            ", ".join(
                f"{key.partition('.')[2]} {value}"
                for key, value in line.changes.items()
            ),
            f"{line.parameters:,}",
            str(line.seeds),
            f"{line.perplexity.value:.2f}",
            f"{line.bleu.value:.2f}",
            line.paper.title if line.paper else "",
            f"{line.perplexity.paper:.2f}" if line.paper else "",
            f"{line.bleu.paper:.1f}" if line.paper else "",
            _against(line, line.perplexity),
            _against(line, line.bleu),
        )
        for line in lines
    ]
    return to_grid(header, rows, words=(0, 1, 6, 9, 10))


def _against(line: Line, metric: Comparison) -> str:
    """Write a difference, what it is, and whether the paper has it too."""
    if line.row == BASE_ROW:
        return ""
    said = ", ".join(word for word in (metric.verdict, metric.agreement) if word)
    return f"{metric.difference:+.2f}" + (f": {said}" if said else "")


def _searches(results: Sequence[Result]) -> list[str]:
    """Write the other searches of the base's runs, compared with the usual one."""
    scores: dict[str, dict[int, float]] = {}
    for result in results:
        if result.row == BASE_ROW:
            scores.setdefault(result.decoding, {})[result.seed] = result.bleu
    usual = scores[USUAL.name]
    rows = [
        (USUAL.name, str(len(usual)), f"{statistics.fmean(usual.values()):.2f}", "")
    ]
    for name in (decoding.name for decoding in OTHERS):
        found = scores.get(name, {})
        pairs = [bleu - usual[seed] for seed, bleu in found.items() if seed in usual]
        if pairs:
            mean, verdict = statistics.fmean(found.values()), judge_pairs(pairs)
            against = f"{statistics.fmean(pairs):+.2f}"
            against += f": {verdict}" if verdict else ""
            rows.append((name, str(len(pairs)), f"{mean:.2f}", against))
    if len(rows) == 1:
        return []
    return [
        "Other searches of the base's runs:",
        to_grid(("search", "seeds", "BLEU", "against the first"), rows, (0, 3)),
    ]


def _explain(results: Sequence[Result]) -> list[str]:
    """Describe what the numbers are, and what counts as noise."""
    first = results[0]
    base = [
        result
        for result in results
        if result.row == BASE_ROW and result.decoding == USUAL.name
    ]
    perplexity, bleu = (
        spread([getattr(result, key) for result in base])
        for key in ("perplexity", "bleu")
    )
    if perplexity is None or bleu is None:
        noise = (
            "One seed of the base says nothing of the noise, so that no difference is"
            " judged: run it with more."
        )
    else:
        noise = (
            "Noise is the distance between the highest and the lowest of the base's"
            f" {len(base)} seeds: {perplexity:.2f} in perplexity and {bleu:.2f} BLEU. A"
            " row whose mean is no farther from the base's is within noise. Another"
            " search is judged by whether it changes the same runs all for the better"
            " or all for the worse."
        )
    return [
        (
            f"Perplexity: of `{first.valid}`, a piece of the vocabulary, after"
            f" {first.steps:,} steps. BLEU: sacreBLEU of the {first.sentences:,}"
            f" sentences of `{first.dataset}`, `{first.bleu_signature}`, {USUAL.name},"
            " of the last checkpoint. Both are means over the seeds. The paper's are"
            " of newstest2013."
        ),
        noise,
    ]
