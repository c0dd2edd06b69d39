"""The arguments that choose scores, for the commands that give some."""

from __future__ import annotations

import argparse

from jaxformer.evaluation.choice import DEFAULT_METRICS, METRICS
from jaxformer.evaluation.comet import DEFAULT_MODEL


def add_metrics(parser: argparse.ArgumentParser) -> None:
    """Declare what to score by."""
    parser.add_argument(
        "--metrics",
        type=lambda names: names.split(","),
        default=list(DEFAULT_METRICS),
        metavar="NAMES",
        help=f"of {', '.join(METRICS)}, bleu:TOKENIZER, with commas between them (default {','.join(DEFAULT_METRICS)})",
    )
    parser.add_argument(
        "--comet_model", default=DEFAULT_MODEL, metavar="NAME", help=f"or FILE, model.ckpt (default {DEFAULT_MODEL})"
    )
