"""The validation loss of both systems as a picture, and how far apart they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxformer.benchmark.quality import OURS, THEIRS, Point, relative_difference
from jaxformer.errors import require

_INK, _QUIET, _LINE = "#1c2430", "#4a5563", "#d5dbe3"
_LOOKS = {
    THEIRS: {"color": "#e0a27f", "linewidth": 5.0, "label": "PyTorch"},
    OURS: {"color": "#1f5fa8", "linewidth": 1.6, "marker": "o", "markersize": 3.4, "label": "jaxformer"},
}
_GOAL = 1.0  # percent


def draw(points: Sequence[Point], picture: Path) -> Path:
    """Draw both curves over each other, and their difference in percent beside them, as a PNG 900 pixels wide.

    Args:
        points: of both systems at the same steps.
        picture: the file to write.

    Raises:
        InputError: matplotlib is not installed.
    """
    figure = require("matplotlib.figure", "train").Figure(figsize=(9, 3.4), facecolor="white", layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.08)
    left, right = figure.subplots(1, 2, width_ratios=(5, 4))
    _draw_losses(left, points)
    _draw_difference(right, points)
    figure.savefig(picture, format="png", dpi=100)
    return picture


def _draw_losses(axes: Any, points: Sequence[Point]) -> None:
    for name, looks in _LOOKS.items():
        own = [point for point in points if point.system == name]
        label = f"{looks['label']}, last {own[-1].valid_nll:.4f}"
        steps, losses = [point.step for point in own], [point.valid_nll for point in own]
        axes.plot(steps, losses, **{**looks, "label": label}, solid_capstyle="round")
    _finish(axes, "validation, nats per token")
    axes.legend(framealpha=1, edgecolor="white", fontsize=9, labelcolor=_INK)


def _draw_difference(axes: Any, points: Sequence[Point]) -> None:
    steps, differences = zip(*relative_difference(points), strict=True)
    percent = [100.0 * difference for difference in differences]
    axes.axhspan(-_GOAL, _GOAL, color="#eef2f7")
    axes.axhline(0.0, color=_QUIET, linewidth=0.8)
    axes.plot(steps, percent, color="#1f5fa8", linewidth=1.6, marker="o", markersize=3.4)
    high = max(1.5 * _GOAL, 1.1 * max(map(abs, percent)))
    axes.set_ylim(-high, high)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:+.2g}%" if value else "0")
    _finish(axes, "jaxformer against PyTorch; shaded: 1%")


def _finish(axes: Any, title: str) -> None:
    axes.set_title(title, fontsize=10.5, color=_INK, loc="left", pad=8)
    axes.set_xlabel("step", fontsize=9.5, color=_QUIET)
    axes.xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}")
    axes.locator_params(axis="x", nbins=5, integer=True, min_n_ticks=1)
    axes.set_xlim(left=0)
    axes.tick_params(labelsize=9, labelcolor=_QUIET, color=_LINE)
    axes.grid(axis="y", color=_LINE, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(_LINE)
