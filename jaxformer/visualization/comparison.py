"""The curves of several runs over each other, as a picture and as a page."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxformer.errors import InputError
from jaxformer.runs import records
from jaxformer.runs.records import Curve
from jaxformer.visualization import style
from jaxformer.visualization.comparison_page import PAGE
from jaxformer.visualization.page import write_page

# What is drawn, in this order: the key in the record, and the panel's title.
_PANELS = (
    ("train/nll", "training, nats per token"),
    ("valid/nll", "validation, nats per token"),
    ("valid/bleu", "validation BLEU"),
    ("valid/chrf", "validation chrF"),
    ("valid/f1", "validation F1"),
    ("train/learning_rate", "learning rate"),
    ("train/gradient_norm", "gradient norm"),
    ("train/tokens_per_second", "target tokens per second"),
    ("train/mfu", "model FLOP utilisation"),
)

# Of these the first steps are far from all others: the view is that of the steps after.
# The rest begin at 0.
_SETTLING = (
    "train/nll",
    "valid/nll",
    "valid/bleu",
    "valid/chrf",
    "train/gradient_norm",
)

# Colours that people with any colour vision tell apart (after Okabe and Ito 2008), and
# dashes for more runs than those.
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

# Of more points than these means are drawn: the noise of one run would hide the others.
_MOST_POINTS = 250


class Panel(NamedTuple):
    """One quantity of all runs that recorded it.

    Attributes:
        key: its name in the records.
        title: what it is.
        lines: its curve of each run, by the run's name; runs without it are absent. Of
            many points it is the means.
        low: lower end of the view.
        high: upper end of the view.
    """

    key: str
    title: str
    lines: dict[str, Curve]
    low: float
    high: float


def read_runs(directories: Sequence[Path]) -> dict[str, dict[str, Curve]]:
    """Read the curves of some runs, by names that tell them apart: the directories'
    own, with parents where needed.

    Raises:
        InputError: a directory has no record of a run, a broken one, or is named twice.
    """
    names = name_runs(directories)
    return {
        name: records.read_curves(directory / "metrics.jsonl")
        for name, directory in zip(names, directories, strict=True)
    }


def name_runs(directories: Sequence[Path]) -> list[str]:
    """Name directories by the fewest of their last parts that tell all of them apart.

    Raises:
        InputError: the same directory twice.
    """
    paths = [directory.resolve() for directory in directories]
    for number, path in enumerate(paths):
        if path in paths[:number]:
            raise InputError(
                f"what is compared must differ, but {directories[number]} is named"
                " twice"
            )
    for length in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-length:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def arrange(runs: Mapping[str, Mapping[str, Curve]]) -> list[Panel]:
    """Give a panel to each quantity that any of the runs recorded.

    Raises:
        InputError: there is none.
    """
    panels = []
    for key, title in _PANELS:
        lines = {name: thin(found[key]) for name, found in runs.items() if key in found}
        if lines:
            panels.append(Panel(key, title, lines, *_view(key, lines)))
    if not panels:
        names = ", ".join(runs)
        raise InputError(
            f"the records of {names} have no points that could be drawn: train for"
            " longer"
        )
    return panels


def thin(curve: Curve, most: int = _MOST_POINTS) -> Curve:
    """Return the means of equally many neighbours, so that at most so many points are
    left; fewer stay as they are.
    """
    size = -(-len(curve) // most) or 1
    if size == 1:
        return curve
    groups = [curve[start : start + size] for start in range(0, len(curve), size)]
    return [
        (group[-1][0], sum(value for _, value in group) / len(group))
        for group in groups
    ]


def _view(key: str, lines: Mapping[str, Curve]) -> tuple[float, float]:
    """Choose the ends of the vertical axis, with a little room."""
    values = []
    for curve in lines.values():
        settled = curve[-1][0] * 0.05 if key in _SETTLING else 0.0
        values += [value for step, value in curve if step >= settled]
    low, high = min(values), max(values)
    if key not in _SETTLING:
        low = min(low, 0.0)
    room = 0.04 * (high - low) or 0.1 * abs(high) or 1.0
    return (low if low == 0.0 else low - room), high + room


def draw(runs: Mapping[str, Mapping[str, Curve]], picture: Path) -> Path:
    """Draw the curves of runs as a PNG, two panels beside each other, a colour a run.

    Args:
        runs: the curves by the runs' names, of :func:`read_runs`.
        picture: the file to write; its directory is created.

    Raises:
        InputError: there is nothing to draw, or matplotlib is not installed.
    """
    panels = arrange(runs)
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    # entries of the legend in a line
    beside = max(1, 62 * columns // (max(map(len, runs)) + 9))
    legend = 0.25 * -(-len(runs) // beside)
    figure = style.new_figure(5.2 * columns, 2.7 * rows + legend)
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    handles: dict[str, Any] = {}
    for axes, panel in zip(grid, panels, strict=False):
        for number, name in enumerate(runs):
            if name in panel.lines:
                handles.setdefault(name, _draw_line(axes, panel.lines[name], number))
        _dress(axes, panel, find_last(panels))
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    named = [name for name in runs if name in handles]
    figure.legend(
        [handles[name] for name in named],
        # a pair of dollar signs would begin a formula
        [name.replace("$", r"\$") for name in named],
        loc="outside upper left",
        ncols=beside,
        frameon=False,
        fontsize=10,
        labelcolor=style.INK,
    )
    with warnings.catch_warnings():
        # A letter that no installed font has is drawn as a box; the page shows it with
        # the fonts of the browser.
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing from")
        return style.save(figure, picture, dpi=110)


def find_last(panels: Sequence[Panel]) -> int:
    """Return the last step of all curves, at least 1: every panel has the same
    steps.
    """
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


def _dress(axes: Any, panel: Panel, last: int) -> None:
    style.title(axes, panel.title)
    style.count_steps(axes, 6)
    style.frame(axes)
    axes.set_xlim(0, last * 1.02)
    axes.set_ylim(panel.low, panel.high)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.locator_params(axis="y", nbins=5)


def write_html(runs: Mapping[str, Mapping[str, Curve]], page: Path) -> Path:
    """Write one page that shows the curves in a browser, with values to read and runs
    to hide.

    The page is self-contained: it loads nothing from anywhere, and names are only ever
    text in it.

    Args:
        runs: the curves by the runs' names, of :func:`read_runs`.
        page: the file to write; its directory is created.

    Raises:
        InputError: there is nothing to draw.
    """
    names, panels = list(runs), arrange(runs)
    drawn = [
        {
            "title": panel.title,
            "low": panel.low,
            "high": panel.high,
            "lines": [_rounded(panel.lines.get(name, ())) for name in names],
        }
        for panel in panels
    ]
    return write_page(
        PAGE, {"runs": names, "last": find_last(panels), "panels": drawn}, page
    )


def _rounded(curve: Curve) -> list[tuple[int, float]]:
    return [(step, float(f"{value:.6g}")) for step, value in curve]
