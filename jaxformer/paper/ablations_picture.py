"""Ablations beside the paper's as a picture: how far each row is from its base, here and there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jaxformer.errors import InputError, require
from jaxformer.paper.ablations import BASE_ROW, USUAL, Result
from jaxformer.paper.ablations_report import Comparison, Line, compare, spread

_INK, _QUIET, _LINE, _BAND = "#1c2430", "#4a5563", "#d5dbe3", "#eef1f5"
_PAPER, _OURS = "#7a8799", "#1f5fa8"


def draw(results: Sequence[Result], picture: Path | str) -> Path:
    """Draw each row's difference from the base, 1000 pixels wide, as a PNG.

    On the left in perplexity, as a percentage of the base's, since the paper's perplexities are of another text; on the
    right in BLEU. A band shows the noise, where the base was trained by several seeds.

    Args:
        results: of a folder; see :func:`jaxformer.paper.ablations.collect`.
        picture: the file to write; its directory is created.

    Raises:
        InputError: there is no row besides the base, or matplotlib is not installed.
    """
    base, *lines = compare(results)
    if not lines:
        raise InputError(f"a picture of ablations needs a row besides {BASE_ROW}: run another")
    height = 1.5 + 0.3 * len(lines)
    figure = require("matplotlib.figure", "train").Figure(figsize=(10, height), facecolor="white", layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.08)
    left, right = figure.subplots(1, 2, sharey=True)
    runs = [result for result in results if result.row == BASE_ROW and result.decoding == USUAL.name]
    noise = spread([run.perplexity for run in runs]), spread([run.bleu for run in runs])
    percent = 100 / base.perplexity.value
    _draw_panel(left, lines, lambda line: line.perplexity, (noise[0] or 0.0) * percent, relative=True)
    _draw_panel(right, lines, lambda line: line.bleu, noise[1] or 0.0, relative=False)
    left.set_xlabel("perplexity, % more than the base's (less is better)", fontsize=9.5, color=_QUIET)
    right.set_xlabel("BLEU, difference from the base's (more is better)", fontsize=9.5, color=_QUIET)
    left.set_yticks(range(len(lines)), [_label(line) for line in lines], fontsize=9, color=_INK)
    left.set_ylim(len(lines) - 0.4, -0.6)
    handles = left.get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper left", ncols=3, frameon=False, fontsize=9, labelcolor=_INK)
    picture = Path(picture)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, format="png", dpi=100)
    return picture


def _label(line: Line) -> str:
    return ", ".join(f"{key.partition('.')[2]} {value}" for key, value in line.changes.items()) or line.row


def _draw_panel(
    axes: Any, lines: Sequence[Line], metric: Callable[[Line], Comparison], noise: float, *, relative: bool
) -> None:
    """Mark the differences of one metric, with a line between ours and the paper's."""
    if noise:
        axes.axvspan(-noise, noise, color=_BAND, label="noise: the base's seeds", zorder=0)
    axes.axvline(0.0, color=_QUIET, linewidth=0.8, zorder=1)
    ours, paper = [], []
    for place, comparison in enumerate(map(metric, lines)):
        own = _change(comparison.value, comparison.difference, relative)
        ours.append((own, place))
        if comparison.paper is not None and comparison.paper_difference is not None:
            other = _change(comparison.paper, comparison.paper_difference, relative)
            paper.append((other, place))
            axes.plot((own, other), (place, place), color=_LINE, linewidth=1.2, zorder=2)
    if paper:
        axes.scatter(*zip(*paper, strict=True), s=30, color=_PAPER, label="paper", zorder=3)
    axes.scatter(*zip(*ours, strict=True), s=36, marker="D", color=_OURS, label="here", zorder=4)
    axes.tick_params(labelsize=9, labelcolor=_QUIET, color=_LINE)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=_LINE, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(_LINE)


def _change(value: float, difference: float, relative: bool) -> float:
    """Give a difference from the base, in percent of the base's value where that is asked for."""
    return 100 * difference / (value - difference) if relative else difference
