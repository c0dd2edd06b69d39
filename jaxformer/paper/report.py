"""Write a table of the paper next to ours as Markdown."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

from jaxformer.paper.cost import (
    SENTENCE,
    check_utilisation,
    count_flops,
    expected_hours,
)
from jaxformer.paper.parameters import count_parameters
from jaxformer.paper.runs import RunScore
from jaxformer.paper.tables import Row, Table


@dataclasses.dataclass(frozen=True)
class Line:
    """A row of a table with the figures of jaxformer.

    Attributes:
        row: the paper's.
        parameters: of our model; None for a system of other authors.
        flops: of training it, by formula.
        hours: of training, estimated; None if the speed of the devices is unknown.
        run: the score of a run.
    """

    row: Row
    parameters: int | None = None
    flops: float | None = None
    hours: float | None = None
    run: RunScore | None = None


def make_lines(
    table: Table,
    runs: Mapping[str, RunScore],
    *,
    flops_per_second: float | None,
    utilisation: float,
) -> list[Line]:
    """Compute our figures for each row of a table.

    Args:
        table: of the paper.
        runs: scores by the name of their row.
        flops_per_second: the peak of all devices together; None if unknown.
        utilisation: the share of the peak that training reaches.

    Raises:
        InputError: the speed or the utilisation is out of range.
    """
    check_utilisation(utilisation)
    return [
        _line(row, runs.get(row.name), flops_per_second, utilisation)
        for row in table.rows
    ]


def _line(
    row: Row, run: RunScore | None, flops_per_second: float | None, utilisation: float
) -> Line:
    if row.config is None:
        return Line(row)
    model, settings = row.model, row.settings
    operations = count_flops(
        model,
        steps=int(settings["training.steps"]),
        tokens_per_batch=int(settings["data.tokens_per_batch"]),
    )
    hours = None
    if flops_per_second is not None:
        hours = expected_hours(operations, flops_per_second, utilisation)
    return Line(row, count_parameters(model), operations, hours, run)


def to_markdown(
    table: Table, lines: Sequence[Line], *, devices: str, utilisation: float
) -> str:
    """Write a table as Markdown, with why runs do not compare and how the numbers were
    counted.

    Args:
        table: of the paper.
        lines: result of :func:`make_lines`.
        devices: description of the devices of the hours.
        utilisation: the share of their peak.
    """
    header, *rows = _columns(table, lines)
    remarks = [
        f"- `{line.row.name}`: {line.row.remark}." for line in lines if line.row.remark
    ]
    runs = [_describe(line.row, line.run) for line in lines if line.run is not None]
    parts = [
        f'# Table {table.number} of "Attention Is All You Need": {table.title}',
        to_grid(header, rows, words=(0, 1)),
        *(["\n".join(remarks)] if remarks else []),
        *(["## Runs", "\n".join(runs)] if runs else []),
        "## How it is counted",
        *_explain(table, devices, utilisation),
    ]
    return "\n\n".join(parts) + "\n"


def _columns(table: Table, lines: Sequence[Line]) -> list[list[str]]:
    """Lay out the header and the rows, without empty columns."""
    scores = (
        f"{heading}, {whose}"
        for heading in table.metrics.values()
        for whose in ("paper", "run")
    )
    header = ["row", "model", *scores, "parameters, paper", "parameters"]
    header += ["training FLOPs, paper", "training FLOPs", "hours"]
    columns = zip(header, *(_cells(table, line) for line in lines), strict=True)
    kept = [column for column in columns if any(column[1:])]
    return [list(cells) for cells in zip(*kept, strict=True)]


def _cells(table: Table, line: Line) -> list[str]:
    row = line.row
    cells = [f"`{row.name}`" if row.config else "", row.title]
    for metric in table.metrics:
        cells += [_paper_score(row, metric), _run_score(line.run, metric)]
    cells += [_number(row.parameters, "{:.0f} M"), _number(line.parameters, "{:,}")]
    cells += [_number(cost, "{:.1e}") for cost in (row.flops, line.flops)]
    return [*cells, _hours(line)]


def _number(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value).replace("e+", "e")


def _paper_score(row: Row, metric: str) -> str:
    """Return a score with the paper's decimals: two in perplexities and some BLEU."""
    digits = 2 if metric == "perplexity" else row.decimals
    return f"{row.scores[metric]:.{digits}f}"


def _run_score(run: RunScore | None, metric: str) -> str:
    """Return a score of a run, with a star if it does not compare."""
    if run is None or (value := run.get(metric)) is None:
        return ""
    star = r"\*" if run.notes else ""
    return f"{value:.{2 if metric == 'perplexity' else 1}f}{star}"


def _hours(line: Line) -> str:
    if line.flops is None:
        return ""
    if line.hours is None:
        return "unknown"
    return f"{line.hours:,.1f}" if line.hours >= 1 else f"{line.hours:.2g}"


def _describe(row: Row, run: RunScore) -> str:
    """Describe what was scored of a run and why it does not compare."""
    step = "checkpoint " if isinstance(run.checkpoint, int) else ""
    head = (
        f"- `{row.name}`: {run.directory}, {run.parameters:,} parameters, trained on"
        f" {run.trained_on}, {step}{run.checkpoint}, {run.metric} {run.value:g} on"
        f" {run.dataset}."
    )
    if not run.notes:
        return f"{head} Comparable with the paper, where that is its training text."
    notes = (f"  - {note}" for note in run.notes)
    return "\n".join((f"{head} Not comparable with the paper:", *notes))


def _explain(table: Table, devices: str, utilisation: float) -> Iterator[str]:
    trees = " Trees are longer: here they are a rough figure."
    yield (
        "Parameters are counted on the model of the row's configuration, with its"
        " vocabulary; those of a run are in its line. Training FLOPs are those of the"
        " matmuls of forward and backward passes over real tokens, in full batches of"
        f" {SENTENCE} tokens a sentence.{trees if table.number == 4 else ''}"
    )
    if table.number == 2:
        yield (
            "The paper's FLOPs are time by devices by sustained FLOPs: what was spent,"
            " not what the model needs."
        )
    if devices:
        yield (
            f"Hours are an estimate: the FLOPs at {utilisation:.0%} of the peak of"
            f" {devices}."
        )
    else:
        yield (
            "Hours are unknown without the peak of the devices: set --flops_per_second."
        )
    if table.number == 3:
        yield (
            "Perplexities are per piece of the vocabulary, and compare only between"
            " equal vocabularies."
        )


def to_grid(
    header: Sequence[str], rows: Iterable[Sequence[str]], words: Sequence[int]
) -> str:
    """Lay out a Markdown table: columns of numbers are right-aligned.

    Args:
        header: of the columns.
        rows: cells, as many in each as the header has.
        words: indices of the columns of words.
    """
    aligned = ["---" if place in words else "---:" for place in range(len(header))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, aligned, *rows))
