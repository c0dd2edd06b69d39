"""``jaxformer evaluate``."""

from __future__ import annotations

import argparse
from pathlib import Path

from jaxformer.cli.arguments import (
    add_ensemble,
    add_metrics,
    add_model,
    add_options,
    add_search,
    asked_search,
    choose_search,
    load_translator,
)
from jaxformer.cli.output import name_lines, warn, write_record
from jaxformer.data import sources
from jaxformer.data.config import DataConfig
from jaxformer.data.corpus import load_evaluation, name_sources
from jaxformer.data.files import read_lines
from jaxformer.errors import InputError, UsageError
from jaxformer.evaluation import evaluate
from jaxformer.evaluation.bracketing import F1
from jaxformer.evaluation.choice import DEFAULT_METRICS, choose_metrics
from jaxformer.files import check_writable
from jaxformer.runs import config as configuration
from jaxformer.runs import records

EXAMPLE = """
examples:
  jaxformer evaluate --workdir=runs/quickstart
  jaxformer evaluate --workdir=runs/quickstart --dataset=bundled:en-de/valid \\
    --beam_size=1
  jaxformer evaluate --workdir=runs/ende --source=newstest2014.en \\
    --reference=newstest2014.de --metrics=bleu,chrf++,ter

Prints one JSON object with the scores, their signatures, and how the text was
translated; writes it to results.json in the directory of the run, and the translations
next to it. Other settings than the run's, such as --beam_size, have an entry of their
own. References are compared unchanged, every line once. `tokens` counts the generated
pieces, `unfinished` the translations that reached the longest length allowed,
`long_sources` the sources with more tokens than in training: that limit, and how many
were translated in parts (`cut`) or `whole`.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLE
    add_model(parser)
    add_ensemble(parser)
    source = "text to translate, with --reference, instead of --dataset"
    add_options(
        parser.add_argument,
        ("dataset", str, "NAME", "what to translate (default: the run's data.test)"),
        ("source", str, "FILE", source),
    )
    parser.add_argument(
        "--reference",
        action="append",
        metavar="FILE",
        help="its human translation; may be repeated",
    )
    add_metrics(parser)
    add_search(parser)


def run(options: argparse.Namespace) -> None:
    """Evaluate."""
    if (options.source is None) != (options.reference is None):
        raise UsageError(
            "--source and --reference go together: give both, or a --dataset"
        )
    if options.source is not None and options.dataset is not None:
        raise UsageError("give either --dataset, or --source and --reference")
    config = configuration.load(Path(options.workdir) / "config.json")
    data = config.data
    name = options.dataset or data.test
    if options.source is not None:
        sides = map(sources.escape, (options.source, options.reference[0]))
        name = f"text:{','.join(sides)}"
    if options.source:  # a path may contain what separates the parts of a mixture
        pairs, language = (
            list(sources.load(name, "", "")),
            options.target_language or data.target_language,
        )
    else:
        pairs, language = load_evaluation(name, data)
    if options.target_language not in (None, language):
        raise InputError(
            _other_direction(name, language, options.target_language, data)
        )
    more = [read_lines(file) for file in (options.reference or ())[1:]]
    evaluate.check_counts(len(pairs), more)
    usual = (
        (*DEFAULT_METRICS, F1.key)
        if config.evaluation.best_metric == F1.key
        else DEFAULT_METRICS
    )
    metrics = choose_metrics(options.metrics or usual, language=language)
    # Find a damaged or read-only file before the work.
    records.read_results(options.workdir)
    check_writable(options.workdir)
    translator = load_translator(options, options.target_language or language)
    with name_lines(source=options.source or name_sources(name, data)):
        record, hypotheses = evaluate.evaluate(
            translator,
            pairs,
            name,
            decoding=choose_search(options, translator.decoding),
            metrics=metrics,
            more_references=more,
            notice=lambda long: warn(long.describe()),
        )
    records.write_result(options.workdir, record, hypotheses, variant=_variant(options))
    write_record(record)


def _other_direction(name: str, language: str, wanted: str, data: DataConfig) -> str:
    """Return the error of a data set in another language than the wanted one."""
    if not data.language_tags:
        return (
            f"the run translates only into {data.target_language}, not into {wanted}:"
            " leave out --target_language"
        )
    plain = name.partition(" [")[0]
    start = (
        data.source_language if wanted != data.source_language else data.target_language
    )
    cure = f", such as --dataset='{plain} [{start}>{wanted}]'"
    # Elsewhere the order of files or columns is the direction.
    by_language = plain.partition(":")[0] in sources.BY_LANGUAGE
    return (
        f"{name} goes into {language}, not into {wanted}: name a --dataset in that"
        " direction" + cure * by_language
    )


def _variant(options: argparse.Namespace) -> str:
    """Name the settings of the command line, which have a result of their own."""
    chosen = {**asked_search(options), "target_language": options.target_language}
    if options.reference is not None and len(options.reference) > 1:
        chosen["references"] = len(options.reference)
    if options.shortlist:
        chosen["shortlist"] = True
    if options.ensemble:
        chosen["ensemble"] = ",".join(options.ensemble)
        chosen["ensemble_weights"] = options.ensemble_weights
    if options.checkpoint != "best":
        chosen["checkpoint"] = options.checkpoint
    return " ".join(
        f"{key}={value}" for key, value in chosen.items() if value is not None
    )
