"""``jaxformer translate``."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

from jaxformer.cli.main import DONE
from jaxformer.cli.options import add_model, add_search, check_output, read_input, write_output
from jaxformer.decoding.translator import Hypothesis, Translator

EXAMPLE = """
examples:
  echo "Insert a new table." | jaxformer translate --workdir=runs/quickstart
  jaxformer translate --workdir=runs/quickstart --input=test.en --output=test.de
  jaxformer translate --workdir=runs/quickstart --input=test.en --n_best=4 --format=jsonl

Text is UTF-8, one sentence a line; one line comes out for each that goes in, in order, and blank lines stay empty. A
line of more tokens than the model takes is an error, or is translated in parts with --split_long. With --n_best above 1
each line is: number of the sentence from 1, score, translation, separated by tabs, the best first. --format=jsonl gives
one object a sentence with scores and pieces.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLE
    add_model(parser)
    parser.add_argument("--input", type=Path, metavar="FILE", help="text to translate (default: standard input)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="where to write (default: standard output)")
    add_search(parser)
    parser.add_argument("--n_best", type=int, default=1, metavar="N", help="translations of each sentence (default 1)")
    parser.add_argument(
        "--split_long", action="store_true", help="translate sentences that are too long in parts, not refuse them"
    )
    parser.add_argument("--format", choices=("text", "jsonl"), default="text", help="form of the output")


def run(options: argparse.Namespace) -> int:
    """Translate."""
    check_output(options.output)
    lines = read_input(options.input)
    translator = Translator.load(options.workdir, options.checkpoint, options.target_language)
    if options.split_long:
        translator.decoding = dataclasses.replace(translator.decoding, long_sources="split")
    found = translator.search(lines, beam_size=options.beam_size, alpha=options.alpha, n_best=options.n_best)
    write_output(options.output, _format(lines, found, options))
    return DONE


def _format(lines: list[str], found: list[list[Hypothesis]], options: argparse.Namespace) -> Iterator[str]:
    for number, (source, hypotheses) in enumerate(zip(lines, found, strict=True), start=1):
        if options.format == "jsonl":
            record = {"source": source, "translations": [hypothesis._asdict() for hypothesis in hypotheses]}
            yield json.dumps(record, ensure_ascii=False)
        elif options.n_best == 1:
            yield hypotheses[0].text
        else:
            for hypothesis in hypotheses:
                yield f"{number}\t{hypothesis.score:.4f}\t{hypothesis.text}"
