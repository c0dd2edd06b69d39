"""Histograms of sentence lengths of both sides, with the limit that drops pairs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxformer.errors import InputError
from jaxformer.visualization import style

_MOST_BARS = 60
_NARROWEST = 20  # tokens: short sentences do not get an axis of three


def draw(
    source: Sequence[int] | NDArray[np.int64],
    target: Sequence[int] | NDArray[np.int64],
    picture: Path | str,
    *,
    max_length: int,
    names: tuple[str, str] = ("source", "target"),
) -> Path:
    """Draw how many sentences have how many tokens as a PNG, 900 pixels wide.

    The picture has a curve for each side, the limit as a vertical line, and in the
    legend the median and the share beyond the limit. The axis ends a little after the
    limit or at the longest sentence: one very long line does not squeeze the others.

    Args:
        source: number of source sentences of n tokens for n = 0, 1, 2, ..., as
            ``numpy.bincount`` returns it.
        target: the same for the target.
        picture: the file to write; its directory is created.
        max_length: most tokens of a sentence in training.
        names: of the two sides.

    Returns:
        The picture.

    Raises:
        InputError: there is no sentence to draw, or matplotlib is not installed.
    """
    sides = [np.asarray(counts, np.int64) for counts in (source, target)]
    if not all(counts.sum() for counts in sides):
        raise InputError(
            f"a histogram of lengths needs sentences, but there is none for {picture}:"
            " name other data"
        )
    figure = style.new_figure(9, 3.4)
    _draw_sides(figure.subplots(), sides, names, max_length)
    return style.save(figure, picture)


def axis_end(sides: Sequence[NDArray[np.int64]], max_length: int) -> int:
    """Return the length at which the axis ends: that of the longest sentence, or a
    little more than the limit.

    A limit far above all sentences is outside.
    """
    longest = max(int(np.flatnonzero(counts)[-1]) for counts in sides)
    if longest < max_length <= 2 * longest:
        longest = max_length
    return max(_NARROWEST, min(longest, max_length + max(max_length // 8, 1)))


def _draw_sides(
    axes: Any, sides: Sequence[NDArray[np.int64]], names: Sequence[str], max_length: int
) -> None:
    end = axis_end(sides, max_length)
    width = -(-end // _MOST_BARS)
    # A bar is centred on its whole numbers; empty sentences are in none.
    edges = 0.5 + width * np.arange(-(-end // width) + 1)
    for counts, name, colour in zip(sides, names, (style.BLUE, style.RED), strict=True):
        heights, _ = np.histogram(np.arange(len(counts)), edges, weights=counts)
        label = describe(counts, name, max_length)
        axes.stairs(heights, edges, fill=True, color=colour, alpha=0.18)
        axes.stairs(heights, edges, color=colour, linewidth=1.8, label=label)
    limit = f"limit {max_length:,}" + ", beyond the axis" * (max_length > end)
    # A line beyond the axis is only in the legend.
    axes.axvline(
        max_length + 0.5,
        label=limit,
        color=style.QUIET,
        linewidth=1.4,
        linestyle=(0, (4, 3)),
    )
    style.name_axis(axes, "y", "sentences")
    spans = f"; a bar spans {width:,} lengths" if width > 1 else ""
    style.name_axis(axes, "x", f"length of a sentence in tokens{spans}")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axis.get_major_locator().set_params(integer=True)
    axes.set_xlim(0, edges[-1])
    axes.set_ylim(bottom=0)
    style.frame(axes)
    # Above the axes: inside, it would hide the limit.
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        borderaxespad=0.3,
        ncols=3,
        columnspacing=1.4,
        handlelength=1.6,
        **style.LEGEND,
    )


def describe(counts: NDArray[np.int64], name: str, max_length: int) -> str:
    """Describe a side: its median length, and the share of sentences beyond the limit
    if there are any.
    """
    total = int(counts.sum())
    median = int(np.searchsorted(np.cumsum(counts), total / 2))
    beyond = int(counts[max_length + 1 :].sum())
    if not beyond:
        return f"{name}, median {median:,}"
    share = 100 * beyond / total
    percent = f"{share:.2f}" if share >= 0.01 else "<0.01"
    return f"{name}, median {median:,}, {percent} % too long"
