"""``jaxformer compare``."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

from jaxformer.cli.arguments import add_metrics, add_options, wrong_usage
from jaxformer.cli.main import run_directory
from jaxformer.cli.output import (
    add_format,
    check_output,
    phase,
    write_lines,
    write_record,
)
from jaxformer.data.files import open_lines
from jaxformer.evaluation.breakdown import count_words
from jaxformer.evaluation.choice import DEFAULT_METRICS, choose_metrics
from jaxformer.evaluation.comparison import ComparisonConfig, compare
from jaxformer.evaluation.outputs import read_systems
from jaxformer.visualization import translations
from jaxformer.visualization.comparison import name_runs
from jaxformer.visualization.translations_table import write_table

EXAMPLE = """
examples:
  jaxformer compare runs/base runs/deep --html=deep.html
  jaxformer compare --reference=test.de --source=test.en first.de second.de \\
    third.de
  jaxformer compare --reference=test.de --metrics=bleu,chrf++,ter first.de

Scores translations of one test set, and tests whether each differs from the first by
more than chance: paired bootstrap resampling (Koehn 2004), and approximate
randomisation (Riezler and Maxwell 2005). Then follow scores by sentence length and by
word frequency, and the sentences that differ most. A system is a file, one translation
a line, or the directory of an evaluated run, which has source and reference. A single
system is only scored.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "systems",
        nargs="+",
        type=run_directory,
        metavar="SYSTEM",
        help="the baseline, then others",
    )
    human = ("reference", Path, "FILE", "a human translation; again for more")
    add_options(parser, human, repeated=True)
    add_metrics(parser)
    shared = "which result of the runs (default: the only one they share)"
    code = "of files, for the tokenizers of BLEU"
    words = "text to count words in (default: the references)"
    add_options(
        parser,
        ("source", Path, "FILE", "the text that was translated"),
        ("dataset", str, "NAME", shared),
        ("language", str, "CODE", code),
        ("frequencies", Path, "FILE", words),
        ("html", Path, "FILE", "write a page for the browser too"),
    )
    parser.add_argument(
        "--lengths",
        choices=("reference", "source"),
        default="reference",
        help="whose length counts",
    )
    for name, meaning in (
        ("resamples", "of the bootstrap"),
        ("trials", "of randomisation; 0: none"),
        ("seed", "of both tests"),
        ("examples", "sentences of each kind"),
    ):
        row = (name, int, "N", meaning, getattr(ComparisonConfig, name))
        add_options(parser, row)
    add_format(parser, "table")


@phase("comparing")
def run(options: argparse.Namespace) -> None:
    """Compare."""
    names = [field.name for field in dataclasses.fields(ComparisonConfig)]
    with wrong_usage("comparison"):
        config = ComparisonConfig(**{name: getattr(options, name) for name in names})
    counted = options.frequencies
    texts = (*options.reference, options.source, counted)
    check_output(options.html, *options.systems, *texts)
    names = name_runs(options.systems)
    systems, scored = read_systems(
        options.systems, options.dataset, options.reference or None, options.source
    )
    language = options.language or scored.language
    found = compare(
        dict(zip(names, systems, strict=True)),
        scored.references,
        choose_metrics(
            options.metrics or DEFAULT_METRICS,
            language=language,
            references=scored.references[0],
        ),
        config,
        sources=scored.sources,
        frequencies=None if counted is None else count_words(open_lines([counted])),
        frequencies_name=str(counted or "the references"),
    )
    if options.html is not None:
        translations.write_html(found, options.html)
    if options.format == "json":
        write_record(found.to_record())
    else:
        # 80 columns hold a row of short names
        longest = 6 if sys.stdout.isatty() else 24
        write_lines(write_table(found, longest), 13)
