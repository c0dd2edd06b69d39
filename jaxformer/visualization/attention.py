"""Pictures of attention: one figure for each kind, with every layer and head, and
one page for the browser.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxformer.errors import InputError, require
from jaxformer.files import open_whole
from jaxformer.visualization import style
from jaxformer.visualization.attention_page import PAGE, TITLE_SLOT
from jaxformer.visualization.page import write_page

_DOTS_PER_INCH = 120
# characters; longer tokens are cut in figures and whole in the page's reading
_LONGEST_LABEL = 18
_ALPHABETS = (
    "Noto Sans CJK JP",
    "Noto Sans CJK SC",
    "Noto Sans Arabic",
    "Noto Sans Devanagari",
    "Arial Unicode MS",
)


@dataclass(frozen=True)
class AttentionMaps:
    """Hold the attention weights of one sentence pair, as plain arrays on the host.

    Row ``t`` of a map says how much position ``t`` attends to each column; a row sums
    to one. Rows of the target are named by the token that the position predicts. Layers
    and heads may differ in number between the three kinds.

    Attributes:
        source_tokens: the S tokens that the encoder reads.
        target_tokens: the T tokens that the decoder predicts.
        read_tokens: the T tokens that it reads meanwhile: the one that starts a
            sentence, then all targets but the last.
        encoder: float ``[layers, heads, S, S]``, encoder self-attention.
        decoder: float ``[layers, heads, T, T]``, decoder self-attention.
        cross: float ``[layers, heads, T, S]``, attention of the target to the source.

    Raises:
        InputError: an array has another shape than its tokens ask for, or weights that
            are no weights.
    """

    source_tokens: Sequence[str]
    target_tokens: Sequence[str]
    read_tokens: Sequence[str]
    encoder: np.ndarray
    decoder: np.ndarray
    cross: np.ndarray

    def __post_init__(self) -> None:
        for kind in _kinds(self):
            _check(kind)


@dataclass(frozen=True)
class _Kind:
    """One kind of attention as the pictures show it: weights ``[layers, heads, rows,
    columns]`` and their tokens.
    """

    name: str
    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    row_title: str
    column_title: str
    weights: np.ndarray


def _kinds(maps: AttentionMaps) -> tuple[_Kind, _Kind, _Kind]:
    source, target = maps.source_tokens, maps.target_tokens
    return (
        _Kind(
            "encoder",
            "Encoder self-attention",
            source,
            source,
            "source",
            "attends to source",
            maps.encoder,
        ),
        _Kind(
            "decoder",
            "Decoder self-attention",
            target,
            maps.read_tokens,
            "predicting",
            "attends to",
            maps.decoder,
        ),
        _Kind(
            "cross",
            "Cross-attention",
            target,
            source,
            "predicting",
            "attends to source",
            maps.cross,
        ),
    )


def _check(kind: _Kind) -> None:
    shape, wanted = np.shape(kind.weights), (len(kind.rows), len(kind.columns))
    if len(shape) != 4 or shape[2:] != wanted or 0 in shape:
        raise InputError(
            f"{kind.name} attention must have the shape (layers, heads, {wanted[0]},"
            f" {wanted[1]}), as many rows and columns as tokens, but has {shape}: cut"
            " weights and tokens to the sentence without its padding"
        )
    # The room above one is for weights computed in bfloat16.
    if not (np.all(kind.weights >= 0) and np.all(kind.weights <= 1.01)):
        raise InputError(
            f"{kind.name} attention must be weights between 0 and 1, but reaches from"
            f" {np.min(kind.weights)} to {np.max(kind.weights)}: give what the softmax"
            " returns"
        )


def draw(maps: AttentionMaps, directory: Path | str) -> list[Path]:
    """Draw ``encoder.png``, ``decoder.png`` and ``cross.png``: layers down, heads
    across, tokens on both axes.

    All maps share one scale of colours from 0 to 1, so that they compare. It grows with
    the square root of the weight, because most weights are small.

    Returns:
        The three files, in this order.

    Raises:
        InputError: matplotlib is not installed.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for kind in _kinds(maps):
        path = directory / f"{kind.name}.png"
        with open_whole(path) as file, warnings.catch_warnings():
            # A letter that no installed font has is drawn as a box; the page shows it
            # with the fonts of the browser.
            warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing from")
            _figure(kind).savefig(
                file,
                format="png",
                dpi=_DOTS_PER_INCH,
                bbox_inches="tight",
                pad_inches=0.2,
            )
        paths.append(path)
    return paths


def write_html(maps: AttentionMaps, path: Path | str, title: str = "Attention") -> Path:
    """Write one page that shows every map in a browser, with kind, layer and head to
    choose and weights to read.

    The page is self-contained: it loads nothing from anywhere, and tokens are only ever
    text in it. Weights are rounded to four decimals.

    Returns:
        The file.
    """
    kinds = [
        {
            "name": kind.name,
            "title": kind.title,
            "rows": [_printable(token) for token in kind.rows],
            "columns": [_printable(token) for token in kind.columns],
            "rowTitle": kind.row_title,
            "columnTitle": kind.column_title,
            "weights": np.round(np.asarray(kind.weights, np.float64), 4).tolist(),
        }
        for kind in _kinds(maps)
    ]
    # The title goes in first: the data may hold any text, even the mark of the title's
    # slot.
    return write_page(
        PAGE.replace(TITLE_SLOT, _escape(title)), {"kinds": kinds}, Path(path)
    )


