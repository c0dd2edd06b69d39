"""The arguments that choose scores, for the commands that give some."""

from __future__ import annotations

import argparse

from jaxformer.evaluation.choice import DEFAULT_METRICS, METRICS


def add_metrics(parser: argparse.ArgumentParser) -> None:
    """Declare what to score by."""
    parser.add_argument(
        "--metrics",
        type=lambda names: names.split(","),
        metavar="NAMES",
        help=(
            f"of {', '.join(METRICS)}, bleu:TOKENIZER, with commas between them"
            f" (default {','.join(DEFAULT_METRICS)}; evaluate of a run with"
            " evaluation.best_metric=f1: f1 as well)"
        ),
    )
