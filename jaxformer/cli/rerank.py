"""``jaxformer rerank``."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path

from jaxformer.cli.arguments import (
    add_options,
    add_output,
    find_named,
    load_named,
    named,
)
from jaxformer.cli.main import text_file
from jaxformer.cli.output import (
    check_output,
    name_input,
    read_input,
    warn,
    write_output,
)
from jaxformer.data.files import read_lines
from jaxformer.data.frame import Template
from jaxformer.errors import InputError, UsageError
from jaxformer.evaluation.reranking_weights import tune
from jaxformer.runs import config as configuration
from jaxformer.translation import rerank as reranking
from jaxformer.translation.rerank import SEARCH, Record
from jaxformer.translation.translator import Translator

EXAMPLE = """
examples:
  jaxformer translate --workdir=runs/ende --input=test.en --beam_size=16 \\
    --n_best=16 --format=jsonl > test.jsonl
  jaxformer rerank --input=test.jsonl --reverse=runs/deen --weight reverse=0.5 \\
    --output=test.de
  jaxformer rerank --input=valid.jsonl --reverse=runs/deen \\
    --scores lm=valid.lm --tune=valid.de

Sorts the translations of each sentence by a weighted sum of scores and prints the best,
one a line; --format=jsonl prints all of them with their scores. `search` is the score
of the input; `reverse` the mean log-probability of the source's tokens by a run of the
opposite direction (one of several languages takes those of the input); `language_model`
that of the translation's tokens by a run that was trained with "." as the source of
every pair. Others are read from files with one number for each translation, in the
order of the input. A translation that is too long for a model has no score and comes
last; a line on standard error counts them. Models score the text as their vocabularies
segment it, not the tokens of the search. The default weight is 1. With --tune, all
combinations of a few weights are tried instead, and one JSON object shows which has the
highest BLEU against these references.
"""

MODELS = ("reverse", "language_model")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    reads_back = "a run that translates back, and which checkpoint"
    into = "what it translates into (default: the language of the sources)"
    add_options(
        parser,
        ("reverse", str, "DIR[@WHICH]", reads_back),
        ("reverse_language", str, "CODE", into),
        ("language_model", str, "DIR[@WHICH]", 'a run whose sources were all "."'),
        (
            "input",
            text_file,
            "FILE",
            "JSON lines of translate (default: standard input)",
        ),
        ("tune", Path, "FILE", "find the weights that suit these references"),
    )
    add_options(
        parser,
        ("scores", named("NAME=FILE"), "NAME=FILE", "further scores; may be repeated"),
        ("weight", named("NAME=X"), "NAME=X", "of a score; may be repeated"),
        repeated=True,
    )
    add_output(parser)


def run(options: argparse.Namespace) -> None:
    """Rerank."""
    files = dict(options.scores)
    names = [name for name in MODELS if vars(options)[name]]
    weights = _weights(options.weight, [SEARCH, *names, *files])
    check_output(
        options.output, options.input, options.tune, *map(Path, files.values())
    )
    if options.tune is not None and options.weight:
        raise UsageError("--tune finds the weights: leave out --weight")
    references = None if options.tune is None else read_lines(options.tune)
    source = name_input(options.input)
    records = reranking.read_records(list(read_input(options.input)), source)
    if references is None and options.format == "text":
        for number, record in enumerate(records, start=1):
            if "\n" in "".join(reranking.texts_of([record])):
                raise InputError(
                    f"{source}, line {number} has a translation with a line end, and"
                    " --format=text prints one line for each sentence: give"
                    " --format=jsonl"
                )
    scores = _scores(options, records, files)
    if references is not None:
        tuned = tune(records, scores, references)
        report = {
            "weights": tuned.weights,
            "bleu_before": tuned.before.value,
            "bleu": tuned.after.value,
            "signature": tuned.after.signature,
        }
        lines = [json.dumps(report)]
    else:
        found = reranking.rerank(records, scores, weights)
        if options.format == "jsonl":
            lines = [json.dumps(record, ensure_ascii=False) for record in found]
        else:
            lines = [record["translations"][0]["text"] for record in found]
    write_output(options.output, lines)


def _scores(
    options: argparse.Namespace, records: list[Record], files: dict[str, str]
) -> dict[str, list[float]]:
    """Return all scores by name: of the search, of models, of files.

    Raises:
        InputError: a run or a file is missing, or does not fit the lists.
    """
    translations = [each for record in records for each in record["translations"]]
    # A wrong file is found before a model is loaded.
    read = {
        name: reranking.read_scores(read_lines(path), len(translations), path)
        for name, path in files.items()
    }
    found = {SEARCH: [each["score"] for each in translations]}
    scorers = {}
    if options.reverse:
        back = _load_reverse(options, records)
        reranking.check_reverse(back, records, f"--reverse {options.reverse}")
        scorers["reverse"] = reranking.reverse_scorer(back)
    if options.language_model:
        model = load_named("--language_model", options.language_model)
        scorers["language_model"] = reranking.language_model_scorer(model)
    for name, scorer in scorers.items():
        found[name], unscored = reranking.score(records, scorer)
        if unscored:
            warn(
                f"{unscored} of {len(translations)} translations have no score {name}"
                f" and come last: {vars(options)[name]} has too few positions for them"
                " or their sources"
            )
    return found | read


def _load_reverse(options: argparse.Namespace, records: list[Record]) -> Translator:
    """Load the run of ``--reverse``; one of several languages translates from and into
    those of the first record exchanged.

    Raises:
        InputError: there is no such run, or it has no such language.
    """
    run, checkpoint = find_named("--reverse", options.reverse)
    target, source = options.reverse_language, None
    first = records[0] if records else {}
    if configuration.load(run / "config.json").data.language_tags:
        target = target or first.get("source_language")
        template = Template.load(run / "vocabulary")
        if template is not None and template.has_source:
            source = first.get("target_language")
    return Translator.load(run, checkpoint, target, source)


def _weights(
    given: Sequence[tuple[str, str]], names: Sequence[str]
) -> dict[str, float]:
    """Return the weight of each score."""
    weights = dict.fromkeys(names, 1.0)
    if len(weights) < len(names):
        raise UsageError(
            f"two scores have one name: {', '.join(names)}; call those of --scores"
            " otherwise"
        )
    for name, text in given:
        if name not in weights:
            raise UsageError(
                f"--weight {name}: there are scores {', '.join(names)}; weigh one of"
                " these"
            )
        try:
            weights[name] = float(text)
        except ValueError:
            weights[name] = math.nan
        if not abs(weights[name]) <= 1e9:
            raise UsageError(
                f"--weight {name} must be a number from -1e9 to 1e9, not {text!r}"
            )
    return weights
