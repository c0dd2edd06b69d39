"""``jaxformer info``."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from jaxformer.checkpoints.average import average_folders, read_average
from jaxformer.checkpoints.saved import SavedCheckpoints
from jaxformer.cli import config_file
from jaxformer.cli.arguments import add_options, number
from jaxformer.cli.main import run_directory
from jaxformer.cli.output import add_format, phase, write_result
from jaxformer.data.sources import IMPORTED
from jaxformer.errors import InputError, UsageError
from jaxformer.models.config import TransformerConfig
from jaxformer.models.make import abstract_parameters, count_parameters
from jaxformer.runs import config as configuration
from jaxformer.runs.records import read_results
from jaxformer.training import memory

EXAMPLE = """
examples:
  jaxformer info --workdir=runs/quickstart
  jaxformer info --config=configs/paper/ende_big.py --devices=8

Of a run: the configuration, the parameters of each part, the folder that it was
`imported` from, if it was, and then no settings of training, the checkpoints with the
scores of their evaluation, the averages with the steps that went in, and the test
scores; `damaged` lists the checkpoints and averages whose record cannot be read. Their
arrays are checked where they are used. A table leaves out what is 0, off or empty.

Of a configuration: the parameters, and for each engine the bytes of parameters,
optimizer, average and gradients on each device; activations come on top. Nothing is
trained and no data is read; the devices need not be there.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    what = parser.add_mutually_exclusive_group(required=True)
    add_options(
        what,
        ("workdir", run_directory, "DIR", "directory of a run"),
        ("config", str, "FILE", config_file.HELP),
    )
    parser.add_argument(
        "--devices",
        type=number(1, 1_000_000),
        metavar="N",
        help="with --config: devices to share the work (default: those here)",
    )
    add_format(parser)


def run(options: argparse.Namespace) -> None:
    """Show."""
    record = _of_run(options) if options.config is None else _of_configuration(options)
    write_result(record, options.format, indent=2)


def _of_run(options: argparse.Namespace) -> dict[str, Any]:
    if options.overrides or options.devices is not None:
        raise UsageError(
            "--devices and --config.SECTION.KEY=VALUE are for a configuration: give"
            " --config=FILE"
        )
    config = configuration.load(options.workdir / "config.json")
    settings, imported = dataclasses.asdict(config), {}
    if config.data.train.startswith(IMPORTED):
        imported = {"imported": config.data.train.removeprefix(IMPORTED)}
        settings["training"] = {"objective": config.training.objective}
    return {
        "parameters": _parameters(config.model),
        **imported,
        **_checkpoints(options.workdir, config.evaluation.best_metric),
        "results": read_results(options.workdir),
        "config": settings,
    }


@phase("counting the bytes")
def _of_configuration(options: argparse.Namespace) -> dict[str, Any]:
    config = config_file.load(options.config, options.overrides)
    devices = jax.device_count() if options.devices is None else options.devices
    sizes = {}
    for engine in ("jit", "pmap", "mesh") if devices > 1 else ("jit",):
        mesh = memory.abstract_mesh(engine, devices, config.training)
        found = memory.count_bytes(config.model, config.training, mesh)
        sizes[engine] = {
            "mesh": dict(mesh.shape),
            **dataclasses.asdict(found),
            "total": found.total,
        }
    return {
        "parameters": _parameters(config.model),
        "devices": devices,
        "memory": sizes,
    }


def _parameters(model: TransformerConfig) -> dict[str, int]:
    params = abstract_parameters(model)
    return {"total": count_parameters(params)} | {
        part: count_parameters(params[part]) for part in params
    }


def _checkpoints(run: Path, best_metric: str) -> dict[str, Any]:
    """Describe checkpoints and averages, and list the damaged ones."""
    damaged: list[str] = []
    averages = {}
    for path in average_folders(run):
        with _noting(damaged):
            averages[path.name] = read_average(path).steps
    checkpoints = SavedCheckpoints(run / "checkpoints", best_metric)
    found, best, base = {}, None, None
    for step in checkpoints.steps:
        with _noting(damaged):
            found[str(step)] = checkpoints.scores(step)
            checkpoints.progress(step)
    with _noting(damaged):
        best = checkpoints.best()
        if checkpoints.steps:
            base = checkpoints.progress(checkpoints.steps[-1]).get("base")
    return {
        "step": max(checkpoints.steps, default=0),
        "best": best,
        "checkpoints": found,
        "averages": averages,
        **({} if base is None else {"base": base}),
        **({"damaged": list(dict.fromkeys(damaged))} if damaged else {}),
    }


@contextlib.contextmanager
def _noting(damaged: list[str]) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        damaged.append(str(error))
