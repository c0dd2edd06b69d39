"""``jaxformer evaluate``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from jaxformer.cli.arguments import (
    add_ensemble,
    add_metrics,
    add_model,
    add_options,
    add_search,
    asked_search,
    check_text,
    load_translator,
    number,
    refuse_flags,
)
from jaxformer.cli.output import (
    add_format,
    name_lines,
    phase,
    say,
    show_progress,
    warn,
    write_result,
)
from jaxformer.data import sources
from jaxformer.data.corpus import check_evaluation, load_evaluation, name_sources
from jaxformer.data.files import read_lines
from jaxformer.data.frame import check_target
from jaxformer.data.language_codes import same_language
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
  jaxformer evaluate --workdir=runs/nllb --dataset=sacrebleu:wmt14/full \\
    --to=fra_Latn
  jaxformer evaluate --workdir=runs/gpt --dataset=documents:wiki.test \\
    --stride=512

--from and --to, or else the run's languages, are the direction of a --dataset.

Prints the scores, their signatures, and how the text was translated; writes them to
results.json in the directory of the run, and the translations next to it. Other
settings than the run's, such as --beam_size, have an entry of their own. References are
compared unchanged, every line once. `tokens` counts the generated pieces, `unfinished`
the translations that reached the longest length allowed, `long_sources` the sources
with more tokens than in training: that limit, and how many were translated in parts
(`cut`) or `whole`.

A run of another training.objective takes --dataset, --checkpoint and --stride alone. A
language model has perplexity by token and word and bits by byte, every token counted
once; masked words their loss; labels accuracy, F1 and Matthews' correlation; numbers
Pearson's and Spearman's; tags F1 of whole entities; answers exact match and F1.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_model(parser)
    add_ensemble(parser)
    source = "text to translate, with --reference, instead of --dataset"
    add_options(
        parser,
        ("dataset", str, "NAME", "what to translate (default: the run's data.test)"),
        ("source", str, "FILE", source),
    )
    human = ("reference", str, "FILE", "its human translation; may be repeated")
    add_options(parser, human, repeated=True)
    add_metrics(parser)
    add_search(parser)
    stride = (
        "tokens from a window of a language model to the next (default: no overlap)"
    )
    add_options(parser, ("stride", number(1), "N", stride))
    add_format(parser)


def run(options: argparse.Namespace) -> None:
    """Evaluate."""
    check_text(options)
    records.read_results(options.workdir)  # a damaged file is found before the work
    config = configuration.load(options.workdir / "config.json")
    own = options.source is None and options.dataset is None
    if own and config.data.test.startswith(sources.IMPORTED):
        pairs = config.training.objective == "translation"
        more = ", or --source and --reference" if pairs else ""
        raise InputError(
            f"{options.workdir} was imported and has no test set: give --dataset{more}"
        )
    if config.training.objective != "translation":
        _evaluate_texts(options, config.training.objective)
        return
    if options.stride is not None:
        raise UsageError("--stride is for a language model, and this run translates")
    data, source, wanted = config.data, None, options.target_language
    if wanted is not None and not data.language_tags:
        check_target(wanted, data, "the run")
    if options.source is None:
        name = options.dataset or data.test
        if options.dataset is not None:
            data = data.between(options.source_language, wanted)
        with phase(f"reading {name}"):
            pairs, (source, language) = load_evaluation(name, data)
        _check_direction(name, options, (source, language))
    else:  # a path may contain what separates the parts of a mixture
        sides = map(sources.escape, (options.source, options.reference[0]))
        name = f"text:{','.join(sides)}"
        pairs = list(sources.load(name, "", ""))
        language = wanted or data.target_language
    if empty := check_evaluation(name, pairs):
        warn(f"{empty:,} of {len(pairs):,} pairs have an empty side, and count")
    more = [read_lines(file) for file in options.reference[1:]]
    usual = DEFAULT_METRICS
    if config.evaluation.best_metric == F1.key:
        usual = (*usual, F1.key)
    metrics = choose_metrics(
        options.metrics or usual,
        language=language,
        references=[pair.target for pair in pairs],
        notice=say,
    )
    translator = load_translator(options, wanted or language, source)
    with (
        name_lines(source=options.source or name_sources(name, data)),
        show_progress(len(pairs), options.workdir) as advance,
    ):
        record, hypotheses = evaluate.evaluate(
            translator,
            pairs,
            name,
            metrics=metrics,
            more_references=more,
            progress=advance,
            notice=lambda long: warn(long.describe()),
        )
    _finish(options, record, hypotheses)


def _finish(
    options: argparse.Namespace,
    record: dict[str, Any],
    texts: Sequence[str] | None,
) -> None:
    """Write a result into the run where it can be kept, and print it."""
    variant = _variant(options)
    try:
        check_writable(options.workdir)
        records.write_result(options.workdir, record, texts, variant=variant)
    except InputError as error:  # such as a bucket that may only be read
        warn(f"{error}; the result is printed and not kept")
    write_result(record, options.format)


@phase("scoring the texts")
def _evaluate_texts(options: argparse.Namespace, objective: str) -> None:
    """Evaluate a run that does not translate."""
    from jaxformer.evaluation import texts

    others = vars(options).keys() - _OF_TEXTS
    refuse_flags(options, objective, sorted(others))
    record, predictions = texts.evaluate(
        options.workdir,
        options.dataset,
        checkpoint=options.checkpoint,
        stride=options.stride,
        notice=lambda cut: warn(f"{cut} texts were cut, as in training"),
    )
    _finish(options, record, predictions)


_OF_TEXTS = {
    *("workdir", "checkpoint", "dataset", "stride", "format"),
    *("command", "run", "overrides"),
}


def _check_direction(
    name: str, options: argparse.Namespace, languages: tuple[str, str]
) -> None:
    """Compare the languages of a data set with those asked for.

    Raises:
        InputError: they differ.
    """
    asked = options.source_language, options.target_language
    for own, other, word in zip(languages, asked, ("from", "into"), strict=True):
        if other is not None and not same_language(own, other):
            raise InputError(
                f"{name} goes {word} {own}, not {word} {other}: name a --dataset in"
                " that direction"
            )


def _variant(options: argparse.Namespace) -> str:
    """Name the settings of the command line, which have a result of their own."""
    references = len(options.reference)
    weights = [str(each).removesuffix(".0") for each in options.ensemble_weights or ()]
    chosen = {
        **asked_search(options),
        "target_language": options.target_language,
        "source_language": options.source_language,
        "references": references if references > 1 else None,
        "shortlist": options.shortlist or None,
        "ensemble": ",".join(options.ensemble) or None,
        "ensemble_weights": ",".join(weights) or None,
        "stride": options.stride,
        "checkpoint": None if options.checkpoint == "best" else options.checkpoint,
    }
    return " ".join(
        f"{key}={value}" for key, value in chosen.items() if value is not None
    )
