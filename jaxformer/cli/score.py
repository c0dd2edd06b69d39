"""``jaxformer score``."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

from jaxformer.cli.arguments import (
    add_ensemble,
    add_flags,
    add_model,
    add_options,
    add_output,
    load_translator,
    refuse_flags,
)
from jaxformer.cli.output import (
    check_output,
    name_lines,
    open_output,
    show_progress,
    warn,
    write_result,
)
from jaxformer.data import sources
from jaxformer.data.files import open_lines
from jaxformer.data.records import Pair
from jaxformer.errors import LineError, UsageError
from jaxformer.evaluation.perplexity import Perplexity, perplexity
from jaxformer.evaluation.text_scores import score_texts
from jaxformer.files import finite
from jaxformer.runs import config as configuration
from jaxformer.translation.results import PairScore
from jaxformer.translation.translator import Translator

_WINDOW = 4096  # pairs in memory
_OF_TRANSLATION = (
    *("source", "source_language", "target_language"),
    *("ensemble", "ensemble_weights"),
)

EXAMPLE = """
examples:
  jaxformer score --workdir=runs/quickstart --source=test.en --target=test.de
  jaxformer score --workdir=runs/quickstart --source=test.en --target=test.de \\
    --format=jsonl
  jaxformer score --workdir=runs/quickstart --source=test.en --target=test.de \\
    --summary
  jaxformer score --workdir=runs/language_model --target=texts.txt

Prints, for each pair of lines, the natural logarithm of the target's probability given
its source and the number of target tokens, end of sentence included, separated by a
tab. With --summary it prints the scores of all pairs instead, a table on a terminal and
JSON elsewhere or with --format=jsonl: `nll` is the mean of nats per token, `perplexity`
its exponential, and `word_perplexity` the same per word between white space, the end of
a sentence counted as a word, which compares models of different vocabularies.

A language model has no source: each line of the target is a text.

The vocabulary segments the target into tokens. A search may have written the same text
with other tokens, whose log-probability may differ by many nats: that is the
log_probability of translate --format=jsonl.

Text of any length takes the same memory: pairs are read, scored and written in windows.
A pair with more tokens than the model has positions has empty columns, null in JSON,
and no part in the summary; standard error counts them. --strict refuses the first.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_model(parser)
    add_ensemble(parser)
    source = "source text (a language model has none)"
    add_options(parser, ("source", Path, "FILE", source))
    parser.add_argument(
        "--target",
        required=True,
        type=Path,
        metavar="FILE",
        help="its translation, or the texts",
    )
    add_output(parser)
    add_flags(
        parser,
        summary="print the perplexity of all pairs instead",
        strict="end with an error at a pair that is too long for the model",
    )


def run(options: argparse.Namespace) -> None:
    """Score."""
    files = [path for path in (options.source, options.target) if path is not None]
    check_output(options.output, *files)
    # Find an unreadable line before the model is loaded; a pipe is read once.
    total = None
    if all(path.is_file() for path in files):
        total = sum(1 for _ in _read(options))
    translator = _load(options)
    too_long, done, parts = 0, 0, []
    with (
        name_lines(source=options.source, target=options.target),
        open_output(options.output) as write,
        show_progress(total, options.output, "pairs") as advance,
    ):
        pairs = _read(options)
        while window := list(itertools.islice(pairs, _WINDOW)):
            fits = [True] * len(window)
            if not options.strict:
                fits = translator.codec.fit(*zip(*window, strict=True))
            given = list(itertools.compress(window, fits))
            try:
                found = (
                    score_texts(translator, [pair.target for pair in given])
                    if options.source is None
                    else translator.score(given)
                )
            except LineError as error:
                numbers = itertools.compress(itertools.count(done + 1), fits)
                error.number = list(numbers)[error.number - 1]
                raise
            if not options.summary:
                scores = iter(found)
                for fit in fits:
                    write(_format(next(scores) if fit else None, options.format))
            elif given:
                parts.append(perplexity(found, [pair.target for pair in given]))
            done += len(window)
            advance(len(window))
            too_long += fits.count(False)
        if options.summary:
            parts = parts or [perplexity([], [])]
            summary = Perplexity(*map(sum, zip(*parts, strict=True)))
            if options.output is None and options.format == "text":
                write_result(summary.to_record(), None)
            else:
                write(json.dumps(summary.to_record()))
    if too_long:
        warn(f"{too_long:,} of {done:,} pairs are too long for the model: no score")


def _read(options: argparse.Namespace) -> Iterator[Pair]:
    """Read the pairs; those of a language model have no source."""
    if options.source is None:
        return (Pair("", text) for text in open_lines([options.target], empty=True))
    files = ",".join(map(sources.escape, (options.source, options.target)))
    return iter(sources.load(f"text:{files}", "", "").read(empty=True))


def _load(options: argparse.Namespace) -> Translator:
    """Load the run, and check that it can score what is given."""
    config = configuration.load(options.workdir / "config.json")
    objective = config.training.objective
    if objective not in ("translation", "causal"):
        raise UsageError(
            "score is for translations and language models, and"
            f" {options.workdir} has training.objective={objective}: use evaluate or"
            " predict"
        )
    if objective == "causal":
        refuse_flags(options, objective, _OF_TRANSLATION)
    elif options.source is None:
        raise UsageError(
            "score without a source needs one language model, and"
            f" {options.workdir} translates: add --source"
        )
    return load_translator(options, options.target_language, objective=objective)


def _format(score: PairScore | None, form: str) -> str:
    if form == "jsonl":
        empty = {"log_probability": None, "tokens": None}
        return json.dumps(finite(score.to_json()) if score else empty)
    return f"{score.log_probability:.6f}\t{score.tokens}" if score else "\t"
