"""Pictures of section 3.5: sinusoidal positions, and the rotation that a shift is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

import panels
from jaxformer.functional.positions import sinusoidal
from jaxformer.visualization import style
from rotation import rotation

_SHOWN_POSITION, _SHIFT = 3, 5
_CHANNELS = (0, 64, 128)  # of sines, at width 512, whose circles are drawn


def draw_positions(picture: Path | str, d_model: int = 128, length: int = 96) -> Path:
    """Draw the encodings of the first positions, and the product of two of them by
    their distance.
    """
    table = np.asarray(sinusoidal(jnp.arange(length), d_model), np.float64)
    figure = style.new_figure(9, 3.3)
    left, right = figure.subplots(1, 2, width_ratios=(5, 4))
    looks: dict[str, Any] = {"names": panels.SIGNED, "low": -1.0, "high": 1.0}
    image = panels.show_matrix(
        left, table, title="PE(p)", down="position p", across="channel", **looks
    )
    panels.add_scale(figure, image, left, (-1, 0, 1))
    middle = length // 2
    for place, colour in ((0, style.GREY), (middle, style.BLUE)):
        products = table @ table[place] / (d_model / 2)
        right.plot(
            np.arange(length) - place,
            products,
            color=colour,
            linewidth=1.8,
            label=f"p = {place}",
        )
    panels.style_lines(right, "PE(p) · PE(p + k), of its value at k = 0", "distance k")
    right.set_ylim(0, 1.05)
    return style.save(figure, picture)


def rotation_errors(offset: int, d_model: int, length: int) -> np.ndarray:
    """Measure, for each position p below ``length``, the largest of |PE(p + k) - M
    PE(p)| over the channels.
    """
    table = np.asarray(sinusoidal(jnp.arange(length + offset), d_model), np.float64)
    return np.abs(table[offset:] - table[:length] @ rotation(offset, d_model).T).max(
        axis=1
    )


def draw_rotation(picture: Path | str, d_model: int = 512, length: int = 1000) -> Path:
    """Draw three of the circles on which a shift turns, the matrix that turns them,
    and how exact it is in float32.
    """
    figure = style.new_figure(9, 2.7)
    *circles, middle, right = figure.subplots(
        1, 5, width_ratios=(1.1, 1.1, 1.1, 1.3, 1.9)
    )
    for axes, channel in zip(circles, _CHANNELS, strict=True):
        _draw_circle(axes, channel, d_model)
    looks: dict[str, Any] = {"names": panels.SIGNED, "low": -1.0, "high": 1.0}
    matrix = rotation(_SHIFT, 16)
    panels.show_matrix(
        middle,
        matrix,
        title=f"M for k = {_SHIFT}, d = 16",
        down="",
        across="channel",
        **looks,
    )
    middle.set_aspect("equal")
    middle.set_xticks([])
    middle.set_yticks([])
    for offset, colour in ((1, style.BLUE), (100, style.RED)):
        errors = np.maximum(rotation_errors(offset, d_model, length), 1e-9)
        right.plot(
            np.arange(length) + offset,
            errors,
            color=colour,
            linewidth=1.1,
            label=f"k = {offset}",
        )
    right.set_yscale("log")
    right.set_xscale("log")
    panels.style_lines(right, "largest |PE(p+k) − M PE(p)|", "position p + k")
    return style.save(figure, picture)


def _draw_circle(axes: Any, channel: int, d_model: int) -> None:
    """Show PE(p) and PE(p + k) of one frequency as points of a circle, with the
    angle between them.
    """
    places = jnp.array([_SHOWN_POSITION, _SHOWN_POSITION + _SHIFT])
    pairs = np.asarray(sinusoidal(places, d_model), np.float64)[
        :, channel : channel + 2
    ]
    turn = np.linspace(0, 2 * np.pi, 200)
    axes.plot(np.cos(turn), np.sin(turn), color=style.LINE, linewidth=1.2)
    # Sine goes up and cosine to the right, so that a shift turns to the left.
    first, last = (np.arctan2(sine, cosine) for sine, cosine in pairs)
    arc = first + np.linspace(0, (last - first) % (2 * np.pi), 100)
    axes.plot(0.45 * np.cos(arc), 0.45 * np.sin(arc), color=style.RED, linewidth=1.6)
    for (sine, cosine), colour in zip(pairs, (style.GREY, style.BLUE), strict=True):
        axes.plot((0, cosine), (0, sine), color=colour, linewidth=1.4)
        axes.plot(cosine, sine, marker="o", markersize=5, color=colour)
    style.title(axes, f"2i = {channel}")
    degrees = np.degrees(_SHIFT * 10_000.0 ** (-channel / d_model))
    axes.set_xlabel(
        f"k = {_SHIFT} turns\nby {degrees:.4g}°", fontsize=9, color=style.QUIET
    )
    axes.set_aspect("equal")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
