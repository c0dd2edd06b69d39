"""``jaxformer translate``."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxformer.cli.main import DONE
from jaxformer.cli.options import (
    add_ensemble,
    add_model,
    add_search,
    check_output,
    load_translator,
    read_input,
    write_output,
)
from jaxformer.data.files import read_lines
from jaxformer.decoding import minimum_bayes_risk
from jaxformer.decoding.config import DecodingConfig
from jaxformer.decoding.translator import Hypothesis
from jaxformer.errors import InputError

EXAMPLE = """
examples:
  echo "Insert a new table." | jaxformer translate --workdir=runs/quickstart
  jaxformer translate --workdir=runs/quickstart --input=test.en --output=test.de
  jaxformer translate --workdir=runs/quickstart --input=test.en --n_best=4 --format=jsonl
  jaxformer translate --workdir=runs/a --ensemble=runs/b --ensemble=runs/a@latest --input=test.en
  jaxformer translate --workdir=runs/quickstart --input=test.en --ban=damn --ban="for sure" --no_repeat_ngram=3
  jaxformer translate --workdir=runs/quickstart --input=test.en --sample --n_best=10 --top_p=0.9 --seed=1
  jaxformer translate --workdir=runs/quickstart --input=test.en --sample --n_best=32 --epsilon=0.02 --mbr

Text is UTF-8, one sentence a line; one line comes out for each that goes in, in order, and blank lines stay empty. A
line of more tokens than the model takes is an error, or is translated in parts with --split_long. With --n_best above 1
each line is: number of the sentence from 1, score, translation, separated by tabs, the best first. --format=jsonl gives
one object a sentence with scores and pieces. With --sample, --n_best is the number of samples, in the order of their
drawing; a sentence's samples depend on the seed and its number alone. --mbr gives one of them, that which is most like
the others. A sentence of which the options leave no
translation at all gives an empty line, without a score in --format=jsonl.
"""

SEARCH = (
    ("length_penalty", str, "NAME", "gnmt: ((5+n)/6)^alpha, average: n^alpha, or none"),
    ("min_length", int, "N", "least tokens of a translation, its end included"),
    ("max_target_length", int, "N", "most tokens of a translation"),
    ("no_repeat_ngram", int, "N", "no N tokens come twice in the same order; 0: they may"),
    ("repetition_penalty", float, "X", "above 1: tokens that came before come less often"),
)

SAMPLING = (
    ("temperature", float, "X", "below 1 the probable becomes more probable; 0: nothing else comes"),
    ("top_k", int, "K", "draw from the K most probable tokens; 0: from all"),
    ("top_p", float, "P", "draw from the most probable tokens that have probability P together"),
    ("min_p", float, "P", "draw from tokens at least P times as probable as the most probable"),
    ("epsilon", float, "P", "draw from tokens of probability P and more"),
    ("seed", int, "N", "of the drawing"),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLE
    add_model(parser)
    add_ensemble(parser)
    parser.add_argument("--input", type=Path, metavar="FILE", help="text to translate (default: standard input)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="where to write (default: standard output)")
    add_search(parser)
    _add_numbers(parser, SEARCH)
    parser.add_argument("--no_unknown", action="store_true", help="never write the unknown token")
    parser.add_argument(
        "--ban",
        action="append",
        default=[],
        metavar="TEXT",
        help="a word or phrase that never comes; may be repeated",
    )
    parser.add_argument(
        "--prefix", type=Path, metavar="FILE", help="what the translations begin with, one line for each line of input"
    )
    parser.add_argument("--sample", action="store_true", help="draw translations at random, not search for the best")
    _add_numbers(parser, SAMPLING)
    parser.add_argument("--n_best", type=int, default=1, metavar="N", help="translations of each sentence (default 1)")
    parser.add_argument(
        "--mbr", action="store_true", help="of the --n_best translations give the one most like the others, by chrF"
    )
    parser.add_argument(
        "--split_long", action="store_true", help="translate sentences that are too long in parts, not refuse them"
    )
    parser.add_argument("--format", choices=("text", "jsonl"), default="text", help="form of the output")


def run(options: argparse.Namespace) -> int:
    """Translate."""
    check_output(options.output)
    if options.mbr and options.n_best < 2:
        raise InputError("--mbr chooses among several translations: add --sample --n_best=32, or leave it out")
    lines = read_input(options.input)
    prefixes = None if options.prefix is None else read_lines(options.prefix)
    translator = load_translator(options, options.target_language)
    found = translator.search(
        lines,
        beam_size=options.beam_size,
        alpha=options.alpha,
        n_best=options.n_best,
        decoding=_decoding(options, translator.decoding),
        ban=options.ban,
        prefixes=prefixes,
    )
    if options.mbr:
        found = [[each[minimum_bayes_risk.choose([one.text for one in each])]] for each in found]
    write_output(options.output, _format(lines, found, options))
    return DONE


def _add_numbers(parser: argparse.ArgumentParser, options: tuple[tuple[str, type, str, str], ...]) -> None:
    """Declare keys of the section ``decoding``, whose defaults are those of the run."""
    for name, kind, metavar, meaning in options:
        parser.add_argument(f"--{name}", type=kind, metavar=metavar, help=meaning)


def _decoding(options: argparse.Namespace, decoding: DecodingConfig) -> DecodingConfig:
    """Put what is asked for here before what the run says.

    Raises:
        InputError: a value out of range, or one of sampling where nothing is drawn.
    """
    given = {name: getattr(options, name) for name, *_ in SEARCH + SAMPLING}
    given = {name: value for name, value in given.items() if value is not None}
    needless = [name for name, *_ in SAMPLING if name in given]
    if needless and not (options.sample or decoding.sample):
        raise InputError(f"--{needless[0]} is for drawing at random: add --sample, or leave it out")
    if options.split_long:
        given["long_sources"] = "split"
    given |= {name: True for name in ("sample", "no_unknown") if getattr(options, name)}
    return dataclasses.replace(decoding, **given)


def _record(hypothesis: Hypothesis) -> dict[str, Any]:
    """Name the parts of a translation; JSON has no infinity for the score of none."""
    parts = hypothesis._asdict()
    return {name: None if part == -math.inf else part for name, part in parts.items()}


def _format(lines: list[str], found: list[list[Hypothesis]], options: argparse.Namespace) -> Iterator[str]:
    for number, (source, hypotheses) in enumerate(zip(lines, found, strict=True), start=1):
        if options.format == "jsonl":
            record = {"source": source, "translations": [_record(hypothesis) for hypothesis in hypotheses]}
            yield json.dumps(record, ensure_ascii=False)
        elif options.n_best == 1 or options.mbr:
            yield hypotheses[0].text
        else:
            for hypothesis in hypotheses:
                yield f"{number}\t{hypothesis.score:.4f}\t{hypothesis.text}"
