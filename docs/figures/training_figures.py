"""Pictures of sections 4 and 5: what layers cost, the schedule, and the floor of
label smoothing.
"""

from __future__ import annotations

import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import panels
from jaxformer.functional.losses import cross_entropy, smoothing_floor
from jaxformer.training.schedules import paper_schedule
from jaxformer.visualization import style
from layer_costs import layer_costs

_LENGTHS = tuple(2**power for power in range(2, 13))


def draw_costs(picture: Path | str, width: int = 512) -> Path:
    """Draw Table 1 over the length of the sequence: multiplications of a layer, and
    the longest path.
    """
    every = [layer_costs(length, width) for length in _LENGTHS]
    colours = (style.BLUE, style.RED, style.GREEN, style.GREY)
    names = (
        "self-attention",
        "recurrent",
        "convolutional, k = 3",
        "restricted, r = 64",
    )
    figure = style.new_figure(9, 3.3)
    left, right = figure.subplots(1, 2)
    for kind, (name, colour) in enumerate(zip(names, colours, strict=True)):
        costs = [costs[kind] for costs in every]
        left.plot(
            _LENGTHS,
            [cost.multiplications for cost in costs],
            color=colour,
            linewidth=1.8,
            label=name,
        )
        right.plot(_LENGTHS, [cost.path for cost in costs], color=colour, linewidth=1.8)
    left.axvline(width, color=style.LINE, linewidth=1, zorder=0)
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(_LENGTHS[::2], [f"{length:,}" for length in _LENGTHS[::2]])
    panels.style_lines(
        left, f"multiplications of a layer, d = {width}", "length n of the sequence"
    )
    panels.style_lines(
        right,
        "longest path between two positions",
        "length n of the sequence",
        legend=None,
    )
    return style.save(figure, picture)


def draw_schedule(picture: Path | str) -> Path:
    """Draw the paper's learning rate for widths and warm-ups, on plain and on
    logarithmic axes.
    """
    steps = np.unique(np.geomspace(1, 100_000, 600).astype(int))
    lines = (
        (512, 4000, style.BLUE, "d 512, warm-up 4,000: base"),
        (1024, 4000, style.RED, "d 1024, warm-up 4,000: big"),
        (512, 8000, style.GREY, "d 512, warm-up 8,000"),
        (512, 1000, style.GREEN, "d 512, warm-up 1,000"),
    )
    figure = style.new_figure(9, 3.3)
    left, right = figure.subplots(1, 2)
    for width, warmup, colour, name in lines:
        # which counts updates made before
        rates = np.asarray(paper_schedule(width, warmup)(jnp.asarray(steps - 1)))
        near = steps <= 30_000
        left.plot(
            steps[near], 1e4 * rates[near], color=colour, linewidth=1.8, label=name
        )
        right.plot(steps, rates, color=colour, linewidth=1.8)
    left.xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}")
    left.set_ylim(bottom=0)
    right.set_xscale("log")
    right.set_yscale("log")
    panels.style_lines(left, "learning rate, in 1e-4", "step")
    panels.style_lines(
        right, "the same, logarithmic: slopes 1 and −1/2", "step", legend=None
    )
    return style.save(figure, picture)


def smoothed_losses(
    probabilities: np.ndarray, vocabulary_size: int, smoothing: float
) -> np.ndarray:
    """Return the smoothed loss of a model that gives the true token these
    probabilities, and all others the same.
    """
    true = np.log(probabilities)[:, None]
    others = np.log1p(-probabilities)[:, None] - math.log(vocabulary_size - 1)
    logits = np.concatenate(
        [true, np.repeat(others, vocabulary_size - 1, axis=1)], axis=1
    )
    target, one = jnp.zeros((1,), jnp.int32), jnp.ones((1,), bool)
    total = jax.vmap(
        lambda row: cross_entropy(row[None], target, one, smoothing=smoothing)[0]
    )
    return np.asarray(total(jnp.asarray(logits, jnp.float32)))


def draw_smoothing(picture: Path | str, points: int = 120) -> Path:
    """Draw the floor of label smoothing by epsilon, and where the loss of a model
    reaches it.

    Args:
        picture: the file to write.
        points: of each curve of losses.
    """
    figure = style.new_figure(9, 3.3)
    left, right = figure.subplots(1, 2)
    rates = np.linspace(0, 0.5, 101)
    for size, colour in ((8, style.GREY), (1_000, style.GREEN), (37_000, style.BLUE)):
        floors = [smoothing_floor(size, rate) for rate in rates]
        left.plot(rates, floors, color=colour, linewidth=1.8, label=f"V = {size:,}")
    left.axvline(0.1, color=style.LINE, linewidth=1, zorder=0)
    odds = np.linspace(-3, 9, points)
    probabilities = 1 / (1 + np.exp(-odds))
    for rate, colour in ((0.0, style.GREY), (0.1, style.BLUE), (0.2, style.RED)):
        losses = smoothed_losses(probabilities, 37_000, rate)
        right.plot(
            probabilities, losses, color=colour, linewidth=1.8, label=f"ε = {rate:g}"
        )
        if rate:
            right.plot(
                1 - rate,
                smoothing_floor(37_000, rate),
                marker="o",
                markersize=5,
                color=colour,
            )
    right.set_ylim(bottom=0)
    panels.style_lines(left, "floor of the smoothed loss, in nats", "ε")
    panels.style_lines(
        right,
        "loss at V = 37,000; the dots are floors",
        "probability of the true token",
    )
    return style.save(figure, picture)
