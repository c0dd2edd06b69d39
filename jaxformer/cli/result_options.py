"""The arguments that say which translations of a sentence are written, and in which
form.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence

from jaxformer.cli.options import number
from jaxformer.errors import UsageError
from jaxformer.search.config import MOST_BEAM
from jaxformer.translation import rerank as minimum_bayes_risk
from jaxformer.translation.options import ResultOptions
from jaxformer.translation.rerank import SOURCE_LANGUAGE, TARGET_LANGUAGE
from jaxformer.translation.results import Hypothesis


def add_results(parser: argparse.ArgumentParser) -> None:
    """Declare them."""
    parser.add_argument(
        "--n_best",
        type=number(1, MOST_BEAM),
        default=1,
        metavar="N",
        help="translations of each sentence (default 1)",
    )
    parser.add_argument(
        "--mbr",
        action="store_true",
        help="of the --n_best translations give the one most like the others, by chrF",
    )
    parser.add_argument(
        "--format", choices=("text", "jsonl"), default="text", help="form of the output"
    )
    parser.add_argument(
        "--alignment",
        nargs="?",
        const="hard",
        choices=("hard", "soft"),
        help=(
            "which source piece and word each one of the translation belongs to; soft:"
            " with the attention itself"
        ),
    )
    parser.add_argument(
        "--alignment_layer",
        type=number(1),
        metavar="N",
        help=(
            "layer of the decoder, counted from 1, whose attention that is (default:"
            " the one before the last)"
        ),
    )


def asked_results(options: argparse.Namespace) -> ResultOptions:
    """Return what is asked for.

    Raises:
        InputError: alignments of a form that has none, or a choice of one translation.
    """
    if options.alignment and options.format != "jsonl":
        raise UsageError(
            "--alignment is a part of --format=jsonl: add that, or leave it out"
        )
    if options.mbr and options.n_best < 2:
        raise UsageError(
            "--mbr chooses among several translations: add --sample --n_best=32, or"
            " leave it out"
        )
    return {
        "n_best": options.n_best,
        "alignment": bool(options.alignment),
        "alignment_layer": options.alignment_layer,
    }


def format_results(
    number: int,
    source: str,
    hypotheses: Sequence[Hypothesis],
    languages: tuple[str, str],
    options: argparse.Namespace,
) -> Iterator[str]:
    """Write the translations of a sentence as lines.

    Args:
        number: of the sentence, counted from 1.
        source: the sentence.
        hypotheses: its translations.
        languages: codes of those translated from and into; empty: not known.
        options: of the command line.
    """
    if options.mbr:
        hypotheses = [
            hypotheses[minimum_bayes_risk.choose([each.text for each in hypotheses])]
        ]
    if options.format == "jsonl":
        codes = zip((SOURCE_LANGUAGE, TARGET_LANGUAGE), languages, strict=True)
        translations = [
            each.to_json(soft_alignment=options.alignment == "soft")
            for each in hypotheses
        ]
        record = {
            "source": source,
            **{key: code for key, code in codes if code},
            "translations": translations,
        }
        yield json.dumps(record, ensure_ascii=False)
    elif options.mbr or options.n_best == 1:
        yield hypotheses[0].text
    else:
        for hypothesis in hypotheses:
            yield f"{number}\t{hypothesis.score:.4f}\t{hypothesis.text}"
