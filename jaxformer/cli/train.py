"""``jaxformer train``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from jaxformer.cli import config_file
from jaxformer.cli.main import DONE, INTERRUPTED
from jaxformer.evaluation.evaluate import make_validator
from jaxformer.training import config as configuration
from jaxformer.training.loop import train
from jaxformer.visualization import curves

EXAMPLE = """
examples:
  jaxformer train --config=configs/quickstart.py --workdir=runs/quickstart
  jaxformer train --config=configs/quickstart.py --workdir=runs/mine \\
      --config.data.train=text:train.en,train.de --config.data.valid=text:valid.en,valid.de \\
      --config.data.test=text:test.en,test.de --config.data.vocabulary_size=8000 --config.training.steps=9000

The same command on the same directory goes on where the run was interrupted. Ctrl-C and SIGTERM save first, and the
exit code is then 130. Any key of the configuration can be set by --config.SECTION.KEY=VALUE; the comments in
jaxformer/models/config.py, data/config.py, training/config.py and decoding/config.py say what each means.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLE
    parser.add_argument(
        "--config", required=True, metavar="FILE", help="configuration: a Python file with get_config()"
    )
    parser.add_argument("--workdir", required=True, type=Path, metavar="DIR", help="directory of the run")


def run(options: argparse.Namespace) -> int:
    """Train."""
    config = configuration.parse(config_file.read(options.config, options.overrides))
    outcome = train(config, options.workdir, make_validator)
    if not outcome.finished:
        return INTERRUPTED
    curves.draw(options.workdir / "metrics.jsonl", options.workdir / "curve.png")
    sys.stderr.write(
        f"finished at step {outcome.step}: {options.workdir}\nnext: jaxformer evaluate --workdir={options.workdir}\n"
    )
    return DONE
