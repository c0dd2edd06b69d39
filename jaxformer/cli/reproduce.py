"""``jaxformer reproduce``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import jax

from jaxformer import bucket
from jaxformer.cli.arguments import add_options, named
from jaxformer.cli.main import text_file
from jaxformer.cli.output import check_output, write_output
from jaxformer.errors import UsageError
from jaxformer.paper.cost import UTILISATION, peak_flops_per_second
from jaxformer.paper.report import make_lines, to_markdown
from jaxformer.paper.runs import RunScore, read_run
from jaxformer.paper.tables import Table, find_table

EXAMPLE = """
examples:
  jaxformer reproduce 3
  jaxformer reproduce 3 --run a_h1=runs/table3_a_h1 --output=table3.md
  jaxformer reproduce 2 --flops_per_second=2.5e15 --utilisation=0.39

Prints a table of "Attention Is All You Need" as Markdown: the paper's numbers, the
parameters and training FLOPs of jaxformer's models, estimated hours of training on the
devices here, and the scores of evaluated runs. A star marks a score that does not
compare with the paper's; the reasons are below the table. The page "The paper's tables"
of the documentation explains how to train a row.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "table",
        type=int,
        choices=(2, 3, 4),
        metavar="TABLE",
        help="2, 3 or 4, as the paper numbers them",
    )
    parser.add_argument(
        "--run",
        dest="runs",
        action="append",
        default=[],
        type=named("ROW=DIR"),
        metavar="ROW=DIR",
        help="directory of a run of a row; again for more",
    )
    speed = (
        "peak of all devices together (default: the published one of the devices here,"
        " where it is known)"
    )
    share = "share of the peak that training gets, that of the base model on one H200"
    add_options(
        parser,
        ("output", text_file, "FILE", "where to write (default: standard output)"),
        ("flops_per_second", float, "N", speed),
        ("utilisation", float, "X", share, UTILISATION),
    )


def run(options: argparse.Namespace) -> None:
    """Compare."""
    table = find_table(options.table)
    check_output(options.output)
    runs = _read_runs(table, options.runs)
    speed, where, precision = options.flops_per_second, "", ""
    if speed is None:
        here = jax.devices()
        # the precision of the paper's configurations
        speed = peak_flops_per_second(here, "float32")
        where, precision = f"{len(here)} {here[0].device_kind}, ", " in float32"
    devices = "" if speed is None else f"{where}{speed:.3g} FLOP/s{precision}"
    lines = make_lines(
        table, runs, flops_per_second=speed, utilisation=options.utilisation
    )
    text = to_markdown(table, lines, devices=devices, utilisation=options.utilisation)
    write_output(options.output, text.removesuffix("\n").split("\n"))


def _read_runs(table: Table, given: Sequence[tuple[str, str]]) -> dict[str, RunScore]:
    """Read the runs that ``--run`` names, by their rows."""
    found: dict[str, RunScore] = {}
    for name, directory in given:
        row = table.find(name)
        if name in found:
            raise UsageError(
                f"--run names the row {name} twice: give one run for a row"
            )
        found[name] = read_run(table, row, bucket.open_directory(directory))
    return found