def _figure(kind: _Kind) -> Any:
    """Lay out one panel for each layer and head on a figure of its own, which no
    global state of pyplot sees.
    """
    figures = require("matplotlib.figure", "train")
    layers, heads, rows, columns = kind.weights.shape
    cell = min(0.24, max(0.115, 3.0 / max(rows, columns)))  # inches
    size = max(5.5, min(9.0, 56 * cell))  # of the letters, in points
    width, height = max(1.1, cell * columns), max(0.9, cell * rows)
    across, down = width + 0.18, height + 0.34
    total = (across * heads + 0.6, down * layers + 0.9)
    figure = figures.Figure(figsize=total, facecolor="white")
    image = None
    for layer in range(layers):
        for head in range(heads):
            left, bottom = across * head, 0.5 + down * (layers - 1 - layer)
            axes = figure.add_axes(
                (
                    left / total[0],
                    bottom / total[1],
                    width / total[0],
                    height / total[1],
                ),
                facecolor="white",
            )
            image = _panel(axes, kind.weights[layer, head])
            axes.set_title(
                f"layer {layer + 1}, head {head + 1}",
                fontsize=7.5,
                color=style.QUIET,
                pad=3,
                loc="left",
            )
            if head == 0:
                _label(axes, "y", kind.rows, kind.row_title, size)
            if layer == layers - 1:
                _label(axes, "x", kind.columns, kind.column_title, size)
    figure.text(
        0,
        (0.44 + down * layers) / total[1],
        kind.title,
        fontsize=12,
        fontweight="bold",
        color=style.INK,
        va="bottom",
    )
    _scale(
        figure,
        image,
        (
            across * heads + 0.1,
            0.5 + down * layers - 0.34,
            min(2.0, down * layers - 0.34),
        ),
        total,
    )
    return figure


def _panel(axes: Any, weights: np.ndarray) -> Any:
    colors = require("matplotlib.colors", "train")
    colours = colors.LinearSegmentedColormap.from_list(
        "attention", ["#f4f6f9", "#5b8fc9", "#0b2a5b"]
    )
    scale = colors.PowerNorm(0.5, vmin=0, vmax=1)
    shown = np.asarray(weights, np.float32)
    image = axes.imshow(
        shown, cmap=colours, norm=scale, aspect="auto", interpolation="nearest"
    )
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set(color="#c3cad4", linewidth=0.6)
    return image


def _label(
    axes: Any, side: str, tokens: Sequence[str], title: str, size: float
) -> None:
    """Write tokens along one side of a panel, as they are: a dollar sign starts no
    formula.
    """
    labels = [_shorten(_printable(token)) for token in tokens]
    looks: dict[str, Any] = {
        "fontsize": size,
        "family": _families(),
        "parse_math": False,
    }
    if side == "x":
        axes.set_xticks(range(len(labels)), labels, rotation=90, **looks)
        axes.set_xlabel(title, fontsize=7.5, color=style.QUIET, labelpad=4)
    else:
        axes.set_yticks(range(len(labels)), labels, **looks)
        axes.set_ylabel(title, fontsize=7.5, color=style.QUIET, labelpad=4)
    axes.tick_params(axis=side, length=0, pad=2)


def _scale(
    figure: Any,
    image: Any,
    place: tuple[float, float, float],
    total: tuple[float, float],
) -> None:
    """Draw the scale of colours; ``place`` is its left, top and height in inches."""
    left, top, height = place
    axes = figure.add_axes(
        (left / total[0], (top - height) / total[1], 0.09 / total[0], height / total[1])
    )
    bar = figure.colorbar(image, cax=axes, ticks=[0, 0.05, 0.25, 0.5, 1])
    bar.ax.set_yticklabels(
        ["0", ".05", ".25", ".5", "1"], fontsize=6.5, color=style.QUIET
    )
    bar.ax.set_title("weight", fontsize=6.5, color=style.QUIET, pad=5, loc="left")
    bar.ax.tick_params(length=2, width=0.5, color="#c3cad4", pad=2)
    bar.outline.set(edgecolor="#c3cad4", linewidth=0.6)


def _families() -> list[str]:
    """Name the fonts for tokens: matplotlib's own, then those at hand for alphabets
    that it lacks.
    """
    installed = set(require("matplotlib.font_manager", "train").get_font_names())
    return ["DejaVu Sans", *(name for name in _ALPHABETS if name in installed)]


def _printable(token: str) -> str:
    """Show signs that have no shape, a tab or a half of a surrogate pair, by their
    escapes.
    """
    return (
        token if token.isprintable() else token.encode("unicode_escape").decode("ascii")
    )


def _shorten(label: str) -> str:
    return label if len(label) <= _LONGEST_LABEL else label[: _LONGEST_LABEL - 1] + "…"


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
