"""Draw the picture of docs/families.md, the curves of its first runs: ``python
docs/figures/first_runs_figure.py docs/images/first-runs.png runs/python runs/words
runs/language runs/scratch``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from jaxformer.visualization import style


def read_curve(run: Path, name: str) -> tuple[list[int], list[float]]:
    """Read the steps and the values of a number that a run recorded."""
    lines = (run / "metrics.jsonl").read_text("utf-8").splitlines()
    found = [row for row in map(json.loads, lines) if name in row]
    return [row["step"] for row in found], [row[name] for row in found]


def draw_first_runs(picture: Path | str, runs: Sequence[Path]) -> Path:
    """Draw the losses of the language model and of the masked words, and the accuracy
    of the classifier that begins with the latter next to the one from scratch.
    """
    python, words, language, scratch = runs
    figure = style.new_figure(9, 2.8)
    panels = {
        "language model, nats a token": [
            ("training", python, "train/nll", style.GREY),
            ("validation", python, "valid/nll", style.BLUE),
        ],
        "masked words, nats a word": [
            ("training", words, "train/nll", style.GREY),
            ("validation", words, "valid/nll", style.BLUE),
        ],
        "language of a line, accuracy": [
            ("from scratch", scratch, "valid/accuracy", style.RED),
            ("from masked words", language, "valid/accuracy", style.BLUE),
        ],
    }
    for axes, (title, curves) in zip(
        figure.subplots(1, 3), panels.items(), strict=True
    ):
        for label, run, name, color in curves:
            axes.plot(
                *read_curve(run, name),
                label=label,
                color=color,
                marker="o",
                markersize=3,
            )
        style.title(axes, title)
        style.name_axis(axes, "x", "step")
        style.count_steps(axes, 4)
        style.frame(axes)
        axes.legend(**style.INNER_LEGEND)
    return style.save(figure, picture)


if __name__ == "__main__":
    print(draw_first_runs(sys.argv[1], [Path(run) for run in sys.argv[2:]]))
