"""Figure 1 of the paper, of a configuration: every part of the model with its shape
and its number of parameters.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.errors import InputError, require
from jaxformer.models.config import TransformerConfig
from jaxformer.models.make import count_parameters
from jaxformer.models.transformer import Transformer
from jaxformer.visualization import style

_WIDTH, _HEIGHT = 2.9, 0.62  # of a box; the picture is 9 wide
_ENCODER, _DECODER = 2.1, 6.9  # middles of the columns
_FILLS = {
    "attention": "#dfe8f4",
    "feed_forward": "#e6efe9",
    "embedding": "#f4e7e1",
    "output": "#eceef1",
}
# What the labels say; layers that are scanned have their parameters in one, and cannot
# be counted one by one.
_SHOWN = {
    "tied_embeddings": "all",
    "norm_order": "post",
    "scale_embedding": True,
    "output_bias": False,
    "scan_layers": False,
}


def draw_model(picture: Path | str, config: TransformerConfig | None = None) -> Path:
    """Draw the encoder on the left and the decoder on the right, from the tokens below
    to the logits above.

    The numbers are counted in the parameter tree that the model itself makes, of which
    only the shapes are computed.

    Args:
        picture: the file to write.
        config: of the model, of any sizes; the paper's base model where None.

    Raises:
        InputError: the model is not built as the figure shows it, such as with a layer
            norm before each sub-layer.
    """
    config = config or TransformerConfig.base(vocabulary_size=37_000)
    _check(config)
    tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    params = jax.eval_shape(
        Transformer(config).init, jax.random.key(0), tokens, tokens
    )["params"]
    figure = style.new_figure(9, 5.4)
    axes = figure.subplots()
    axes.set(xlim=(0, 9), ylim=(-0.15, 5.85))
    axes.set_axis_off()
    encoder = _draw_column(
        axes, _ENCODER, params["encoder"]["layer_0"], config, "encoder"
    )
    decoder = _draw_column(
        axes, _DECODER, params["decoder"]["layer_0"], config, "decoder"
    )
    start, end = (
        (_ENCODER, encoder["feed_forward"] + _HEIGHT),
        (_DECODER - _WIDTH / 2, decoder["cross"] + _HEIGHT / 2),
    )
    path = [
        start,
        (start[0], start[1] + 0.55),
        (4.45, start[1] + 0.55),
        (4.45, end[1]),
        end,
    ]
    axes.plot(*zip(*path[:-1], strict=True), color=style.QUIET, linewidth=1.1)
    draw_arrow(axes, path[-2], path[-1])
    axes.text(
        3.35,
        start[1] + 0.63,
        f"memory [B, S, {config.d_model}]",
        fontsize=8,
        color=style.QUIET,
        ha="center",
    )
    top = decoder["feed_forward"] + _HEIGHT
    logits = f"logits: x Eᵀ, the same table\n[B, T, {config.vocabulary_size:,}]"
    draw_box(axes, _DECODER, top + 0.5, logits, "output")
    draw_arrow(axes, (_DECODER, top), (_DECODER, top + 0.5))
    total = f"{count_parameters(params):,} parameters"
    axes.text(
        0.55,
        5.5,
        f"Figure 1 of the paper, as built: {total}",
        fontsize=11,
        color=style.INK,
    )
    return style.save(figure, picture)


def _check(config: TransformerConfig) -> None:
    """Refuse a model of which the labels of the boxes would not be true."""
    for key, value in _SHOWN.items():
        if getattr(config, key) != value:
            raise InputError(
                f"figure 1 is of a model with {key}={value}, not {getattr(config, key)}"
            )


def _draw_column(
    axes: Any, middle: float, layer: Any, config: TransformerConfig, side: str
) -> dict[str, float]:
    """Draw a stack from its tokens up; return the lower edges of its boxes."""
    heads, length = config.num_heads, "S" if side == "encoder" else "T"
    width = config.d_k or config.d_model // heads
    names = {
        "self_attention": (
            f"{heads} heads of {width},"
            f" self-attention{', causal' * (side == 'decoder')}"
        )
    }
    if side == "decoder":
        names["cross_attention"] = f"{heads} heads of {width}, to the memory"
    names["feed_forward"] = (
        f"feed-forward, {config.d_model} → {config.d_ff:,} → {config.d_model}"
    )
    word = "source" if side == "encoder" else "target, shifted right"
    axes.text(
        middle,
        0.02,
        f"{word}: ids [B, {length}]",
        fontsize=8.5,
        color=style.QUIET,
        ha="center",
        va="center",
    )
    table = (
        f"√d · embedding + positions\n{config.vocabulary_size * config.d_model:,}, one"
        " table"
    )
    draw_arrow(axes, (middle, 0.13), (middle, 0.4))
    draw_box(axes, middle, 0.4, table, "embedding")
    bottom, edges = 1.02, {}
    first = bottom + 0.2
    for key, name in names.items():
        low = bottom + 0.5
        draw_arrow(axes, (middle, bottom), (middle, low))
        count = count_parameters(layer[key]) + count_parameters(
            layer[f"{key}_residual"]
        )
        draw_box(
            axes,
            middle,
            low,
            f"{name}\nadd & norm: {count:,}",
            "feed_forward" if "feed" in key else "attention",
        )
        _draw_bypass(axes, middle, low, -1 if side == "encoder" else 1)
        edges[key.partition("_")[0] if key != "feed_forward" else key] = low
        bottom = low + _HEIGHT
    layers = (
        config.num_encoder_layers if side == "encoder" else config.num_decoder_layers
    )
    patches = require("matplotlib.patches", "train")
    frame = (middle - _WIDTH / 2 - 0.2, first), _WIDTH + 0.4, bottom + 0.16 - first
    axes.add_patch(
        patches.Rectangle(*frame, facecolor="none", edgecolor=style.LINE, linewidth=1.2)
    )
    outside = (
        middle - _WIDTH / 2 - 0.42 if side == "encoder" else middle + _WIDTH / 2 + 0.42
    )
    axes.text(
        outside,
        (first + bottom) / 2,
        f"{layers} ×",
        fontsize=11,
        color=style.INK,
        ha="center",
        va="center",
    )
    return edges


def draw_box(
    axes: Any,
    middle: float,
    low: float,
    text: str,
    kind: str,
    width: float = _WIDTH,
    height: float = _HEIGHT,
) -> None:
    """Draw a box in the colour of a kind of part, with text in it."""
    patches = require("matplotlib.patches", "train")
    box = patches.FancyBboxPatch(
        (middle - width / 2, low),
        width,
        height,
        boxstyle="round,pad=0,rounding_size=0.07",
        facecolor=_FILLS[kind],
        edgecolor="#b9c1cc",
        linewidth=0.8,
    )
    axes.add_patch(box)
    axes.text(
        middle,
        low + height / 2,
        text,
        fontsize=8.5,
        color=style.INK,
        ha="center",
        va="center",
    )


def _draw_bypass(axes: Any, middle: float, low: float, side: int) -> None:
    """Draw a residual connection around a box, on the left (-1) or the right (1)."""
    edge = middle + side * _WIDTH / 2
    path = [
        (middle, low - 0.13),
        (edge + side * 0.1, low - 0.13),
        (edge + side * 0.1, low + 0.2),
    ]
    axes.plot(*zip(*path, strict=True), color=style.GREY, linewidth=0.9)
    draw_arrow(axes, path[-1], (edge, low + 0.2))


def draw_arrow(axes: Any, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Draw an arrow."""
    looks = {
        "arrowstyle": "-|>",
        "color": style.QUIET,
        "linewidth": 1.1,
        "shrinkA": 0,
        "shrinkB": 0,
    }
    axes.annotate("", xy=end, xytext=start, arrowprops=looks)
