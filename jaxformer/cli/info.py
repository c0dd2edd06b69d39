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
from jaxformer.checkpoints.folder import is_sealed
from jaxformer.checkpoints.saved import SavedCheckpoints
from jaxformer.cli import config_file
from jaxformer.cli.arguments import add_options, number
from jaxformer.cli.main import run_directory
from jaxformer.cli.output import say, warn, write_record
from jaxformer.data.sources import IMPORTED
from jaxformer.errors import InputError, UsageError
from jaxformer.models.config import TransformerConfig
from jaxformer.models.seq2seq import abstract_parameters, count_parameters
from jaxformer.runs import config as configuration
from jaxformer.runs.config import RunConfig
from jaxformer.runs.records import read_results
from jaxformer.training import memory
from jaxformer.training.ahead_of_time import compile_training_step
from jaxformer.training.topologies import MACHINES, parse_topology

EXAMPLE = """
examples:
  jaxformer info --workdir=runs/quickstart
  jaxformer info --config=configs/paper/ende_big.py --devices=8
  jaxformer info --config=configs/paper/ende_big.py --compile_for=v5e:2x4 \\
      --config.model.dtype=bfloat16

Prints one JSON object. Of a run: the configuration, the parameters of each part, the
folder that it was `imported` from, if it was, and then no settings of training, the
checkpoints with the scores of their evaluation, the averages with the steps that went
in, and the test scores; `damaged` lists what is wrong with checkpoints and averages, by
the names and sizes of their files; `without_checksums` those in which a changed byte
would not be seen, of an earlier version or of a process killed while it saved.

Of a configuration: the parameters, and for each engine the bytes of parameters,
optimizer, average and gradients on each device; activations come on top. Nothing is
trained and no data is read; the devices need not be there. With --compile_for the
training step is compiled for these devices, by their compiler, which can take minutes:

  batch             rows and length of the longest batch, of all devices; the rest is
                    of one device and one step
  compiler_options  options of XLA, without which its compiler fails
  memory            bytes: the state, temporary arrays, the program's instructions, the
                    total, what the device has, and what JAX takes of it by default:
                    three quarters of a GPU (XLA_PYTHON_CLIENT_MEM_FRACTION), or a TPU
  fits              whether the total is available; the exit code is 0 either way
  flops             of the model's matmuls
  compiler_flops    as the compiler counts them; null on GPUs and with loops
  bytes_moved       by the main memory
  bytes_exchanged   of the whole arrays that devices gather, sum or pass on, by kind
  kernels           programs that the device starts one after another
  seconds           the least time by the published peak and bandwidth, not measured
  share_of_peak     flops / peak / seconds, which no run can exceed
  compiled_in       seconds that the compiler took

Slices of TPU are named by their shape, as in v5e:2x4; GPUs are counted, as in h200:8.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    what = parser.add_mutually_exclusive_group(required=True)
    add_options(
        what.add_argument,
        ("workdir", run_directory, "DIR", "directory of a run"),
        ("config", str, "FILE", config_file.HELP),
    )
    parser.add_argument(
        "--devices",
        type=number(1, 1_000_000),
        metavar="N",
        help="with --config: devices to share the work (default: those here)",
    )
    parser.add_argument(
        "--compile_for",
        metavar="NAME:SHAPE",
        help="with --config: devices to compile the training step for, which need not"
        " be there: " + ", ".join(MACHINES),
    )


def run(options: argparse.Namespace) -> None:
    """Show."""
    record = _of_run(options) if options.config is None else _of_configuration(options)
    write_record(record, indent=2)


def _of_run(options: argparse.Namespace) -> dict[str, Any]:
    if options.overrides or options.devices is not None or options.compile_for:
        raise UsageError(
            "--devices, --compile_for and --config.SECTION.KEY=VALUE are for a"
            " configuration: give --config=FILE"
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


def _of_configuration(options: argparse.Namespace) -> dict[str, Any]:
    config = configuration.parse(config_file.read(options.config, options.overrides))
    if options.compile_for is not None:
        return _compiled(config, options)
    devices = jax.device_count() if options.devices is None else options.devices
    engines = ("jit", "pmap", "mesh") if devices > 1 else ("jit",)
    return {
        "parameters": _parameters(config.model),
        "devices": devices,
        "memory": {engine: _memory(config, engine, devices) for engine in engines},
    }


def _compiled(config: RunConfig, options: argparse.Namespace) -> dict[str, Any]:
    if options.devices is not None:
        raise UsageError(
            "--compile_for says how many devices there are: drop --devices"
        )
    topology = parse_topology(options.compile_for)
    # Nothing runs: no device of this machine is taken. JAX cannot read a program for
    # absent devices from its cache, and warns.
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_compilation_cache", False)
    say(
        f"compiling the training step for {options.compile_for}, which can take minutes"
        " (model.scan_layers=True compiles sooner)"
    )
    found = compile_training_step(config, topology)
    rows, length = found.batch["target"]
    if rows * length > config.data.tokens_per_batch:
        warn(
            f"the batch has {rows} rows of {length} tokens, more than"
            f" data.tokens_per_batch={config.data.tokens_per_batch}: rows are filled up"
            " to a multiple of the devices"
        )
    return {
        "parameters": _parameters(config.model),
        "compiled_for": options.compile_for,
        **dataclasses.asdict(found),
        "fits": found.memory.fits,
    }


def _memory(config: RunConfig, engine: str, devices: int) -> dict[str, Any]:
    """Count the bytes of the training state on each device."""
    mesh = memory.abstract_mesh(engine, devices, config.training)
    found = memory.count_bytes(config.model, config.training, mesh)
    return {"mesh": dict(mesh.shape), **dataclasses.asdict(found), "total": found.total}


def _parameters(model: TransformerConfig) -> dict[str, int]:
    params = abstract_parameters(model)
    return {"total": count_parameters(params)} | {
        part: count_parameters(params[part]) for part in params
    }


def _checkpoints(run: Path, best_metric: str) -> dict[str, Any]:
    """Describe checkpoints and averages, and list the damaged ones."""
    damaged: list[str] = []
    averages, unsealed = {}, []
    for path in average_folders(run):
        with _noting(damaged):
            averages[path.name] = read_average(path).steps
            if not is_sealed(path):
                unsealed.append(f"average/{path.name}")
    checkpoints = SavedCheckpoints(run / "checkpoints", best_metric)
    found, best, base = {}, None, None
    for step in checkpoints.steps:
        with _noting(damaged):
            found[str(step)] = checkpoints.scores(step)
            checkpoints.check(step)
            if not is_sealed(checkpoints.path(step)):
                unsealed.append(str(step))
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
        **({"without_checksums": unsealed} if unsealed else {}),
        **({"damaged": list(dict.fromkeys(damaged))} if damaged else {}),
    }


@contextlib.contextmanager
def _noting(damaged: list[str]) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        damaged.append(str(error))
