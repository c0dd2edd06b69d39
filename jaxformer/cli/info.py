"""``jaxformer info``."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.checkpoints.manager import CheckpointManager
from jaxformer.cli.main import DONE
from jaxformer.cli.options import write_output
from jaxformer.evaluation.evaluate import read_results
from jaxformer.models.seq2seq import Transformer, count_parameters
from jaxformer.training import config as configuration

EXAMPLE = """
example:
  jaxformer info --workdir=runs/quickstart

Prints one JSON object: the configuration, the parameters of each part, the checkpoints with the scores of their
evaluation, and the test scores.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLE
    parser.add_argument("--workdir", required=True, type=Path, metavar="DIR", help="directory of a run")


def run(options: argparse.Namespace) -> int:
    """Show."""
    config = configuration.load(options.workdir / "config.json")
    tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    params = jax.eval_shape(Transformer(config.model).init, jax.random.key(0), tokens, tokens)["params"]
    record = {
        "parameters": {"total": count_parameters(params)} | {part: count_parameters(params[part]) for part in params},
        **_checkpoints(options.workdir / "checkpoints", config.evaluation.best_metric),
        "results": read_results(options.workdir),
        "config": dataclasses.asdict(config),
    }
    write_output(None, [json.dumps(record, indent=2, ensure_ascii=False)])
    return DONE


def _checkpoints(directory: Path, best_metric: str) -> dict[str, Any]:
    if not directory.is_dir():
        return {"step": 0, "best": None, "checkpoints": {}}
    checkpoints = CheckpointManager(directory, best_metric=best_metric)
    steps = checkpoints.steps
    found = {str(step): checkpoints.scores(step) for step in steps}
    record = {"step": max(steps, default=0), "best": checkpoints.best(), "checkpoints": found}
    checkpoints.close()
    return record
