"""The validation loss of both systems as a picture, and how far apart they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxformer.benchmark.quality import OURS, THEIRS, Point, relative_difference
from jaxformer.visualization import style

_LOOKS = {
    THEIRS: {"color": "#e0a27f", "linewidth": 5.0, "label": "PyTorch"},
    OURS: {
        "color": style.BLUE,
        "linewidth": 1.6,
        "marker": "o",
        "markersize": 3.4,
        "label": "jaxformer",
    },
}
_GOAL = 1.0  # percent


def draw(points: Sequence[Point], picture: Path) -> Path:
    """Draw both curves over each other, and their difference in percent beside them, as
    a PNG 900 pixels wide.

    Args:
        points: of both systems at the same steps.
        picture: the file to write; its directory is created.

    Raises:
        InputError: matplotlib is not installed.
    """
    figure = style.new_figure(9, 3.4)
    left, right = figure.subplots(1, 2, width_ratios=(5, 4))
    _draw_losses(left, points)
    _draw_difference(right, points)
    return style.save(figure, picture)


def _draw_losses(axes: Any, points: Sequence[Point]) -> None:
    for name, looks in _LOOKS.items():
        own = [point for point in points if point.system == name]
        label = f"{looks['label']}, last {own[-1].valid_nll:.4f}"
        steps, losses = (
            [point.step for point in own],
            [point.valid_nll for point in own],
        )
        axes.plot(steps, losses, **{**looks, "label": label}, solid_capstyle="round")
    _finish(axes, "validation, nats per token")
    axes.legend(framealpha=1, edgecolor="white", fontsize=9, labelcolor=style.INK)


def _draw_difference(axes: Any, points: Sequence[Point]) -> None:
    steps, differences = zip(*relative_difference(points), strict=True)
    percent = [100.0 * difference for difference in differences]
    axes.axhspan(-_GOAL, _GOAL, color=style.BAND)
    axes.axhline(0.0, color=style.QUIET, linewidth=0.8)
    axes.plot(
        steps, percent, color=style.BLUE, linewidth=1.6, marker="o", markersize=3.4
    )
    high = max(1.5 * _GOAL, 1.1 * max(map(abs, percent)))
    axes.set_ylim(-high, high)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:+.2g}%" if value else "0")
    _finish(axes, "jaxformer against PyTorch; shaded: 1%")


def _finish(axes: Any, title: str) -> None:
    style.title(axes, title)
    style.count_steps(axes, 5)
    style.frame(axes)
