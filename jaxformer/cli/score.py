"""``jaxformer score``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from jaxformer.cli.arguments import (
    add_ensemble,
    add_model,
    add_options,
    add_output,
    load_translator,
    name_flag,
)
from jaxformer.cli.output import check_output, name_lines, write_output
from jaxformer.data import sources
from jaxformer.data.files import read_lines
from jaxformer.data.records import Pair
from jaxformer.errors import UsageError
from jaxformer.evaluation.perplexity import perplexity
from jaxformer.files import finite
from jaxformer.runs import config as configuration
from jaxformer.translation.translator import Translator

_OF_TRANSLATION = "source_language", "target_language", "ensemble", "ensemble_weights"

EXAMPLE = """
examples:
  jaxformer score --workdir=runs/quickstart --source=test.en --target=test.de
  jaxformer score --workdir=runs/quickstart --source=test.en --target=test.de \\
    --format=jsonl
  jaxformer score --workdir=runs/quickstart --source=test.en --target=test.de --summary
  jaxformer score --workdir=runs/language_model --target=texts.txt

Prints, for each pair of lines, the natural logarithm of the target's probability given
its source and the number of target tokens, end of sentence included, separated by a
tab. With --summary it prints one JSON object on all pairs instead: `nll` is the mean of
nats per token, `perplexity` its exponential, and `word_perplexity` the same per word
between white space, the end of a sentence counted as a word, which compares models of
different vocabularies.

A language model has no source: each line of the target is a text.

The vocabulary segments the target into tokens. A search may have written the same text
with other tokens, whose log-probability may differ by many nats: that is the
log_probability of translate --format=jsonl.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_model(parser)
    add_ensemble(parser)
    source = "source text (a language model has none)"
    add_options(parser.add_argument, ("source", Path, "FILE", source))
    parser.add_argument(
        "--target",
        required=True,
        type=Path,
        metavar="FILE",
        help="its translation, or the texts",
    )
    add_output(parser)
    parser.add_argument(
        "--summary",
        action="store_true",
        help="print the perplexity of all pairs instead",
    )


def run(options: argparse.Namespace) -> None:
    """Score."""
    check_output(options.output, options.source, options.target)
    targets_only = options.source is None
    if targets_only:
        pairs = [Pair("", text) for text in read_lines(options.target)]
    else:
        files = ",".join(map(sources.escape, (options.source, options.target)))
        pairs = list(sources.load(f"text:{files}", "", ""))
    targets = [pair.target for pair in pairs]
    config = configuration.load(options.workdir / "config.json")
    objective = config.training.objective
    if objective not in ("translation", "causal"):
        raise UsageError(
            "score is for translations and language models, and"
            f" {options.workdir} has training.objective={objective}: use evaluate or"
            " predict"
        )
    if objective == "causal":
        given = ("source", *_OF_TRANSLATION)
        needless = [name for name in given if getattr(options, name)]
        if needless:
            raise UsageError(
                f"{name_flag(needless[0])} is for translations, and {options.workdir}"
                " has a language model: leave it out"
            )
        asked = options.workdir, options.checkpoint
        translator = Translator.load(*asked, objective="causal")
    elif targets_only:
        raise UsageError(
            "score without a source needs one language model, and"
            f" {options.workdir} translates: add --source"
        )
    else:
        translator = load_translator(options, options.target_language)
    with name_lines(source=options.source, target=options.target):
        if targets_only:
            from jaxformer.evaluation.text_scores import score_texts

            scores = score_texts(translator, targets)
        else:
            scores = translator.score(pairs)
    if options.summary:
        summary = perplexity(scores, targets)
        lines = [json.dumps(finite(summary.to_record()))]
    elif options.format == "jsonl":
        lines = [json.dumps(finite(score.to_json())) for score in scores]
    else:
        lines = [f"{score.log_probability:.6f}\t{score.tokens}" for score in scores]
    write_output(options.output, lines)
