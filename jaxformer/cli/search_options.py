"""The arguments that say how to search, the same for every command that translates."""

from __future__ import annotations

import argparse
import dataclasses
import re
from typing import Any

from jaxformer.errors import InputError, UsageError
from jaxformer.search.config import DecodingConfig

SEARCH = (
    ("beam_size", int, "W", "hypotheses alive at a time; 1 is greedy search"),
    ("alpha", float, "A", "strength of the length penalty"),
    ("length_penalty", str, "NAME", "gnmt: ((5+n)/6)^alpha, average: n^alpha, or none"),
    (
        "coverage_penalty",
        float,
        "B",
        "strength of the coverage penalty; 0: there is none",
    ),
    ("diversity_groups", int, "G", "groups of the beam that avoid each other's words"),
    ("diversity_strength", float, "X", "how much they avoid them"),
    ("min_length", int, "N", "least tokens of a translation, its end included"),
    (
        "min_length_ratio",
        float,
        "X",
        "least tokens of a translation, in parts of its source's",
    ),
    ("max_target_length", int, "N", "most tokens of a translation"),
    (
        "max_length_ratio",
        float,
        "X",
        "most tokens of a translation, in parts of its source's",
    ),
    (
        "max_extra_length",
        int,
        "N",
        "most tokens of a translation beyond those of its source",
    ),
    (
        "no_repeat_ngram",
        int,
        "N",
        "no N tokens come twice in the same order; 0: they may",
    ),
    (
        "repetition_penalty",
        float,
        "X",
        "above 1: tokens that came before come less often",
    ),
    (
        "precision",
        str,
        "NAME",
        (
            "model: as it was trained, float32, bfloat16 or int8: 8 bits, fastest for"
            " large models"
        ),
    ),
    ("batch_size", int, "N", "most sentences that are decoded together"),
    (
        "tokens_per_batch",
        int,
        "N",
        "most source tokens that are decoded together, padding counted",
    ),
)
"""Keys of the section ``decoding``: name, type, letter and meaning."""

SAMPLING = (
    (
        "temperature",
        float,
        "X",
        "below 1 the probable becomes more probable; 0: nothing else comes",
    ),
    ("top_k", int, "K", "draw from the K most probable tokens; 0: from all"),
    (
        "top_p",
        float,
        "P",
        "draw from the most probable tokens that have probability P together",
    ),
    (
        "min_p",
        float,
        "P",
        "draw from tokens at least P times as probable as the most probable",
    ),
    ("epsilon", float, "P", "draw from tokens of probability P and more"),
    ("seed", int, "N", "of the drawing"),
)

NUMBERS = SEARCH + SAMPLING


def add_search(parser: argparse.ArgumentParser) -> None:
    """Declare how to search; the defaults are those of the run."""
    for name, kind, metavar, meaning in NUMBERS:
        parser.add_argument(f"--{name}", type=kind, metavar=metavar, help=meaning)
    parser.add_argument(
        "--no_unknown", action="store_true", help="never write the unknown token"
    )
    parser.add_argument(
        "--sample",
        action="store_true",
        help="draw translations at random, not search for the best",
    )
    parser.add_argument(
        "--split_long",
        action="store_true",
        help="cut only lines longer than training saw, also where the run refuses them",
    )
    parser.add_argument(
        "--shortlist",
        action="store_true",
        help="only tokens that jaxformer shortlist found likely for each sentence",
    )


def asked_search(options: argparse.Namespace) -> dict[str, Any]:
    """Return the keys of the section ``decoding`` that the command line sets, with
    their values.
    """
    asked = {name: getattr(options, name) for name, *_ in NUMBERS}
    asked = {name: value for name, value in asked.items() if value is not None}
    asked |= {name: True for name in ("sample", "no_unknown") if getattr(options, name)}
    return asked | ({"long_sources": "split"} if options.split_long else {})


def choose_search(
    options: argparse.Namespace, decoding: DecodingConfig
) -> DecodingConfig:
    """Put what is asked for here before what the run says.

    Raises:
        InputError: a value out of range, or one of sampling where nothing is drawn.
    """
    asked = asked_search(options)
    needless = [name for name, *_ in SAMPLING if name in asked]
    if needless and not (options.sample or decoding.sample):
        raise UsageError(
            f"--{needless[0]} is for drawing at random: add --sample, or leave it out"
        )
    try:
        return dataclasses.replace(decoding, **asked)
    except InputError as error:
        message = str(error)
        for name in asked:  # by the flag that was given, not by the key that it sets
            message = re.sub(rf"\bdecoding\.{name}\b", f"--{name}", message)
        raise (InputError if message == str(error) else UsageError)(message) from None
