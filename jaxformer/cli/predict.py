"""``jaxformer predict``."""

from __future__ import annotations

import argparse
import json
from typing import get_args

from jaxformer.cli.arguments import add_checkpoint, add_options, number
from jaxformer.cli.main import text_file
from jaxformer.cli.output import (
    announce_compilations,
    check_output,
    name_input,
    name_lines,
    phase,
    read_input,
    warn,
    write_output,
)
from jaxformer.search.config import Precision

EXAMPLE = """
examples:
  jaxformer predict --workdir=runs/sst2 --input=reviews.txt \\
    --output=labels.jsonl
  echo "The capital is <mask>." | jaxformer predict --workdir=runs/words

Reads a text a line, and prints a JSON object for each, by the run's training.objective:

  classification  a text, or two and a tab: the label and all probabilities
  regression      the same: the value
  tagging         words: their tags, and the entities where tags are of IOB
  span            question, tab, text: the answer, its first character and the
                  one after its last (start, end), its score, and no_answer, the
                  score of none; scores are sums of two logits
  masked          a text with <mask> once: words for it, and their probabilities
  masked_and_next the same, or two texts and a tab: the probability that the
                  second follows the first (next)

Texts to label or measure are cut to data.max_length, as in training, and a warning
counts them. Tagged ones are divided between words, those with answers into windows that
overlap, and texts with a mask are refused. A blank line gets null.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_checkpoint(parser)
    add_options(
        parser,
        ("input", text_file, "FILE", "texts, one a line (default: standard input)"),
        ("output", text_file, "FILE", "where to write (default: standard output)"),
        ("top", number(1), "N", "words for a mask", 5),
    )
    parser.add_argument(
        "--precision",
        choices=get_args(Precision),
        help="of weights and computation (default: that of the run)",
    )


def run(options: argparse.Namespace) -> None:
    """Predict."""
    from jaxformer.evaluation.predictor import Predictor

    check_output(options.output, options.input)
    asked = options.workdir, options.checkpoint
    announce_compilations()
    with phase("restoring the model"):
        predictor = Predictor.load(*asked, precision=options.precision)

    def notice(cut: int) -> None:
        limit = f"data.max_length={predictor.longest} tokens"
        warn(f"{cut} texts were cut to {limit}, as in training")

    with name_lines(text=name_input(options.input)):
        texts = list(read_input(options.input))
        with phase("predicting"):
            found = predictor.predict(texts, top=options.top, notice=notice)
    lines = (json.dumps(each, ensure_ascii=False) for each in found)
    write_output(options.output, lines)
