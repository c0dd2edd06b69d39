"""``jaxformer rerank``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxformer.cli.main import DONE
from jaxformer.cli.options import check_output, name_input, read_input, write_output
from jaxformer.cli.score_options import add_scores, asked_scores, compute_scores
from jaxformer.data.files import read_lines
from jaxformer.errors import InputError, UsageError
from jaxformer.evaluation.reranking_weights import tune
from jaxformer.translation import rerank as reranking

EXAMPLE = """
examples:
  jaxformer translate --workdir=runs/ende --input=test.en --beam_size=16 --n_best=16 --format=jsonl > test.jsonl
  jaxformer rerank --input=test.jsonl --reverse=runs/deen --weight reverse=0.5 --output=test.de
  jaxformer rerank --input=valid.jsonl --reverse=runs/deen --scores lm=valid.lm --tune=valid.de

Puts the translations of each sentence in the order of a weighted sum and prints the best, one a line; --format=jsonl
gives all of them with their scores. `search` is the score of the translations as they come; `reverse` the mean
log-probability of the source's tokens by a run of the opposite direction; `language_model` that of the translation's
tokens by a run that was trained with "." as the source of every pair; others come from files with one number for each
translation, in the order of the input. A translation that is too long for a model has no score and comes last; a line
on standard error counts them. Models score the text as their vocabularies segment it, not the tokens that the search
wrote; `search` is of those. A weight that is not given is 1. With --tune, all combinations of a few weights are tried
instead, and one JSON object says which gives these references the highest BLEU.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLE
    parser.add_argument(
        "--input",
        type=Path,
        metavar="FILE",
        help="JSON lines of translate (default: standard input)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="where to write (default: standard output)",
    )
    add_scores(parser)
    parser.add_argument(
        "--tune",
        type=Path,
        metavar="FILE",
        help="find the weights that suit these references",
    )
    parser.add_argument(
        "--format", choices=("text", "jsonl"), default="text", help="form of the output"
    )


def run(options: argparse.Namespace) -> int:
    """Rerank."""
    asked = asked_scores(options)
    check_output(
        options.output, options.input, options.tune, *map(Path, asked.files.values())
    )
    if options.tune is not None and options.weight:
        raise UsageError(
            "--tune finds the weights, so that --weight says nothing: leave out the one"
            " or the other"
        )
    references = None if options.tune is None else read_lines(options.tune)
    records = reranking.read_records(
        list(read_input(options.input)), name_input(options.input)
    )
    if references is None and options.format == "text":
        _check_lines(records, name_input(options.input))
    scores = compute_scores(records, asked)
    if references is not None:
        tuned = tune(reranking.texts_of(records), scores, references)
        report = {
            "weights": tuned.weights,
            "bleu_before": tuned.before.value,
            "bleu": tuned.after.value,
        }
        lines = [json.dumps({**report, "signature": tuned.after.signature})]
    else:
        lines = _format(
            records,
            scores,
            reranking.weighted_sum(scores, asked.weights),
            options.format,
        )
    write_output(options.output, lines)
    return DONE


def _check_lines(records: list[dict[str, Any]], name: str) -> None:
    """Refuse a translation of two lines, where the output has one for each sentence."""
    for number, texts in enumerate(reranking.texts_of(records), start=1):
        if any("\n" in text for text in texts):
            raise InputError(
                f"{name}, line {number} has a translation with a line end, and"
                " --format=text prints one line for each sentence: remove the line"
                " end, or give --format=jsonl"
            )


def _format(
    records: list[dict[str, Any]],
    scores: dict[str, list[list[float]]],
    sums: list[list[float]],
    form: str,
) -> Iterator[str]:
    for number, (record, totals) in enumerate(zip(records, sums, strict=True)):
        if form == "text":
            yield record["translations"][reranking.order(totals)[0]]["text"]
        else:
            own = {name: rows[number] for name, rows in scores.items()}
            yield json.dumps(
                reranking.write_record(record, own, totals), ensure_ascii=False
            )
