"""``jaxformer train``."""

from __future__ import annotations

import argparse

import jax

from jaxformer import bucket
from jaxformer.cli import config_file
from jaxformer.cli.arguments import add_flags, add_options, add_workdir, number
from jaxformer.cli.main import DONE, INTERRUPTED, report
from jaxformer.cli.output import say
from jaxformer.errors import UsageError
from jaxformer.evaluation.evaluate import make_validator
from jaxformer.runs import config as configuration
from jaxformer.runs.config import RunConfig
from jaxformer.training.distributed import Cluster, run_together
from jaxformer.training.hosts import together
from jaxformer.training.train import train
from jaxformer.visualization import curves

EXAMPLE = """
examples:
  jaxformer train --config=configs/quickstart.py --workdir=runs/quickstart
  jaxformer train --config=configs/quickstart.py --workdir=runs/mine \\
      --config.data.train=text:train.en,train.de \\
      --config.data.valid=text:valid.en,valid.de \\
      --config.data.test=text:test.en,test.de \\
      --config.data.vocabulary_size=8000 --config.training.steps=9000

The same command on the same directory continues where the run was interrupted; so does
--workdir alone. --config=RUN/config.json trains the same again in another directory.
Ctrl-C, SIGTERM and a closed terminal (SIGHUP) save first, and the exit code is then
130. The configurations of configs/ come with jaxformer: --config=quickstart,
--config=paper/ende_base and so on name them outside a checkout too.

--workdir=gs://BUCKET/RUN and s3://BUCKET/RUN name a run in a bucket.

On several hosts every process gets the same command and the same text, and they share
the working directory, on a disk or in a bucket. --distributed asks Slurm, Open MPI,
Kubernetes or Cloud TPU for the processes. Elsewhere name them, here on 10.0.0.1 and on
a second host:

  jaxformer train --coordinator=10.0.0.1:4321 --num_processes=2 --process_id=0 \\
      --config=... --workdir=...
  jaxformer train --coordinator=10.0.0.1:4321 --num_processes=2 --process_id=1 \\
      --config=... --workdir=...

Keys of the configuration and their defaults; --config.SECTION.KEY=VALUE sets one:
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = f"{EXAMPLE}\n{config_file.list_keys()}"
    told = f"{config_file.HELP} (default: that of the run in --workdir)"
    add_options(parser, ("config", str, "FILE", told))
    add_workdir(parser, "directory of the run")
    hosts = parser.add_argument_group("several hosts")
    add_flags(hosts, distributed="train with the other processes of this cluster job")
    wait = "how long to wait until all processes are there (default: 300)"
    add_options(
        hosts,
        ("coordinator", str, "HOST:PORT", "the first process, as the others reach it"),
        ("num_processes", number(1), "N", "how many processes train together"),
        ("process_id", number(0), "I", "which of them this is, counted from 0"),
        ("distributed_timeout", number(1, 1_000_000), "SECONDS", wait),
    )


def run(options: argparse.Namespace) -> int:
    """Train, on this host or together with others."""
    cluster = _cluster(options)
    if cluster is None:
        return _train(options)
    seconds = float(options.distributed_timeout or 300)
    return run_together(cluster, seconds, lambda: _train(options), report)


def _cluster(options: argparse.Namespace) -> Cluster | None:
    """Read which processes train together; None: this one trains alone."""
    given = Cluster(options.coordinator, options.num_processes, options.process_id)
    alone = not options.distributed and given == Cluster()
    if options.distributed and given != Cluster():
        raise UsageError(
            "--distributed asks the cluster for what --coordinator, --num_processes and"
            " --process_id say: give one or the other"
        )
    if alone and options.distributed_timeout is not None:
        raise UsageError(
            "--distributed_timeout is for several hosts: give --distributed, or"
            " --coordinator too"
        )
    return None if alone else given


def _configure(options: argparse.Namespace) -> RunConfig:
    saved = options.workdir / "config.json"
    name = options.config
    if name is None:
        if not saved.exists():
            raise UsageError(
                f"--config is missing, and {options.workdir} has no run to continue:"
                " name a configuration, such as --config=quickstart"
            )
        name = str(saved)
        configuration.load(saved)  # a damaged one is no wrong usage
    config = config_file.load(name, options.overrides)
    if not saved.exists():
        return config
    named = [
        each.removeprefix(config_file.PREFIX).partition("=")[0]
        for each in options.overrides
    ]
    return configuration.keep_earlier(config, configuration.load(saved), named)


def _train(options: argparse.Namespace) -> int:
    config = together(lambda: _configure(options))
    outcome = train(config, options.workdir, make_validator)
    if not outcome.finished:
        return INTERRUPTED
    if jax.process_index() == 0:
        curves.draw(options.workdir / "metrics.jsonl", options.workdir / "curve.png")
        bucket.push(options.workdir)
        workdir = bucket.reword(str(options.workdir))
        say(f"finished at step {outcome.step}: {workdir}")
        say(f"next: jaxformer evaluate --workdir={workdir}")
    return DONE
