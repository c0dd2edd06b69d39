"""Draw the ablations next to the paper's: the distance of each row from its base."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ablation_report import Comparison, Line, compare, spread
from ablation_results import BASE_ROW, USUAL, Result
from jaxformer.errors import InputError
from jaxformer.visualization import style

_PAPER, _OURS = style.GREY, style.BLUE


def draw(results: Sequence[Result], picture: Path | str) -> Path:
    """Draw each row's difference from the base, 1000 pixels wide, as a PNG.

    On the left in perplexity, as a percentage of the base's, since the paper's
    perplexities are of another text; on the right in BLEU. A band shows the noise,
    where the base was trained by several seeds.

    Args:
        results: of a folder; see :func:`ablation_results.collect`.
        picture: the file to write; its directory is created.

    Raises:
        InputError: there is no row besides the base, or matplotlib is not installed.
    """
    base, *lines = compare(results)
    if not lines:
        raise InputError(
            f"a picture of ablations needs a row besides {BASE_ROW}: run another"
        )
    height = 1.5 + 0.3 * len(lines)
    figure = style.new_figure(10, height)
    left, right = figure.subplots(1, 2, sharey=True)
    runs = [
        result
        for result in results
        if result.row == BASE_ROW and result.decoding == USUAL.name
    ]
    noise = spread([run.perplexity for run in runs]), spread([run.bleu for run in runs])
    percent = 100 / base.perplexity.value
    _draw_panel(
        left,
        lines,
        lambda line: line.perplexity,
        (noise[0] or 0.0) * percent,
        relative=True,
    )
    _draw_panel(right, lines, lambda line: line.bleu, noise[1] or 0.0, relative=False)
    style.name_axis(left, "x", "perplexity, % more than the base's (less is better)")
    style.name_axis(right, "x", "BLEU, difference from the base's (more is better)")
    left.set_yticks(
        range(len(lines)), [_label(line) for line in lines], fontsize=9, color=style.INK
    )
    left.set_ylim(len(lines) - 0.4, -0.6)
    handles = left.get_legend_handles_labels()
    figure.legend(
        *handles,
        loc="outside upper left",
        ncols=3,
        frameon=False,
        fontsize=9,
        labelcolor=style.INK,
    )
    return style.save(figure, picture)


def _label(line: Line) -> str:
    return (
        ", ".join(
            f"{key.partition('.')[2]} {value}" for key, value in line.changes.items()
        )
        or line.row
    )


def _draw_panel(
    axes: Any,
    lines: Sequence[Line],
    metric: Callable[[Line], Comparison],
    noise: float,
    *,
    relative: bool,
) -> None:
    """Mark the differences of one metric, with a line between ours and the paper's."""
    if noise:
        axes.axvspan(
            -noise, noise, color=style.BAND, label="noise: the base's seeds", zorder=0
        )
    axes.axvline(0.0, color=style.QUIET, linewidth=0.8, zorder=1)
    ours, paper = [], []
    for place, comparison in enumerate(map(metric, lines)):
        own = _change(comparison.value, comparison.difference, relative)
        ours.append((own, place))
        if comparison.paper is not None and comparison.paper_difference is not None:
            other = _change(comparison.paper, comparison.paper_difference, relative)
            paper.append((other, place))
            axes.plot(
                (own, other), (place, place), color=style.LINE, linewidth=1.2, zorder=2
            )
    if paper:
        axes.scatter(
            *zip(*paper, strict=True), s=30, color=_PAPER, label="paper", zorder=3
        )
    axes.scatter(
        *zip(*ours, strict=True), s=36, marker="D", color=_OURS, label="here", zorder=4
    )
    style.frame(axes, grid="x")


def _change(value: float, difference: float, relative: bool) -> float:
    """Return a difference from the base, in percent of the base's value where that is
    asked for.
    """
    return 100 * difference / (value - difference) if relative else difference
