#!/usr/bin/env python3
"""Draw the figures of docs/the-paper.md: ``python scripts/paper_figures.py
--output=docs/images``, half a minute.

Each is drawn by the functions of the library that compute what it shows; all that is
random has the seed 0.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import jax

from jaxformer.errors import InputError
from jaxformer.paper import (
    attention_figures,
    model_figure,
    position_figures,
    training_figures,
)


def plan(draws: int) -> Mapping[str, Callable[[Path], Path]]:
    """Name the files, each with what draws it.

    Args:
        draws: softmaxes for each length in the two figures of their Jacobians.
    """
    return {
        "paper-model.png": model_figure.draw_model,
        "paper-attention-steps.png": attention_figures.draw_attention_steps,
        "paper-jacobians.png": functools.partial(
            attention_figures.draw_jacobians, draws=draws
        ),
        "paper-jacobians-products.png": functools.partial(
            attention_figures.draw_both_derivatives, draws=draws
        ),
        "paper-masks.png": attention_figures.draw_masks,
        "paper-positions.png": position_figures.draw_positions,
        "paper-rotation.png": position_figures.draw_rotation,
        "paper-costs.png": training_figures.draw_costs,
        "paper-schedule.png": training_figures.draw_schedule,
        "paper-smoothing.png": training_figures.draw_smoothing,
    }


def main() -> int:
    """Draw all figures, and print the name of each file."""
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
        print(f"paper_figures: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
