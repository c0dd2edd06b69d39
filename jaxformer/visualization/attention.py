"""Pictures of attention: a figure for each kind, with every layer and head, and a page
for the browser.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxformer.errors import require
from jaxformer.translation.results import Attention
from jaxformer.visualization import style
from jaxformer.visualization.page import write_page

_LONGEST_LABEL = 18  # characters; the page shows longer tokens whole
_EDGE = "#c3cad4"
_ALPHABETS = (
    "Noto Sans CJK JP",
    "Noto Sans CJK SC",
    "Noto Sans Arabic",
    "Noto Sans Devanagari",
    "Arial Unicode MS",
)


class AttentionKind(NamedTuple):
    """One kind of attention: weights ``[layers, heads, rows, columns]`` and tokens."""

    name: str
    title: str
    row_title: str
    column_title: str
    rows: Sequence[str]
    columns: Sequence[str]
    weights: np.ndarray


def find_kinds(maps: Attention) -> list[AttentionKind]:
    """Return the kinds of attention that have layers."""
    source, target, read = maps.source_tokens, maps.target_tokens, maps.read_tokens
    names = (
        ("encoder", "Encoder self-attention", "source", "attends to source"),
        ("decoder", "Decoder self-attention", "predicting", "attends to"),
        ("cross", "Cross-attention", "predicting", "attends to source"),
    )
    kinds = (
        AttentionKind(*names[0], source, source, maps.encoder),
        AttentionKind(*names[1], target, read, maps.decoder),
        AttentionKind(*names[2], target, source, maps.cross),
    )
    return [kind for kind in kinds if len(kind.weights)]


def draw(maps: Attention, directory: Path | str) -> list[Path]:
    """Draw ``encoder.png``, ``decoder.png`` and ``cross.png``: a row for each layer, a
    column for each head, tokens on both axes.

    All maps share one colour scale from 0 to 1. It follows the square root of the
    weight, because most weights are small.

    Returns:
        The files, in this order.

    Raises:
        InputError: matplotlib is not installed.
    """
    # The labels are outside the figure: "tight" makes room for them.
    looks: dict[str, Any] = {"dpi": 120, "bbox_inches": "tight", "pad_inches": 0.2}
    return [
        style.save(_figure(kind), Path(directory) / f"{kind.name}.png", **looks)
        for kind in find_kinds(maps)
    ]


def write_html(
    maps: Attention,
    path: Path | str,
    title: str = "Attention",
    steps: Sequence[tuple[Any, ...]] = (),
) -> Path:
    """Write a page that shows every map in a browser, with kind, layer and head to
    choose and weights to read, and above them ``steps`` of the animation, those of
    :func:`~jaxformer.visualization.animation.find_steps`.

    The page is self-contained: it loads nothing, and tokens are only text in it.
    Weights are rounded to four decimals.

    Returns:
        The file.
    """
    kinds = [
        {
            "name": kind.name,
            "title": kind.title,
            "rows": [printable(token) for token in kind.rows],
            "columns": [printable(token) for token in kind.columns],
            "rowTitle": kind.row_title,
            "columnTitle": kind.column_title,
            "weights": np.round(np.asarray(kind.weights, np.float64), 4).tolist(),
        }
        for kind in find_kinds(maps)
    ]
    data = {"title": title, "kinds": kinds, "steps": list(steps)}
    return write_page("attention", "Attention", data, Path(path))


def _figure(kind: AttentionKind) -> Any:
    """Lay out a panel for each layer and head; sizes are in inches."""
    layers, heads, rows, columns = kind.weights.shape
    cell = min(0.24, max(0.115, 3.0 / max(rows, columns)))
    width, height = max(1.1, cell * columns), max(0.9, cell * rows)
    across, down = (width + 0.18) * heads - 0.18, (height + 0.34) * layers - 0.34
    figure = require("matplotlib.figure", "train").Figure(figsize=(across, down))
    edges = {"left": 0, "bottom": 0, "right": 1, "top": 1}
    space = {"wspace": 0.18 / width, "hspace": 0.34 / height}
    grid = figure.subplots(layers, heads, squeeze=False, gridspec_kw=edges | space)
    colors = require("matplotlib.colors", "train")
    colours = colors.LinearSegmentedColormap.from_list("attention", style.WEIGHTS)
    scale, image = colors.PowerNorm(0.5, vmin=0, vmax=1), None
    size = max(5.5, min(9.0, 56 * cell))  # of the letters, in points
    small = {"fontsize": 7.5, "color": style.QUIET}
    for (layer, head), axes in np.ndenumerate(grid):
        weights = np.asarray(kind.weights[layer, head], np.float32)
        looks = {"aspect": "auto", "interpolation": "nearest"}
        image = axes.imshow(weights, cmap=colours, norm=scale, **looks)
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set(color=_EDGE, linewidth=0.6)
        axes.set_title(
            f"layer {layer + 1}, head {head + 1}", pad=3, loc="left", **small
        )
        if head == 0:
            write_tokens(axes.yaxis, kind.rows, size)
            axes.set_ylabel(kind.row_title, **small)
        if layer == layers - 1:
            write_tokens(axes.xaxis, kind.columns, size, rotation=90)
            axes.set_xlabel(kind.column_title, **small)
        axes.tick_params(length=0, pad=2)
    place = {"x": 0, "y": 1 + 0.28 / down, "va": "bottom", "ha": "left"}
    figure.suptitle(kind.title, **place, fontsize=12, weight="bold", color=style.INK)
    _draw_scale(figure, image, across, down)
    return figure


def _draw_scale(figure: Any, image: Any, across: float, down: float) -> None:
    """Draw the colour scale on the right of the first row."""
    high = min(2.0, down)
    place = (1 + 0.1 / across, 1 - high / down, 0.09 / across, high / down)
    bar = figure.colorbar(image, cax=figure.add_axes(place))
    bar.set_ticks([0, 0.05, 0.25, 0.5, 1], labels=["0", ".05", ".25", ".5", "1"])
    bar.ax.set_title(
        "weight\n(square-root scale)",
        fontsize=6.5,
        color=style.QUIET,
        pad=5,
        loc="left",
    )
    looks = {"color": _EDGE, "labelcolor": style.QUIET, "labelsize": 6.5}
    bar.ax.tick_params(length=2, width=0.5, pad=2, **looks)
    bar.outline.set(edgecolor=_EDGE, linewidth=0.6)


def write_tokens(
    axis: Any, tokens: Sequence[str], size: float, rotation: int = 0
) -> None:
    """Write tokens along an axis, abbreviated where they are long. SentencePiece's mark
    of a word, as wide as a letter, becomes a dot.
    """
    labels = [
        label if len(label) <= _LONGEST_LABEL else label[: _LONGEST_LABEL - 1] + "…"
        for label in (printable(token).replace("▁", "·") for token in tokens)
    ]
    installed = set(require("matplotlib.font_manager", "train").get_font_names())
    fonts = ["DejaVu Sans", *(name for name in _ALPHABETS if name in installed)]
    # No dollar sign begins a formula.
    looks = {"fontsize": size, "family": fonts, "parse_math": False}
    axis.set_ticks(range(len(tokens)), labels, rotation=rotation, **looks)


def printable(token: str) -> str:
    """Escape characters without a shape, such as a tab or half a surrogate pair."""
    return (
        token if token.isprintable() else token.encode("unicode_escape").decode("ascii")
    )
