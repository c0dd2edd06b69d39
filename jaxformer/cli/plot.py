"""``jaxformer plot``."""

from __future__ import annotations

import argparse
from pathlib import Path

from jaxformer import bucket
from jaxformer.cli.main import run_directory
from jaxformer.cli.output import picture_folder, write_output
from jaxformer.visualization import comparison

EXAMPLE = """
examples:
  jaxformer plot --workdir=runs/quickstart
  jaxformer plot --workdir=runs/base --workdir=runs/deep --output=pictures

Draws the records of runs in metrics.jsonl (likelihood, BLEU, chrF, learning rate,
gradient norm, speed) in shared panels, as curves.png and as a page, curves.html, that
needs no network. Runs may still be training. Prints the names of the files.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--workdir",
        required=True,
        action="append",
        type=run_directory,
        metavar="DIR",
        help="directory of a run; again for more",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="where to write (default: plot/ in the first of the runs)",
    )


def run(options: argparse.Namespace) -> None:
    """Draw."""
    runs = comparison.read_runs(options.workdir)
    directory = picture_folder(options.output, options.workdir[0], "plot")
    files = [
        comparison.draw(runs, directory / "curves.png"),
        comparison.write_html(runs, directory / "curves.html"),
    ]
    bucket.push(directory)
    write_output(None, [bucket.reword(str(file)) for file in files])
