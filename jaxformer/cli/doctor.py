"""``jaxformer doctor``."""

from __future__ import annotations

import argparse
import re
import sys

from jaxformer import bucket
from jaxformer.cli.arguments import add_workdir
from jaxformer.cli.main import FAILED
from jaxformer.cli.output import add_format, phase, write_lines, write_record
from jaxformer.diagnosis.doctor import examine
from jaxformer.diagnosis.evidence import Evidence
from jaxformer.diagnosis.report import to_record, write_report

EXAMPLE = """
examples:
  jaxformer doctor --workdir=runs/quickstart
  jaxformer doctor --workdir=runs/ende --dataset=sacrebleu:wmt14/full \\
    --format=json

Checks a run for what makes BLEU lower than it should be, higher, or not comparable: its
configuration, text, learning curves, results and translations. Prints one line for each
check: `wrong` spoils the score, `look` is worth a look, `ok`, and `unseen` with the
reason if something is missing; with what was found, what was expected by which source,
and the cure. Exits with 1 if something is wrong, else with 0. It trains, translates,
fetches and writes nothing: it reads only files, the bundled corpus and synthetic tasks,
with paths relative to the current folder. The page "Why is my BLEU lower?" of the
documentation has the size and the evidence of each cause.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_workdir(parser, "directory of a run")
    parser.add_argument(
        "--dataset",
        metavar="NAME",
        help="which result to look at, by its key in results.json or its data set"
        " (default: that of data.test)",
    )
    add_format(parser, "table")


@phase("reading the run and its text")
def run(options: argparse.Namespace) -> int | None:
    """Check."""
    evidence = Evidence(options.workdir, options.dataset)
    findings = examine(evidence)
    record = to_record(bucket.reword(str(options.workdir)), findings, evidence.name)
    if options.format == "json":
        write_record(record)
    else:
        lines = write_report(findings, evidence.name)
        if sys.stdout.isatty():  # of what is ok only what was found
            lines = [re.sub(r"^(ok .*?) \| .*", r"\1", line) for line in lines]
        write_lines(lines, 10)
    return FAILED if record["wrong"] else None
