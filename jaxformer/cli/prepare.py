"""``jaxformer prepare``."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from jaxformer.cli import config_file
from jaxformer.cli.arguments import add_flags, add_options
from jaxformer.cli.output import say, write_output
from jaxformer.data import preparing
from jaxformer.data.cleaning import table
from jaxformer.visualization import lengths

EXAMPLE = """
examples:
  jaxformer prepare --config=configs/paper/ende_base.py \\
      --output=data/prepared --report
  jaxformer train --config=configs/paper/ende_base.py --workdir=runs/base \\
      --config.data.train=prepared:data/prepared

Cleans and tokenises the configuration's data.train once, for training to read, on all
cores if there are at least four. The same command continues an interrupted one.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--config", required=True, metavar="FILE", help=config_file.HELP
    )
    parser.add_argument(
        "--output", required=True, type=Path, metavar="DIR", help="folder to make"
    )
    known = "folder of vocabularies to use (default: train them on the text)"
    add_options(parser, ("vocabulary", Path, "DIR", known))
    report = "print what each step dropped, and draw lengths.png into the folder"
    add_flags(parser, report=report)


def run(options: argparse.Namespace) -> None:
    """Prepare."""
    config = config_file.load(options.config, options.overrides).data
    done = preparing.prepare(
        config, options.output, vocabulary=options.vocabulary, report=say
    )
    if options.report:
        for name, count in done.counts.items():
            write_output(None, [name, *table(count), ""])
        picture = options.output / "lengths.png"
        lengths.draw(*done.lengths, picture, max_length=config.max_length)
        say(f"drew {picture}")
    overrides = [
        override
        for override in options.overrides
        if not override.startswith("--config.data.train=")
    ]
    train = f"--config.data.train=prepared:{options.output}"
    words = shlex.join([f"--config={options.config}", *overrides, train])
    say(f"next: jaxformer train {words} --workdir=...")
