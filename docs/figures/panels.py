"""Panels of the figures of docs/the-paper.md: curves, and matrices shown by colours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxformer.errors import require
from jaxformer.visualization import style

SIGNED = ("#b4451f", "#f7f8fa", "#1f5fa8")
"""Colour scale from the least number through 0 to the greatest."""


def colours(names: Sequence[str]) -> Any:
    """Build a continuous colour scale."""
    return require("matplotlib.colors", "train").LinearSegmentedColormap.from_list(
        "paper", list(names)
    )


def style_lines(
    axes: Any, title: str, across: str, *, legend: str | None = "best"
) -> None:
    """Add title, axes and legend to a panel of curves.

    Args:
        axes: with the curves.
        title: of the panel.
        across: name of the horizontal axis.
        legend: location of the legend; None for no legend.
    """
    style.title(axes, title)
    style.name_axis(axes, "x", across)
    style.frame(axes)
    axes.tick_params(which="minor", length=0)
    if legend is not None:
        axes.legend(loc=legend, **style.INNER_LEGEND | {"fontsize": 8.5})


def show_matrix(
    axes: Any,
    matrix: np.ndarray,
    *,
    title: str,
    down: str,
    across: str,
    names: Sequence[str],
    low: float,
    high: float,
) -> Any:
    """Show a matrix by colours, its first row on top; return the image."""
    image = axes.imshow(
        matrix,
        cmap=colours(names),
        vmin=low,
        vmax=high,
        aspect="auto",
        interpolation="nearest",
        rasterized=True,
    )
    style.title(axes, title)
    axes.set_xlabel(across, fontsize=9, color=style.QUIET)
    axes.set_ylabel(down, fontsize=9, color=style.QUIET)
    axes.tick_params(labelsize=8.5, labelcolor=style.QUIET, color=style.LINE)
    for spine in axes.spines.values():
        spine.set(color="#c3cad4", linewidth=0.6)
    return image


def add_scale(figure: Any, image: Any, axes: Any, ticks: Sequence[float]) -> None:
    """Draw the colour scale of an image on the right of its panels."""
    bar = figure.colorbar(image, ax=axes, ticks=list(ticks), pad=0.01, aspect=25)
    bar.ax.set_yticklabels([f"{tick:g}" for tick in ticks])
    bar.ax.tick_params(
        labelsize=8.5, labelcolor=style.QUIET, color=style.LINE, length=2
    )
    bar.outline.set(edgecolor="#c3cad4", linewidth=0.6)
