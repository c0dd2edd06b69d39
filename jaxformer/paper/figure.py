"""What the figures of the page about the paper have in common: panels of curves, and
matrices shown by colours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxformer.errors import require
from jaxformer.visualization import style

WEIGHTS = ("#f4f6f9", "#5b8fc9", "#0b2a5b")
"""Colours from 0 to the greatest number, as the attention maps have them."""
SIGNED = ("#b4451f", "#f7f8fa", "#1f5fa8")
"""Colours from the least number over 0 to the greatest."""


def colours(names: Sequence[str]) -> Any:
    """Make a continuous scale of colours."""
    return require("matplotlib.colors", "train").LinearSegmentedColormap.from_list(
        "paper", list(names)
    )


def style_lines(
    axes: Any, title: str, across: str, *, legend: str | None = "best"
) -> None:
    """Give a panel of curves its title, its axes and its legend, if it is to have
    one, in the place of that name.
    """
    style.title(axes, title)
    style.name_axis(axes, "x", across)
    style.frame(axes)
    axes.tick_params(which="minor", length=0)
    if legend is not None:
        axes.legend(
            loc=legend,
            framealpha=1,
            edgecolor="white",
            fontsize=8.5,
            labelcolor=style.INK,
            handlelength=1.6,
        )


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
    """Show a matrix by colours, its first row on top; give the image."""
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
    """Draw the scale of an image's colours on the right of its panels."""
    bar = figure.colorbar(image, ax=axes, ticks=list(ticks), pad=0.01, aspect=25)
    bar.ax.set_yticklabels([f"{tick:g}" for tick in ticks])
    bar.ax.tick_params(
        labelsize=8.5, labelcolor=style.QUIET, color=style.LINE, length=2
    )
    bar.outline.set(edgecolor="#c3cad4", linewidth=0.6)
