"""What the figures of the page about the paper have in common: paper, ink and the way to a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxformer.errors import require

INK, QUIET, LINE = "#1c2430", "#4a5563", "#d5dbe3"
BLUE, ORANGE, GREY, GREEN = "#1f5fa8", "#b4451f", "#7a8799", "#3f7d58"

WEIGHTS = ("#f4f6f9", "#5b8fc9", "#0b2a5b")
"""Colours from 0 to the greatest number, as the attention maps have them."""
SIGNED = ("#b4451f", "#f7f8fa", "#1f5fa8")
"""Colours from the least number over 0 to the greatest."""


def make_figure(height: float) -> Any:
    """Make an empty figure, 9 inches wide, that no global state of pyplot sees.

    Raises:
        InputError: matplotlib is not installed.
    """
    figure = require("matplotlib.figure", "train").Figure(figsize=(9, height), facecolor="white", layout="constrained")
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.08)
    return figure


def save(figure: Any, picture: Path | str) -> Path:
    """Write a figure as a PNG of 100 dots an inch; the directory is created."""
    picture = Path(picture)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, format="png", dpi=100, pil_kwargs={"optimize": True})
    return picture


def colours(names: Sequence[str]) -> Any:
    """Make a continuous scale of colours."""
    return require("matplotlib.colors", "train").LinearSegmentedColormap.from_list("paper", list(names))


def write_title(axes: Any, title: str) -> None:
    """Write a panel's title on its left."""
    axes.set_title(title, fontsize=10, color=INK, loc="left", pad=7)


def style_lines(axes: Any, title: str, across: str, *, legend: str | None = "best") -> None:
    """Give a panel of curves its title, its axes and its legend, if it is to have one, in the place of that name."""
    write_title(axes, title)
    axes.set_xlabel(across, fontsize=9.5, color=QUIET)
    axes.tick_params(labelsize=9, labelcolor=QUIET, color=LINE)
    axes.tick_params(which="minor", length=0)
    axes.grid(axis="y", color=LINE, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(LINE)
    if legend is not None:
        axes.legend(loc=legend, framealpha=1, edgecolor="white", fontsize=8.5, labelcolor=INK, handlelength=1.6)


def show_matrix(
    axes: Any, matrix: np.ndarray, *, title: str, down: str, across: str, names: Sequence[str], low: float, high: float
) -> Any:
    """Show a matrix by colours, its first row on top; give the image."""
    image = axes.imshow(
        matrix, cmap=colours(names), vmin=low, vmax=high, aspect="auto", interpolation="nearest", rasterized=True
    )
    write_title(axes, title)
    axes.set_xlabel(across, fontsize=9, color=QUIET)
    axes.set_ylabel(down, fontsize=9, color=QUIET)
    axes.tick_params(labelsize=8.5, labelcolor=QUIET, color=LINE)
    for spine in axes.spines.values():
        spine.set(color="#c3cad4", linewidth=0.6)
    return image


def add_scale(figure: Any, image: Any, axes: Any, ticks: Sequence[float]) -> None:
    """Draw the scale of an image's colours on the right of its panels."""
    bar = figure.colorbar(image, ax=axes, ticks=list(ticks), pad=0.01, aspect=25)
    bar.ax.set_yticklabels([f"{tick:g}" for tick in ticks])
    bar.ax.tick_params(labelsize=8.5, labelcolor=QUIET, color=LINE, length=2)
    bar.outline.set(edgecolor="#c3cad4", linewidth=0.6)
