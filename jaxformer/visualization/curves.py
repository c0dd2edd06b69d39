"""The learning curve of a run as a picture: the likelihood in training and validation, and the validation scores."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from jaxformer.errors import InputError
from jaxformer.visualization import style

Curve: TypeAlias = Sequence[tuple[int, float]]
"""Points ``(step, value)``, in the order of the steps."""

# The panels: title, then for each curve its key in the record, its name, colour and marker.
_PANELS = (
    (
        "negative log-likelihood per token, in nats",
        (("train/nll", "training", style.GREY, ""), ("valid/nll", "validation", style.BLUE, "o")),
    ),
    ("validation BLEU", (("valid/bleu", "BLEU", style.RED, "o"),)),
)


def draw(metrics_file: Path | str, picture: Path | str) -> Path:
    """Draw the learning curve that ``metrics.jsonl`` records, 900 pixels wide, as a PNG.

    The left panel shows the unsmoothed negative log-likelihood per token in training and validation, with the
    perplexity of the last validation; the right one, if the run decoded its validation set, BLEU.

    Args:
        metrics_file: the record of a run: one JSON object a line, with ``step`` and any of ``train/nll``,
            ``valid/nll`` and ``valid/bleu``. Other keys do not matter.
        picture: the file to write; its directory is created.

    Returns:
        The picture.

    Raises:
        InputError: the record is missing, broken or without points, or matplotlib is not installed.
    """
    curves = read(metrics_file)
    panels = [panel for panel in _PANELS if any(key in curves for key, *_ in panel[1])]
    if not panels:
        keys = ", ".join(key for _, lines in _PANELS for key, *_ in lines)
        raise InputError(f"a learning curve needs points, but {metrics_file} has none of {keys}: train for longer")
    figure = style.new_figure(9, 3.4)
    every = figure.subplots(1, len(panels), squeeze=False, width_ratios=(5, 4)[: len(panels)])[0]
    for axes, (title, lines) in zip(every, panels, strict=True):
        _draw_panel(axes, title, lines, curves)
    return style.save(figure, picture)


def read(metrics_file: Path | str) -> dict[str, Curve]:
    """Read the curves of a run by their keys, each without the points that are no finite numbers.

    A last line that a killed process left unfinished is passed over.

    Raises:
        InputError: the file is missing, or a line before the last is no JSON object with a step.
    """
    curves: dict[str, dict[int, float]] = {}
    for record in _records(Path(metrics_file)):
        for key, value in record.items():
            if key != "step" and isinstance(value, int | float) and math.isfinite(value):
                curves.setdefault(key, {})[record["step"]] = float(value)
    return {key: sorted(points.items()) for key, points in curves.items()}


def read_gaps(metrics_file: Path | str) -> dict[str, list[int]]:
    """Read at which steps the curves of a run have no finite number, by their keys; those without any are left out.

    Raises:
        InputError: as :func:`read`.
    """
    gaps: dict[str, set[int]] = {}
    for record in _records(Path(metrics_file)):
        for key, value in record.items():
            if value is None or (isinstance(value, float) and not math.isfinite(value)):
                gaps.setdefault(key, set()).add(record["step"])
    return {key: sorted(steps) for key, steps in gaps.items()}


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """Give the lines of a record, but for a last one that is torn."""
    if not path.is_file():
        raise InputError(
            f"a learning curve needs the record of a run, but there is no file {path}: name the "
            "directory of a run that has trained"
        )
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        record = _parse(line)
        if record is None:
            if number == len(lines):  # no line break after it: torn
                break
            raise InputError(f"a line of a record is a JSON object with a step, but line {number} of {path} is not")
        yield record


def _parse(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except json.JSONDecodeError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else None


def _draw_panel(axes: Any, title: str, lines: Sequence[tuple[str, str, str, str]], curves: Mapping[str, Curve]) -> None:
    for key, name, colour, marker in lines:
        if key not in curves:
            continue
        steps, values = zip(*curves[key], strict=True)
        label = f"{name}, {_last(key, values[-1])}"
        mark = marker or ("o" if len(steps) == 1 else "")
        axes.plot(steps, values, color=colour, linewidth=1.8, marker=mark, markersize=3.8, label=label)
    style.title(axes, title)
    style.count_steps(axes, 6)
    style.frame(axes)
    axes.legend(framealpha=1, edgecolor="white", fontsize=9, labelcolor=style.INK, handlelength=1.6)


def _last(key: str, value: float) -> str:
    """Say where a curve ends, in the units that people compare."""
    if key.endswith("/nll"):
        return f"last {value:.2f} (perplexity {math.exp(min(value, 700)):.4g})"
    return f"last {value:.1f}"
