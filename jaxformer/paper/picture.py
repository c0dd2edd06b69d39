"""Draw a table of the paper next to ours: scores on the left, costs on the right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxformer.paper.report import Line
from jaxformer.paper.runs import RunScore
from jaxformer.paper.tables import Table
from jaxformer.visualization import style

_PAPER, _OURS = style.GREY, style.BLUE


def draw(table: Table, lines: Sequence[Line], picture: Path | str) -> Path:
    """Draw a table, 1000 pixels wide, as a PNG.

    The left has each row's scores in the paper and of a run, hollow where the two do
    not compare. The right has the parameters (Tables 3 and 4) or the training FLOPs
    (Table 2), the paper's and ours.

    Args:
        table: of the paper.
        lines: result of :func:`jaxformer.paper.report.make_lines`.
        picture: the file to write; its directory is created.

    Raises:
        InputError: matplotlib is not installed.
    """
    height = 1.3 + 0.27 * len(lines)
    figure = style.new_figure(10, height)
    figure.suptitle(
        f"Table {table.number}: {table.title}",
        fontsize=11.5,
        color=style.INK,
        x=0.02,
        horizontalalignment="left",
    )
    metrics = table.metrics.items()
    widths = (*(6 / len(metrics) for _ in metrics), 5)
    *panels, right = figure.subplots(1, len(widths), sharey=True, width_ratios=widths)
    for axes, (metric, heading) in zip(panels, metrics, strict=True):
        _draw_scores(axes, metric, heading, lines)
    _draw_cost(right, table, lines)
    left = panels[0]
    # It may extend over the next panels: the right legend, as high, reserves the room.
    _explain(left, panels).set_in_layout(False)
    _explain(right, [right])
    left.set_yticks(
        range(len(lines)),
        [line.row.title for line in lines],
        fontsize=9,
        color=style.INK,
    )
    left.set_ylim(len(lines) - 0.4, -0.6)
    return style.save(figure, picture)


def _draw_scores(axes: Any, metric: str, heading: str, lines: Sequence[Line]) -> None:
    """Mark the scores of the paper and of runs."""
    paper = [(line.row.scores[metric], place) for place, line in enumerate(lines)]
    axes.scatter(*zip(*paper, strict=True), s=30, color=_PAPER, label="paper", zorder=3)
    runs = [
        (line.run, line.run.get(metric), place)
        for place, line in enumerate(lines)
        if line.run is not None
    ]
    for label, noted, fill in (
        ("run", False, _OURS),
        ("run, not comparable", True, "white"),
    ):
        points = [
            (value, place)
            for run, value, place in runs
            if value is not None and _is_noted(run, metric) == noted
        ]
        if points:
            looks = {"s": 36, "marker": "D", "linewidth": 1.4, "zorder": 4}
            axes.scatter(
                *zip(*points, strict=True),
                facecolor=fill,
                edgecolor=_OURS,
                label=label,
                **looks,
            )
    _finish(axes, heading)
    axes.margins(x=0.08)


def _is_noted(run: RunScore, metric: str) -> bool:
    """Return whether a score does not compare with the paper's; no perplexity does,
    since the vocabularies differ.
    """
    return bool(run.notes) or metric == "perplexity"


def _draw_cost(axes: Any, table: Table, lines: Sequence[Line]) -> None:
    if table.number == 2:
        name, scale = "training FLOPs", 1.0
        paper, ours = [line.row.flops for line in lines], [line.flops for line in lines]
        axes.set_xscale("log")
    else:
        name, scale = "parameters, millions", 1e6
        paper, ours = (
            [line.row.parameters for line in lines],
            [line.parameters for line in lines],
        )
    for label, values, unit, colour, shift in (
        ("paper", paper, 1.0, _PAPER, -0.18),
        ("jaxformer", ours, scale, _OURS, 0.18),
    ):
        bars = [
            (place + shift, value / unit)
            for place, value in enumerate(values)
            if value is not None
        ]
        if bars:
            places, lengths = zip(*bars, strict=True)
            looks = {"color": colour, "label": label, "zorder": 3}
            # On a logarithmic axis the length of a bar means nothing.
            if table.number == 2:
                axes.scatter(lengths, places, s=30, **looks)
            else:
                axes.barh(places, lengths, height=0.34, **looks)
    _finish(axes, name)


def _finish(axes: Any, name: str) -> None:
    style.name_axis(axes, "x", name)
    style.frame(axes, grid="x")


def _explain(axes: Any, panels: Sequence[Any]) -> Any:
    """Write the legend of some panels above one of them, and return it."""
    marks = {
        label: mark
        for panel in panels
        for mark, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    return axes.legend(
        list(marks.values()),
        list(marks),
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=3,
        handlelength=1.2,
        borderaxespad=0,
        **style.LEGEND,
    )
