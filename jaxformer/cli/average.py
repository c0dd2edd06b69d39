"""``jaxformer average``."""

from __future__ import annotations

import argparse

from jaxformer.checkpoints.average import (
    best_steps,
    last_steps,
    save_average,
    these_steps,
)
from jaxformer.checkpoints.saved import open_to_read
from jaxformer.cli.arguments import add_options, add_workdir, number, numbers
from jaxformer.cli.output import phase, say, write_result
from jaxformer.errors import InputError
from jaxformer.files import check_writable
from jaxformer.runs import config as configuration

EXAMPLE = """
examples:
  jaxformer average --workdir=runs/ende --last=5
  jaxformer average --workdir=runs/ende --steps=90000,95000,100000 --name=end
  jaxformer evaluate --workdir=runs/ende --checkpoint=average

Averages the parameters of the last checkpoints (the paper: 5 for the base model, 20 for
the big one), of the best ones by the run's evaluation.best_metric, or of those that are
named, and writes the average to averages/NAME in the directory of the run. Every
command takes it: --checkpoint=average is the newest, --checkpoint=average/NAME any. To
keep enough checkpoints, train with training.keep_latest=5 or more: a run that keeps
fewer has those averaged.
"""


_LAST = 5  # as the paper's base model


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_workdir(parser)
    which = parser.add_mutually_exclusive_group()
    add_options(
        which,
        ("last", number(1), "N", f"average the last N checkpoints (default {_LAST})"),
        ("best", number(1), "N", "average the N checkpoints with the best scores"),
        ("steps", numbers(int), "A,B,...", "average the checkpoints of these steps"),
    )
    name = "name of the average (default: what is averaged, as last-5)"
    add_options(parser, ("name", str, "NAME", name))


@phase("averaging")
def run(options: argparse.Namespace) -> None:
    """Average."""
    config = configuration.load(options.workdir / "config.json")
    check_writable(options.workdir)
    checkpoints = open_to_read(
        options.workdir / "checkpoints", config.evaluation.best_metric
    )
    if options.steps is not None:
        steps = these_steps(checkpoints, options.steps)
        name = "-".join(["steps", *map(str, steps)])
    elif options.best is not None:
        steps, name = best_steps(checkpoints, options.best), f"best-{options.best}"
    else:
        count, last = len(checkpoints.steps), options.last
        if last is None:
            if count == 1:
                raise InputError(
                    f"{options.workdir} has one checkpoint: nothing to average"
                )
            last = max(1, min(_LAST, count))
            if last == count < _LAST:
                say(
                    f"averaging all {last} checkpoints of {options.workdir};"
                    " --last=N takes fewer"
                )
        steps, name = last_steps(checkpoints, last), f"last-{last}"
    if options.name is not None:
        name = options.name
    made = save_average(options.workdir, name, checkpoints, steps)
    write_result({"checkpoint": f"average/{made.name}", "steps": made.steps})
