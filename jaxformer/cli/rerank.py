"""``jaxformer rerank``."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxformer.cli.main import DONE
from jaxformer.cli.options import check_output, load_named, read_input, write_output
from jaxformer.data.files import read_lines
from jaxformer.decoding import reranking
from jaxformer.decoding.reranking import SEARCH
from jaxformer.errors import InputError
from jaxformer.evaluation.reranking_weights import tune

EXAMPLE = """
examples:
  jaxformer translate --workdir=runs/ende --input=test.en --beam_size=16 --n_best=16 --format=jsonl > test.jsonl
  jaxformer rerank --input=test.jsonl --reverse=runs/deen --weight reverse=0.5 --output=test.de
  jaxformer rerank --input=valid.jsonl --reverse=runs/deen --scores lm=valid.lm --tune=valid.de

Puts the translations of each sentence in the order of a weighted sum and prints the best, one a line; --format=jsonl
gives all of them with their scores. `search` is the score of the translations as they come; `reverse` the mean
log-probability of the source's tokens by a run of the opposite direction; `language_model` that of the translation's
tokens by a run that was trained with "." as the source of every pair; others come from files with one number for each
translation, in the order of the input. A weight that is not given is 1. With --tune, all combinations of a few weights
are tried instead, and one JSON object says which gives these references the highest BLEU.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLE
    parser.add_argument("--input", type=Path, metavar="FILE", help="JSON lines of translate (default: standard input)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="where to write (default: standard output)")
    parser.add_argument("--reverse", metavar="DIR[@WHICH]", help="a run that translates back, and which checkpoint")
    parser.add_argument("--reverse_language", metavar="CODE", help="what it translates into, if a run of several")
    parser.add_argument("--language_model", metavar="DIR[@WHICH]", help='a run whose sources were all "."')
    parser.add_argument(
        "--scores", action="append", default=[], metavar="NAME=FILE", help="further scores; may be repeated"
    )
    parser.add_argument("--weight", action="append", default=[], metavar="NAME=X", help="of a score; may be repeated")
    parser.add_argument("--tune", type=Path, metavar="FILE", help="find the weights that suit these references")
    parser.add_argument("--format", choices=("text", "jsonl"), default="text", help="form of the output")


def run(options: argparse.Namespace) -> int:
    """Rerank."""
    check_output(options.output, options.input)
    scorers = {
        name: run
        for name, run in (("reverse", options.reverse), ("language_model", options.language_model))
        if run is not None
    }
    files = dict(_named(text, "--scores") for text in options.scores)
    weights = {name: _weight(name, value) for name, value in (_named(text, "--weight") for text in options.weight)}
    names = (SEARCH, *scorers, *files)
    for name in weights:
        if name not in names:
            raise InputError(f"--weight {name}: there are scores {', '.join(names)}; weigh one of these")
    if len(set(names)) < len(names):
        raise InputError(f"two scores have one name: {', '.join(names)}; call those of --scores otherwise")
    if options.tune is not None and weights:
        raise InputError("--tune finds the weights, so that --weight says nothing: leave out the one or the other")
    references = None if options.tune is None else read_lines(options.tune)
    records = reranking.read_records(list(read_input(options.input)))
    scores = _scores(records, scorers, files, options.reverse_language)
    if references is not None:
        tuned = tune(_texts(records), scores, references)
        report = {"weights": tuned.weights, "bleu_before": tuned.before.value, "bleu": tuned.after.value}
        lines = [json.dumps({**report, "signature": tuned.after.signature})]
    else:
        sums = reranking.weighted_sum(scores, {name: weights.get(name, 1.0) for name in scores})
        lines = _format(records, scores, sums, options.format)
    write_output(options.output, lines)
    return DONE


def _texts(records: list[dict[str, Any]]) -> list[list[str]]:
    return [[each["text"] for each in record["translations"]] for record in records]


def _scores(
    records: list[dict[str, Any]], scorers: dict[str, str], files: dict[str, str], language: str | None
) -> dict[str, list[list[float]]]:
    """Give all scores by name; files first, which are quick to be wrong."""
    lists, sources = _texts(records), [record["source"] for record in records]
    found = {SEARCH: [[each["score"] for each in record["translations"]] for record in records]}
    read = {name: reranking.read_scores(read_lines(path), lists, path) for name, path in files.items()}
    for name, run in scorers.items():
        if name == "reverse":
            scorer = reranking.reverse_scorer(load_named(run, language))
        else:
            scorer = reranking.language_model_scorer(load_named(run))
        found[name] = reranking.score_lists(scorer, sources, lists)
    return found | read


def _format(
    records: list[dict[str, Any]], scores: dict[str, list[list[float]]], sums: list[list[float]], form: str
) -> Iterator[str]:
    for number, (record, totals) in enumerate(zip(records, sums, strict=True)):
        places = reranking.order(totals)
        if form == "text":
            yield record["translations"][places[0]]["text"]
            continue
        translations = []
        for place in places:
            own = {name: _or_none(rows[number][place]) for name, rows in scores.items()}
            kept = {**record["translations"][place], "score": own[SEARCH]}
            translations.append({**kept, "scores": own, "total": _or_none(totals[place])})
        yield json.dumps({**record, "translations": translations}, ensure_ascii=False)


def _or_none(value: float) -> float | None:
    """Write what has no score as JSON does."""
    return value if math.isfinite(value) else None


def _named(text: str, option: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not (name and sign and value):
        raise InputError(
            f"{option} needs a name and a value, such as {option} lm={'0.5' if option == '--weight' else 'FILE'}, not "
            f"{text!r}"
        )
    return name, value


def _weight(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"--weight {name} must be a finite number, not {text!r}")
    return value
