#!/usr/bin/env python3
"""Draw the figures of docs/the-paper.md and docs/the-paper-by-hand.md in half a minute:
``python docs/figures --output=docs/images``.

Each is drawn by the functions that compute what it shows; the random seed is 0.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import jax

import attention_figures
import by_hand_figures
import model_figure
import position_figures
import training_figures
from jaxformer.errors import InputError


def plan(draws: int) -> Mapping[str, Callable[[Path], Path]]:
    """Return the function that draws each file.

    Args:
        draws: softmaxes per length in the figure of Jacobians.
    """
    return {
        "paper-model.png": model_figure.draw_model,
        "paper-attention-steps.png": attention_figures.draw_attention_steps,
        "paper-jacobians.png": functools.partial(
            attention_figures.draw_jacobians, draws=draws
        ),
        "paper-masks.png": attention_figures.draw_masks,
        "paper-positions.png": position_figures.draw_positions,
        "paper-rotation.png": position_figures.draw_rotation,
        "paper-costs.png": training_figures.draw_costs,
        "paper-schedule.png": training_figures.draw_schedule,
        "paper-smoothing.png": training_figures.draw_smoothing,
        "paper-cosine.png": by_hand_figures.draw_cosine,
        "paper-jacobian-grid.png": by_hand_figures.draw_jacobian_grid,
        "paper-heads.png": by_hand_figures.draw_heads,
    }


def main() -> int:
    """Draw all figures, and print their names."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--output",
        required=True,
        type=Path,
        metavar="DIR",
        help="folder of the pictures",
    )
    parser.add_argument(
        "--draws",
        type=int,
        default=2000,
        metavar="N",
        help="softmaxes a length (default: 2000)",
    )
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    try:
        if options.draws < 1:
            raise InputError(f"--draws must be at least 1, not {options.draws}")
        for name, draw in plan(options.draws).items():
            print(draw(options.output / name))
    except InputError as error:
        print(f"figures: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
