"""The arguments that say which scores a reranking adds up, and how much each counts."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxformer.cli.options import load_named
from jaxformer.data.files import read_lines
from jaxformer.errors import UsageError
from jaxformer.translation import rerank as reranking
from jaxformer.translation.rerank import SEARCH


class Asked(NamedTuple):
    """What the command line asks for.

    Attributes:
        runs: that score, by the names of their scores.
        reverse_language: what the reverse model translates into; None: as its run says.
        files: of further scores, by name.
        weights: by the names of all scores; 1 where none was given.
    """

    runs: dict[str, str]
    reverse_language: str | None
    files: dict[str, str]
    weights: dict[str, float]


def add_scores(parser: argparse.ArgumentParser) -> None:
    """Declare them."""
    parser.add_argument(
        "--reverse",
        metavar="DIR[@WHICH]",
        help="a run that translates back, and which checkpoint",
    )
    parser.add_argument(
        "--reverse_language",
        metavar="CODE",
        help="what it translates into, if a run of several",
    )
    parser.add_argument(
        "--language_model",
        metavar="DIR[@WHICH]",
        help='a run whose sources were all "."',
    )
    parser.add_argument(
        "--scores",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="further scores; may be repeated",
    )
    parser.add_argument(
        "--weight",
        action="append",
        default=[],
        metavar="NAME=X",
        help="of a score; may be repeated",
    )


def asked_scores(options: argparse.Namespace) -> Asked:
    """Return what is asked for.

    Raises:
        InputError: two scores have one name, or a weight is no number or that of no
            score.
    """
    runs = {"reverse": options.reverse, "language_model": options.language_model}
    runs = {name: run for name, run in runs.items() if run is not None}
    files = dict(_named(text, "--scores") for text in options.scores)
    given = {
        name: _weight(name, value)
        for name, value in (_named(text, "--weight") for text in options.weight)
    }
    names = (SEARCH, *runs, *files)
    for name in given:
        if name not in names:
            raise UsageError(
                f"--weight {name}: there are scores {', '.join(names)}; weigh one of"
                " these"
            )
    if len(set(names)) < len(names):
        raise UsageError(
            f"two scores have one name: {', '.join(names)}; call those of --scores"
            " otherwise"
        )
    return Asked(
        runs,
        options.reverse_language,
        files,
        {name: given.get(name, 1.0) for name in names},
    )


def compute_scores(
    records: Sequence[Mapping[str, Any]], asked: Asked
) -> dict[str, list[list[float]]]:
    """Return all scores of n-best lists, by name.

    Raises:
        InputError: a run or a file is missing, or does not go with the lists.
    """
    lists, sources = (
        reranking.texts_of(records),
        [record["source"] for record in records],
    )
    found = {
        SEARCH: [
            [each["score"] for each in record["translations"]] for record in records
        ]
    }
    # Files first, which are quick to be wrong.
    read = {
        name: reranking.read_scores(read_lines(path), lists, path)
        for name, path in asked.files.items()
    }
    for name, run in asked.runs.items():
        if name == "reverse":
            translator = load_named("--reverse", run, asked.reverse_language)
            reranking.check_reverse(translator, records, f"--reverse {run}")
            scorer = reranking.reverse_scorer(translator)
        else:
            scorer = reranking.language_model_scorer(
                load_named("--language_model", run)
            )
        found[name] = reranking.score_lists(scorer, sources, lists)
        unscored = reranking.count_unscored(sources, lists, found[name])
        if unscored:
            sys.stderr.write(
                f"jaxformer: warning: {unscored} of {sum(map(len, lists))} translations"
                f" have no score {name} and come last: {run} has too few positions for"
                " them or their sources\n"
            )
    return found | read


def _named(text: str, option: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not (name and sign and value):
        raise UsageError(
            f"{option} needs a name and a value, such as {option}"
            f" lm={'0.5' if option == '--weight' else 'FILE'}, not {text!r}"
        )
    return name, value


def _weight(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not abs(value) <= 1e9:
        raise UsageError(
            f"--weight {name} must be a finite number, not {text!r}; give one from -1e9"
            " to 1e9"
        )
    return value
