"""``jaxformer score``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from jaxformer.cli.main import DONE
from jaxformer.cli.options import (
    add_ensemble,
    add_model,
    check_output,
    load_translator,
    name_lines,
    write_output,
)
from jaxformer.data import sources
from jaxformer.evaluation.perplexity import perplexity
from jaxformer.files import finite

EXAMPLE = """
examples:
  jaxformer score --workdir=runs/quickstart --source=test.en --target=test.de
  jaxformer score --workdir=runs/quickstart --source=test.en --target=test.de --format=jsonl
  jaxformer score --workdir=runs/quickstart --source=test.en --target=test.de --summary

Prints, for each pair of lines, the natural logarithm of the target's probability under its source and the number of
target tokens, end of sentence included, separated by a tab. With --summary it prints one JSON object on all of them
instead: `nll` is the mean of nats per token, `perplexity` its exponential, and `word_perplexity` the same per word
between white space, the end of a sentence counted as one, which models of different vocabularies share.

The target is segmented into tokens by the vocabulary. A search may have written the same text with other tokens, whose
log-probability may differ by many nats: that of its own tokens is log_probability of translate --format=jsonl.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLE
    add_model(parser)
    add_ensemble(parser)
    parser.add_argument(
        "--source", required=True, type=Path, metavar="FILE", help="source text"
    )
    parser.add_argument(
        "--target", required=True, type=Path, metavar="FILE", help="its translation"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="where to write (default: standard output)",
    )
    parser.add_argument(
        "--format", choices=("text", "jsonl"), default="text", help="form of the output"
    )
    parser.add_argument(
        "--summary",
        action="store_true",
        help="print the perplexity of all pairs instead",
    )


def run(options: argparse.Namespace) -> int:
    """Score."""
    check_output(options.output, options.source, options.target)
    name = f"text:{sources.escape(options.source)},{sources.escape(options.target)}"
    pairs = list(sources.load(name, "", ""))
    translator = load_translator(options, options.target_language)
    with name_lines(source=options.source, target=options.target):
        scores = translator.score(pairs)
    if options.summary:
        lines = [
            json.dumps(
                finite(perplexity(scores, [pair.target for pair in pairs]).to_record())
            )
        ]
    elif options.format == "jsonl":
        lines = [json.dumps(finite(score.to_json())) for score in scores]
    else:
        lines = [f"{score.log_probability:.6f}\t{score.tokens}" for score in scores]
    write_output(options.output, lines)
    return DONE
