"""How long the sentences of a corpus are, as a picture: one histogram a side, and
the limit that drops pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxformer.errors import InputError
from jaxformer.visualization import style

_MOST_BARS = 60
_NARROWEST = 20  # tokens; a corpus of words gets no axis of three
_COLOURS = (style.BLUE, style.RED)


def draw(
    source: Sequence[int] | NDArray[np.int64],
    target: Sequence[int] | NDArray[np.int64],
    picture: Path | str,
    *,
    max_length: int,
    names: tuple[str, str] = ("source", "target"),
) -> Path:
    """Draw how many sentences have how many tokens, 900 pixels wide, as a PNG.

    One curve a side over the tokens of a sentence, the limit as a vertical line, and in
    the legend each side's median and share beyond the limit. The axis ends a little
    behind the limit or the longest sentence, whichever comes first, so that one very
    long line does not squeeze the others; what lies beyond is in the share alone.

    Args:
        source: for n = 0, 1, 2, ... the number of source sentences of n tokens, as
            ``numpy.bincount`` gives it; those of chunks add up.
        target: the same of the target.
        picture: the file to write; its directory is created.
        max_length: the most tokens that a sentence may have and be trained on.
        names: what to call the sides.

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
    axes = figure.subplots()
    _draw_sides(axes, sides, names, max_length)
    return style.save(figure, picture)


def bars(counts: NDArray[np.int64], end: int, width: int) -> NDArray[np.int64]:
    """Add up the sentences of every ``width`` lengths from 1 to ``end``, int64
    [ceil(end / width)].

    Bar i holds the lengths ``1 + i * width`` to ``(i + 1) * width``. Sentences of no
    token are in none.
    """
    number = -(-end // width)
    within = counts[1 : 1 + number * width]
    return (
        np.pad(within, (0, number * width - len(within)))
        .reshape(number, width)
        .sum(axis=1)
    )


def axis_end(sides: Sequence[NDArray[np.int64]], max_length: int) -> int:
    """Return the length at which the axis ends: that of the longest sentence, or a
    little more than the limit.

    A limit far above all sentences is left outside.
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
    # a bar stands over its whole numbers
    edges = 0.5 + width * np.arange(-(-end // width) + 1)
    for counts, name, colour in zip(sides, names, _COLOURS, strict=True):
        heights = bars(counts, end, width)
        axes.stairs(heights, edges, fill=True, color=colour, alpha=0.18)
        axes.stairs(
            heights,
            edges,
            color=colour,
            linewidth=1.8,
            label=describe(counts, name, max_length),
        )
    dashes = {"color": style.QUIET, "linewidth": 1.4, "linestyle": (0, (4, 3))}
    if max_length <= end:
        axes.axvline(max_length + 0.5, label=f"limit {max_length:,}", **dashes)
    else:
        axes.plot([], [], label=f"limit {max_length:,}, beyond the axis", **dashes)
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
    place = {
        "loc": "lower left",
        "bbox_to_anchor": (0, 1),
        "borderaxespad": 0.3,
        "ncols": 3,
        "columnspacing": 1.4,
    }
    axes.legend(
        frameon=False, fontsize=9, labelcolor=style.INK, handlelength=1.6, **place
    )


def describe(counts: NDArray[np.int64], name: str, max_length: int) -> str:
    """Word the median length of a side, and the share of its sentences beyond the
    limit where there are any.
    """
    total = int(counts.sum())
    median = int(np.searchsorted(np.cumsum(counts), total / 2))
    beyond = int(counts[max_length + 1 :].sum())
    if not beyond:
        return f"{name}, median {median:,}"
    share = 100 * beyond / total
    return (
        f"{name}, median {median:,}, {f'{share:.2f}' if share >= 0.01 else '<0.01'} %"
        " too long"
    )
