"""``jaxformer prepare``."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path

from jaxformer.cli import config_file
from jaxformer.cli.arguments import add_options
from jaxformer.cli.output import say, write_output
from jaxformer.data import hub, preparing, wmt
from jaxformer.data.cleaning import table
from jaxformer.errors import UsageError
from jaxformer.runs import config as configuration
from jaxformer.visualization import lengths

EXAMPLE = """
examples:
  jaxformer prepare --dataset=wmt14.en-de --output=data/wmt14
  jaxformer prepare --config=configs/paper/ende_base.py --output=data/prepared --report
  jaxformer train --config=configs/paper/ende_base.py --workdir=runs/base \\
      --config.data.train=prepared:data/prepared

With --dataset it fetches a task of WMT, verifies it and unpacks it into plain text
files. Only data sets of TensorFlow Datasets (--dataset=tfds:wmt14_translate/de-en) need
TensorFlow, which unpacks their archives. With --config it cleans and tokenises the
configuration's data.train once, for training to read, on all cores if there are at
least four. The same command continues an interrupted one.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    what = parser.add_mutually_exclusive_group(required=True)
    add_options(
        what.add_argument,
        ("config", str, "FILE", "configuration whose data.train is tokenised"),
        ("dataset", str, "NAME", "published corpus to fetch, such as wmt14.en-de"),
    )
    copies = (
        "with --dataset: address or path of a folder with copies of the archives, tried"
        " first; may be given several times"
    )
    row = ("mirror", str, "URL", copies)
    add_options(parser.add_argument, row, repeated=True)
    parser.add_argument(
        "--output", required=True, type=Path, metavar="DIR", help="folder to make"
    )
    known = "folder of vocabularies to use (default: train them on the text)"
    add_options(parser.add_argument, ("vocabulary", Path, "DIR", known))
    parser.add_argument(
        "--report",
        action="store_true",
        help="print what each step dropped, and draw lengths.png into the folder",
    )


def run(options: argparse.Namespace) -> None:
    """Prepare."""
    if not options.dataset and options.mirror:
        raise UsageError(
            "--mirror belongs to --dataset: it says where archives are fetched from"
        )
    if options.dataset and (options.vocabulary or options.report or options.overrides):
        raise UsageError(
            "--vocabulary, --report and --config.KEY belong to --config: first fetch,"
            " then prepare the text"
        )
    (_fetch if options.dataset else _tokenise)(options)


def _fetch(options: argparse.Namespace) -> None:
    scheme, colon, name = options.dataset.partition(":")
    if colon and scheme == "tfds":
        os.environ["TFDS_DATA_DIR"] = str(options.output)
        folder = hub.prepare_tfds(name)
        say(
            f"prepared {folder}; read it with TFDS_DATA_DIR={options.output} in the"
            " environment"
        )
        return
    found = wmt.prepare_wmt(
        wmt.find_task(options.dataset),
        options.output,
        mirrors=options.mirror,
        report=say,
    )
    write_output(
        None, [f"--config.data.{split}={name}" for split, name in found.items()]
    )


def _tokenise(options: argparse.Namespace) -> None:
    config = configuration.parse(
        config_file.read(options.config, options.overrides)
    ).data
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
