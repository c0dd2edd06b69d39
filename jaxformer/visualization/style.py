"""What all pictures have in common: their colours, the frame of their axes, and how
they are opened and written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from jaxformer.errors import InputError, require
from jaxformer.files import open_whole

INK, QUIET, LINE, BAND = "#1c2430", "#4a5563", "#d5dbe3", "#eef1f5"
"""Of titles and legends, of names and numbers at the axes, of lines that only guide
the eye, of shaded stretches.
"""

BLUE, RED, GREEN, GREY = "#1f5fa8", "#b4451f", "#3f7d58", "#7a8799"
"""Of what is shown: the first thing, a second and a third one, and what the first is
held against.
"""


def new_figure(width: float, height: float) -> Any:
    """Open a white figure that makes room for what is written around its axes.

    Args:
        width: in inches, of a hundred pixels each unless :func:`save` is told
            otherwise.
        height: likewise.

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
    """Leave of the frame the line below and a grid behind what is drawn.

    Args:
        axes: of a figure.
        grid: the axis whose values the lines of the grid mark; with ``x`` the other one
            has rows, and no ticks.
    """
    axes.tick_params(labelsize=9, labelcolor=QUIET, color=LINE)
    if grid == "x":
        axes.tick_params(axis="y", length=0)
    axes.grid(axis=grid, color=LINE, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(LINE)


def title(axes: Any, text: str) -> None:
    """Write what is shown above its axes."""
    axes.set_title(text, fontsize=10.5, color=INK, loc="left", pad=8)


def name_axis(axes: Any, axis: Literal["x", "y"], text: str) -> None:
    """Write beside an axis what its numbers are."""
    write = axes.set_xlabel if axis == "x" else axes.set_ylabel
    write(text, fontsize=9.5, color=QUIET)


def count_steps(axes: Any, bins: int) -> None:
    """Let the horizontal axis be the steps of training, from 0 on.

    Args:
        axes: of a figure.
        bins: most stretches between two numbers.
    """
    name_axis(axes, "x", "step")
    axes.xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}")
    axes.locator_params(axis="x", nbins=bins, integer=True, min_n_ticks=1)
    axes.set_xlim(left=0)


def check_picture(picture: Path | str) -> None:
    """Refuse a name that says another format than what is written.

    Raises:
        InputError: it has another ending than ``.png``, in small letters or capitals.
    """
    if Path(picture).suffix.lower() != ".png":
        raise InputError(
            f"{picture}: pictures are written as PNG; name it {picture}.png"
        )


def save(figure: Any, picture: Path | str, dpi: int = 100) -> Path:
    """Write a figure as a PNG, in a directory that need not exist; give the file."""
    picture = Path(picture)
    picture.parent.mkdir(parents=True, exist_ok=True)
    with open_whole(picture) as file:
        figure.savefig(file, format="png", dpi=dpi, pil_kwargs={"optimize": True})
    return picture
