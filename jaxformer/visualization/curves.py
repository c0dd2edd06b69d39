"""The learning curve of a run as a picture: the likelihood in training and validation,
and the validation BLEU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxformer.errors import InputError
from jaxformer.runs.records import Curve, read_curves
from jaxformer.visualization import style

# The panels: a title, and the key, name, colour and marker of each curve.
_PANELS = (
    (
        "negative log-likelihood per token, in nats",
        (
            ("train/nll", "training", style.GREY, ""),
            ("valid/nll", "validation", style.BLUE, "o"),
        ),
    ),
    ("validation BLEU", (("valid/bleu", "BLEU", style.RED, "o"),)),
)


def draw(metrics_file: Path | str, picture: Path | str) -> Path:
    """Draw the learning curve of a run as a PNG, 900 pixels wide.

    The left panel has the unsmoothed negative log-likelihood per token in training and
    validation, with the last perplexities. The right one has BLEU, if the run decoded
    its validation set.

    Args:
        metrics_file: ``metrics.jsonl`` of a run, with any of ``train/nll``,
            ``valid/nll`` and ``valid/bleu``.
        picture: the file to write; its directory is created.

    Returns:
        The picture.

    Raises:
        InputError: the record is missing, broken or without points, or matplotlib is
            not installed.
    """
    curves = read_curves(metrics_file)
    panels = [panel for panel in _PANELS if any(key in curves for key, *_ in panel[1])]
    if not panels:
        keys = ", ".join(key for _, lines in _PANELS for key, *_ in lines)
        raise InputError(
            f"a learning curve needs points, but {metrics_file} has none of {keys}:"
            " train for longer"
        )
    figure = style.new_figure(9, 3.4)
    every = figure.subplots(
        1, len(panels), squeeze=False, width_ratios=(5, 4)[: len(panels)]
    )[0]
    for axes, (title, lines) in zip(every, panels, strict=True):
        _draw_panel(axes, title, lines, curves)
    return style.save(figure, picture)


def _draw_panel(
    axes: Any,
    title: str,
    lines: Sequence[tuple[str, str, str, str]],
    curves: Mapping[str, Curve],
) -> None:
    for key, name, colour, marker in lines:
        if key not in curves:
            continue
        steps, values = zip(*curves[key], strict=True)
        axes.plot(
            steps,
            values,
            color=colour,
            linewidth=1.8,
            marker=marker or ("o" if len(steps) == 1 else ""),
            markersize=3.8,
            label=f"{name}, last {_write(key, values[-1])}",
        )
    if lines[0][0] == "valid/bleu":
        axes.set_ylim(bottom=0)
    style.title(axes, title)
    style.count_steps(axes, 6)
    style.frame(axes)
    axes.legend(**style.INNER_LEGEND)


def _write(key: str, value: float) -> str:
    if key.endswith("/nll"):
        return f"{value:.2f} (perplexity {math.exp(min(value, 700)):.4g})"
    return f"{value:.1f}"
