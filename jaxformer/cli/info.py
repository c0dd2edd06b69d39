"""``jaxformer info``."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.checkpoints.average import list_averages
from jaxformer.checkpoints.manager import open_to_read
from jaxformer.cli import config_file
from jaxformer.cli.main import DONE
from jaxformer.cli.options import write_output
from jaxformer.errors import InputError
from jaxformer.evaluation.evaluate import read_results
from jaxformer.models.config import TransformerConfig
from jaxformer.models.seq2seq import Transformer, count_parameters
from jaxformer.nn.stacks import REMATERIALIZATIONS
from jaxformer.training import config as configuration
from jaxformer.training import memory
from jaxformer.training.config import RunConfig

EXAMPLE = """
examples:
  jaxformer info --workdir=runs/quickstart
  jaxformer info --config=configs/paper/ende_big.py --devices=8 --config.model.dtype=bfloat16

Prints one JSON object. Of a run: the configuration, the parameters of each part, the checkpoints with the scores of
their evaluation, the averages with the steps that went in, and the test scores. Of a configuration: the parameters, and
the memory in bytes that training takes of each device, by engine and by model.rematerialization, with the gigabytes of
those common devices that have room for it. Nothing is trained or compiled and no data is read; the devices need not be
there. docs/training.md says how it is counted.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLE
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--workdir", type=Path, metavar="DIR", help="directory of a run")
    what.add_argument("--config", metavar="FILE", help=config_file.HELP)
    parser.add_argument(
        "--devices", type=int, metavar="N", help="with --config: devices to share the work (default: those here)"
    )


def run(options: argparse.Namespace) -> int:
    """Show."""
    record = _of_run(options) if options.config is None else _of_configuration(options)
    write_output(None, [json.dumps(record, indent=2, ensure_ascii=False)])
    return DONE


def _of_run(options: argparse.Namespace) -> dict[str, Any]:
    if options.overrides or options.devices is not None:
        raise InputError("--devices and --config.SECTION.KEY=VALUE are about a configuration: give --config=FILE")
    config = configuration.load(options.workdir / "config.json")
    return {
        "parameters": _parameters(config.model),
        **_checkpoints(options.workdir, config.evaluation.best_metric),
        "results": read_results(options.workdir),
        "config": dataclasses.asdict(config),
    }


def _of_configuration(options: argparse.Namespace) -> dict[str, Any]:
    config = configuration.parse(config_file.read(options.config, options.overrides))
    devices = jax.device_count() if options.devices is None else options.devices
    if devices < 1:
        raise InputError(f"--devices must be at least 1, not {devices}")
    batch = memory.longest_batch(config.data)
    return {
        "parameters": _parameters(config.model),
        "devices": devices,
        "batch": batch._asdict(),
        "memory": {
            engine: _memory(config, batch, engine, devices)
            for engine in (("jit", "pmap", "mesh") if devices > 1 else ("jit",))
        },
    }


def _memory(config: RunConfig, batch: memory.BatchShape, engine: str, devices: int) -> dict[str, Any]:
    """Count for an engine: what does not depend on rematerialisation, then what does by each kind of it."""
    mesh = memory.abstract_mesh(engine, devices, config.training)
    found = {
        kind: memory.estimate(dataclasses.replace(config.model, rematerialization=kind), config.training, batch, mesh)
        for kind in REMATERIALIZATIONS
    }
    changing = ("activations", "logits")
    record = dataclasses.asdict(found[config.model.rematerialization])
    return {
        "mesh": dict(mesh.shape),
        **{name: size for name, size in record.items() if name not in changing},
        "rematerialization": {
            kind: {name: getattr(entry, name) for name in (*changing, "total")} | {"fits": entry.fits()}
            for kind, entry in found.items()
        },
    }


def _parameters(model: TransformerConfig) -> dict[str, int]:
    tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    params = jax.eval_shape(Transformer(model).init, jax.random.key(0), tokens, tokens)["params"]
    return {"total": count_parameters(params)} | {part: count_parameters(params[part]) for part in params}


def _checkpoints(run: Path, best_metric: str) -> dict[str, Any]:
    averages = {average.name: average.steps for average in list_averages(run)}
    if not (run / "checkpoints").is_dir():
        return {"step": 0, "best": None, "checkpoints": {}, "averages": averages}
    with open_to_read(run / "checkpoints", best_metric) as checkpoints:
        steps = checkpoints.steps
        found = {str(step): checkpoints.scores(step) for step in steps}
        return {
            "step": max(steps, default=0),
            "best": checkpoints.best(),
            "checkpoints": found,
            "averages": averages,
        }
