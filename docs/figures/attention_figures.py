"""Pictures of section 3.2: attention step by step, what masks allow, and why scores
are scaled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import panels
from jaxformer.functional import attention, masks
from jaxformer.visualization import style
from softmax_jacobian import (
    JacobianStatistics,
    draw_weights,
    measure_jacobians,
    softmax_jacobian,
)

LENGTHS = (4, 8, 16, 32, 64)
"""Of the softmaxes whose Jacobians are drawn."""

# What is drawn: name, d_k, whether scaled, colour.
_KINDS = (
    ("scaled, d_k 64", 64, True, style.BLUE),
    ("not scaled, d_k 64", 64, False, style.RED),
    ("not scaled, d_k 512", 512, False, style.GREY),
)
_SHOWN_LENGTH = 12


def draw_attention_steps(picture: Path | str, seed: int = 0) -> Path:
    """Draw figure 2 (left) of the paper with numbers: scores, scaled and masked scores,
    weights, output.

    One head, six positions, d_k = d_v = 16, a causal mask; queries, keys and values are
    drawn from a normal distribution.
    """
    length, width = 6, 16
    drawn = jax.random.normal(jax.random.key(seed), (3, 1, length, 1, width))
    mask = masks.causal_mask(length)
    output, weights = attention.dot_product_attention(
        drawn[0], drawn[1], drawn[2], mask
    )
    query, key, value = np.asarray(drawn[:, 0, :, 0], np.float64)
    scores, allowed = query @ key.T, np.asarray(mask[0, 0])
    scaled = np.where(allowed, scores / width**0.5, np.nan)
    steps: tuple[tuple[str, str, np.ndarray, Sequence[str], float, float], ...] = (
        ("1. Q Kᵀ", "key", scores, panels.SIGNED, -12, 12),
        ("2. / √d_k, masked", "key", scaled, panels.SIGNED, -3, 3),
        ("3. softmax", "key", np.asarray(weights[0, 0]), style.WEIGHTS, 0, 1),
        ("   V", "channel", value, panels.SIGNED, -3, 3),
        (
            "4. softmax(...) V",
            "channel",
            np.asarray(output[0, :, 0]),
            panels.SIGNED,
            -3,
            3,
        ),
    )
    figure = style.new_figure(9, 2.5)
    every = figure.subplots(1, len(steps), width_ratios=(1, 1, 1, 1.25, 1.25))
    for place, (axes, (title, across, matrix, names, low, high)) in enumerate(
        zip(every, steps, strict=True)
    ):
        axes.set_facecolor("#e3e6ea")  # what the mask forbids
        down = "query" if place == 0 else ""
        panels.show_matrix(
            axes,
            matrix,
            title=title,
            down=down,
            across=across,
            names=names,
            low=low,
            high=high,
        )
        axes.set_xticks([])
        axes.set_yticks([])
        if across == "key":
            _write_numbers(axes, matrix, dark=0.6 * high)
    return style.save(figure, picture)


def _write_numbers(axes: Any, matrix: np.ndarray, dark: float) -> None:
    for (row, column), value in np.ndenumerate(matrix):
        if not np.isnan(value):
            # no minus before 0
            text = f"{round(value)}" if dark > 2 else f"{round(value, 1) + 0.0:.1f}"
            colour = "white" if abs(value) > dark else style.INK
            axes.text(
                column, row, text, ha="center", va="center", fontsize=7, color=colour
            )


def example_masks() -> Mapping[str, np.ndarray]:
    """Make the masks of the picture with the functions of the library, True = may
    attend; rows are queries.
    """
    tokens = jnp.array([[5, 8, 6, 9, 7, 0, 0, 0]])
    segments = jnp.array([[1, 1, 1, 2, 2, 2, 3, 3]])
    padding, causal = masks.padding_mask(tokens, pad_id=0), masks.causal_mask(8)
    every = {
        "encoder: padding": padding,
        "decoder: causal": causal,
        "decoder: both": masks.combine(padding, causal),
        "packed: 3 sentences": masks.combine(
            masks.segment_mask(segments, segments), causal
        ),
    }
    return {
        name: np.broadcast_to(np.asarray(mask)[0, 0], (8, 8))
        for name, mask in every.items()
    }


def draw_masks(picture: Path | str) -> Path:
    """Draw which keys each query may attend to: padding, causal, both, and three
    sentences packed in a row.
    """
    figure = style.new_figure(9, 2.7)
    every = example_masks()
    for place, (axes, (name, mask)) in enumerate(
        zip(figure.subplots(1, len(every)), every.items(), strict=True)
    ):
        down = "query" if place == 0 else ""
        looks: dict[str, Any] = {
            "names": ("#e9ecf0", style.BLUE),
            "low": 0.0,
            "high": 1.0,
        }
        panels.show_matrix(axes, mask, title=name, down=down, across="key", **looks)
        axes.set_aspect("equal")
        axes.set_xticks(np.arange(9) - 0.5, [])
        axes.set_yticks(np.arange(9) - 0.5, [])
        axes.grid(color="white", linewidth=1.2)
        axes.tick_params(length=0)
    return style.save(figure, picture)


def measure_kinds(draws: int, seed: int = 0) -> Mapping[str, list[JacobianStatistics]]:
    """Measure Jacobians of each length of :data:`LENGTHS`, scaled and not, at random
    queries and keys.
    """
    return {
        name: [
            measure_jacobians(
                draw_weights(
                    jax.random.fold_in(jax.random.key(seed), length),
                    draws=draws,
                    length=length,
                    d_k=d_k,
                    scaled=scaled,
                )
            )
            for length in LENGTHS
        ]
        for name, d_k, scaled, _ in _KINDS
    }


def draw_jacobians(picture: Path | str, draws: int = 2000, seed: int = 0) -> Path:
    """Draw what the softmax lets through of a gradient, with the division by the square
    root of d_k and without.

    Above the Jacobian of one draw; below, over the lengths and all draws, mean size,
    deviation and range of the entries, and mean, deviation and range of the trace.

    Args:
        picture: the file to write.
        draws: softmaxes for each length.
        seed: of queries and keys.
    """
    figure = style.new_figure(9, 5.0)
    above, below = figure.subfigures(2, 1, height_ratios=(1, 1.15))
    _draw_examples(above, seed)
    left, middle, right = below.subplots(1, 3)
    for (name, found), (*_, colour) in zip(
        measure_kinds(draws, seed).items(), _KINDS, strict=True
    ):
        looks: dict[str, Any] = {
            "color": colour,
            "linewidth": 1.8,
            "marker": "o",
            "markersize": 3.6,
        }
        left.plot(LENGTHS, [one.size for one in found], label=name, **looks)
        _plot_deviations(middle, found, looks)
        traces = np.stack([one.traces for one in found])
        mean, deviation = traces.mean(axis=1), traces.std(axis=1)
        right.plot(LENGTHS, mean, **looks)
        least, most = traces.min(axis=1), traces.max(axis=1)
        low, high = (
            np.maximum(mean - deviation, least),
            np.minimum(mean + deviation, most),
        )
        right.fill_between(LENGTHS, low, high, color=colour, alpha=0.14, linewidth=0)
        for end in (least, most):
            right.plot(LENGTHS, end, color=colour, linewidth=1, linestyle=":")
    left.set_yscale("log")
    left.set_ylim(1e-6, 0.2)  # room for the legend
    _style_lengths(left, "entries: mean size", legend="lower left")
    _style_lengths(middle, "entries: deviation, range")
    _style_lengths(right, "trace: mean ± deviation, range")
    return style.save(figure, picture)


def _plot_deviations(
    axes: Any, found: Sequence[JacobianStatistics], looks: Mapping[str, Any]
) -> None:
    axes.axhline(0.0, color=style.LINE, linewidth=0.8)
    axes.plot(LENGTHS, [one.deviation for one in found], **looks)
    for end in ("least", "greatest"):
        axes.plot(
            LENGTHS,
            [getattr(one, end) for one in found],
            color=looks["color"],
            linewidth=1,
            linestyle=":",
        )


def _style_lengths(axes: Any, title: str, *, legend: str | None = None) -> None:
    panels.style_lines(axes, title, "length of the softmax", legend=legend)
    axes.set_xscale("log", base=2)
    axes.set_xticks(LENGTHS, map(str, LENGTHS))


def _draw_examples(figure: Any, seed: int) -> None:
    every = figure.subplots(1, len(_KINDS))
    image = None
    for axes, (name, d_k, scaled, _) in zip(every, _KINDS, strict=True):
        key = jax.random.key(seed)
        weights = draw_weights(
            key, draws=1, length=_SHOWN_LENGTH, d_k=d_k, scaled=scaled
        )
        matrix = np.asarray(softmax_jacobian(weights))[0]
        title = f"{name}: trace {np.trace(matrix):.2f}"
        looks: dict[str, Any] = {"names": panels.SIGNED, "low": -0.25, "high": 0.25}
        image = panels.show_matrix(
            axes, matrix, title=title, down="∂ weight", across="∂ score", **looks
        )
        axes.set_xticks([])
        axes.set_yticks([])
    panels.add_scale(figure, image, list(every), (-0.25, 0, 0.25))
