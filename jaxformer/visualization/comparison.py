"""The curves of several runs, as a picture and as a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxformer.errors import InputError
from jaxformer.runs import records
from jaxformer.runs.records import Curve
from jaxformer.visualization import style
from jaxformer.visualization.page import round_numbers, write_page

# The panels in order: the key in the record, the title, and whether the first steps are
# far from all others. Their view is that of the later steps; the others begin at 0.
_PANELS = (
    ("train/nll", "training, nats per token", True),
    ("valid/nll", "validation, nats per token", True),
    ("valid/bleu", "validation BLEU", True),
    ("valid/chrf", "validation chrF", True),
    ("valid/f1", "validation F1", False),
    ("train/learning_rate", "learning rate", False),
    ("train/gradient_norm", "gradient norm", True),
    ("train/tokens_per_second", "target tokens per second", False),
    ("train/mfu", "model FLOP utilisation", False),
)

# Told apart by people with any colour vision (after Okabe and Ito 2008); more runs get
# dashes.
_COLOURS = (
    style.BLUE,
    "#c2571a",
    "#1a8a63",
    "#a64d8c",
    "#8a6d00",
    "#3a9bd0",
    "#5d6877",
)
_DASHES = ("-", "--", ":")
_MOST_POINTS = 250  # longer curves are averaged: their noise would hide the others


class Panel(NamedTuple):
    """One quantity of all runs that recorded it.

    Attributes:
        title: of the quantity.
        lines: its curve by the name of the run; a long curve is averaged.
        low: lower end of the view.
        high: upper end of the view.
    """

    title: str
    lines: dict[str, Curve]
    low: float
    high: float


def read_runs(directories: Sequence[Path]) -> dict[str, dict[str, Curve]]:
    """Read the curves of runs, by the names of :func:`name_runs`.

    Raises:
        InputError: a directory has no record of a run, a broken one, or is named twice.
    """
    names = name_runs(directories)
    return {
        name: records.read_curves(directory / "metrics.jsonl")
        for name, directory in zip(names, directories, strict=True)
    }


def name_runs(directories: Sequence[Path]) -> list[str]:
    """Name directories by the fewest of their last parts that tell them apart.

    Raises:
        InputError: a directory is named twice.
    """
    paths = [directory.resolve() for directory in directories]
    for number, path in enumerate(paths):
        if path in paths[:number]:
            raise InputError(
                f"{directories[number]} is named twice: name each run or file once"
            )
    names, length = [path.name for path in paths], 1
    while len(set(names)) < len(names):
        length += 1
        names = ["/".join(path.parts[-length:]) for path in paths]
    return names


def arrange(runs: Mapping[str, Mapping[str, Curve]]) -> list[Panel]:
    """Arrange curves into a panel for each quantity that any run recorded.

    Raises:
        InputError: there is none.
    """
    panels = []
    for key, title, settles in _PANELS:
        lines = {name: thin(found[key]) for name, found in runs.items() if key in found}
        if lines:
            panels.append(Panel(title, lines, *_view(lines.values(), settles)))
    if not panels:
        raise InputError(
            f"the records of {', '.join(runs)} have no points that could be drawn:"
            " train for longer"
        )
    return panels


def thin(curve: Curve, most: int = _MOST_POINTS) -> Curve:
    """Average equally many neighbours, so that at most ``most`` points remain."""
    size = -(-len(curve) // most) or 1
    if size == 1:
        return curve
    groups = [curve[start : start + size] for start in range(0, len(curve), size)]
    return [
        (group[-1][0], sum(value for _, value in group) / len(group))
        for group in groups
    ]


def _view(lines: Iterable[Curve], settles: bool) -> tuple[float, float]:
    """Choose the ends of the vertical axis, with a little room."""
    values = [
        value
        for curve in lines
        for step, value in curve
        if not settles or step >= curve[-1][0] * 0.05
    ]
    low, high = min(values if settles else [0.0, *values]), max(values)
    room = 0.04 * (high - low) or 0.1 * abs(high) or 1.0
    return (low if low == 0.0 else low - room), high + room


def draw(runs: Mapping[str, Mapping[str, Curve]], picture: Path) -> Path:
    """Draw the curves of runs as a PNG, two panels in a row, a colour for each run.

    Args:
        runs: result of :func:`read_runs`.
        picture: the file to write; its directory is created.

    Raises:
        InputError: there is nothing to draw, or matplotlib is not installed.
    """
    panels = arrange(runs)
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    entries = max(1, 62 * columns // (max(map(len, runs)) + 9))  # of a legend's line
    legend = 0.25 * -(-len(runs) // entries)
    figure = style.new_figure(5.2 * columns, 2.7 * rows + legend)
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    handles: dict[str, Any] = {}
    for axes, panel in zip(grid, panels, strict=False):
        for number, name in enumerate(runs):
            if name in panel.lines:
                handles.setdefault(name, _draw_line(axes, panel.lines[name], number))
        style.title(axes, panel.title)
        style.count_steps(axes, 6)
        style.frame(axes)
        axes.set(xlim=(0, find_last(panels) * 1.02), ylim=(panel.low, panel.high))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        axes.locator_params(axis="y", nbins=5)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    named = [name for name in runs if name in handles]
    figure.legend(
        [handles[name] for name in named],
        # A pair of dollar signs would begin a formula.
        [name.replace("$", r"\$") for name in named],
        loc="outside upper left",
        ncols=entries,
        **style.LEGEND,
    )
    return style.save(figure, picture, dpi=110)


def find_last(panels: Sequence[Panel]) -> int:
    """Return the last step of all curves, at least 1: panels share their steps."""
    return max(1, *(curve[-1][0] for panel in panels for curve in panel.lines.values()))


def _draw_line(axes: Any, curve: Curve, number: int) -> Any:
    steps, values = zip(*curve, strict=True)
    (line,) = axes.plot(
        steps,
        values,
        color=_COLOURS[number % len(_COLOURS)],
        linestyle=_DASHES[number // len(_COLOURS) % len(_DASHES)],
        linewidth=1.5,
        marker="o" if len(steps) <= 40 else "",
        markersize=3.2,
    )
    return line


def write_html(runs: Mapping[str, Mapping[str, Curve]], page: Path) -> Path:
    """Write a page that shows the curves in a browser, with values to read and runs to
    hide.

    The page is self-contained: it loads nothing, and names are only text in it.

    Args:
        runs: result of :func:`read_runs`.
        page: the file to write; its directory is created.

    Raises:
        InputError: there is nothing to draw.
    """
    panels = arrange(runs)
    drawn = [
        {
            "title": panel.title,
            "low": panel.low,
            "high": panel.high,
            "lines": round_numbers([panel.lines.get(name, ()) for name in runs]),
        }
        for panel in panels
    ]
    data = {"runs": list(runs), "last": find_last(panels), "panels": drawn}
    return write_page("curves", "Curves", data, page)
