"""What all pictures share: colours, the frame of axes, opening and writing."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal

from jaxformer.errors import require
from jaxformer.files import open_whole

INK, QUIET, LINE = "#1c2430", "#4a5563", "#d5dbe3"
"""Colours of titles and legends, of names and numbers of axes, of guides."""

BLUE, RED, GREEN, GREY = "#1f5fa8", "#b4451f", "#3f7d58", "#7a8799"
"""Colours of the first, second and third curve, and of the reference."""

WEIGHTS = ("#f4f6f9", "#5b8fc9", "#0b2a5b")
"""Colour scale of attention weights, from 0 to 1."""

LEGEND: dict[str, Any] = {"frameon": False, "fontsize": 9, "labelcolor": INK}
"""Looks of a legend outside the axes."""

INNER_LEGEND: dict[str, Any] = {
    "framealpha": 1,
    "edgecolor": "white",
    "fontsize": 9,
    "labelcolor": INK,
    "handlelength": 1.6,
}
"""Looks of a legend over curves."""


def new_figure(width: float, height: float) -> Any:
    """Build a white figure that makes room for the labels of its axes.

    Args:
        width: in inches, of 100 pixels each by default of :func:`save`.
        height: in inches.

    Raises:
        InputError: matplotlib is not installed.
    """
    module = require("matplotlib.figure", "train")
    figure = module.Figure(
        figsize=(width, height), facecolor="white", layout="constrained"
    )
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.08)
    return figure


def frame(axes: Any, grid: Literal["x", "y"] = "y") -> None:
    """Draw a line below the axes and a grid.

    Args:
        axes: of a figure.
        grid: the axis whose values the grid marks; with ``x`` the other axis has rows,
            and no ticks.
    """
    axes.tick_params(labelsize=9, labelcolor=QUIET, color=LINE)
    if grid == "x":
        axes.tick_params(axis="y", length=0)
    axes.grid(axis=grid, color=LINE, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(LINE)


def title(axes: Any, text: str) -> None:
    """Write a title above the axes."""
    axes.set_title(text, fontsize=10.5, color=INK, loc="left", pad=8)


def name_axis(axes: Any, axis: Literal["x", "y"], text: str) -> None:
    """Name an axis."""
    write = axes.set_xlabel if axis == "x" else axes.set_ylabel
    write(text, fontsize=9.5, color=QUIET)


def count_steps(axes: Any, bins: int) -> None:
    """Count training steps on the horizontal axis, in at most ``bins`` intervals."""
    name_axis(axes, "x", "step")
    axes.xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}")
    axes.locator_params(axis="x", nbins=bins, integer=True, min_n_ticks=1)
    axes.set_xlim(left=0)


def save(figure: Any, picture: Path | str, dpi: int = 100, **space: Any) -> Path:
    """Write a figure as a PNG; create its directory, and return the file.

    Args:
        figure: of matplotlib.
        picture: the file to write.
        dpi: pixels an inch.
        **space: around the axes, for ``savefig``.
    """
    picture = Path(picture)
    picture.parent.mkdir(parents=True, exist_ok=True)
    with open_picture(picture) as file:
        figure.savefig(
            file, format="png", dpi=dpi, pil_kwargs={"optimize": True}, **space
        )
    return picture


@contextlib.contextmanager
def open_picture(picture: Path) -> Iterator[BinaryIO]:
    """Open a file to write that appears when it is complete, without warnings of
    letters that no installed font has: they are drawn as boxes, and pages show them.
    """
    with open_whole(picture) as file, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing from")
        yield file
