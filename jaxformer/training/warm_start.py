"""Starting from the parameters of another run, with its optimizer or without."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxformer import bucket
from jaxformer.checkpoints import folder
from jaxformer.checkpoints.parameters import Base, find_parameters
from jaxformer.data.sources import IMPORTED
from jaxformer.errors import InputError
from jaxformer.runs import config as configuration
from jaxformer.runs.config import RunConfig
from jaxformer.runs.training import TrainingConfig
from jaxformer.typing import PyTree


class Initial(NamedTuple):
    """What a run begins with.

    Attributes:
        params: the parameters that the other run is decoded with.
        optimizer: the state of its optimizer; None where it was not asked for.
        base: what they are to adapters for them; None without LoRA.
    """

    params: PyTree
    optimizer: PyTree | None
    base: Base | None


def read_initial_config(run: Path | str) -> RunConfig:
    """Read the configuration of ``training.initial_run``.

    Raises:
        InputError: it is not the directory of a run.
    """
    directory = bucket.open_directory(run)
    if not (directory / "config.json").is_file():
        raise InputError(
            f"training.initial_run={run} has no config.json; name the directory of a"
            " trained run"
        )
    return configuration.load(directory / "config.json")


def load_initial(
    config: TrainingConfig, vocabulary: str, params: PyTree, optimizer: PyTree
) -> Initial:
    """Read the best checkpoint of ``training.initial_run``, the latest where none was
    evaluated.

    Args:
        config: of the run that begins; ``initial_run`` is set.
        vocabulary: the hash of its vocabulary.
        params: shapes, types and, where given, shardings of its parameters.
        optimizer: the same of its optimizer's state; read with
            ``training.initial_optimizer``.

    Raises:
        InputError: there is no such run or no checkpoint, it has another vocabulary or
            another optimizer, or an array has another shape.
    """
    run = bucket.open_directory(config.initial_run or "")
    other = read_initial_config(run)
    if config.initial_optimizer and other.training.optimizer != config.optimizer:
        raise InputError(
            f"training.initial_run={run} was trained by {other.training.optimizer}, not"
            f" by {config.optimizer}: set"
            f" training.optimizer={other.training.optimizer}, or"
            " training.initial_optimizer=False"
        )
    if config.initial_optimizer and other.data.train.startswith(IMPORTED):
        raise InputError(
            f"training.initial_run={run} was imported, without an optimizer: set"
            " training.initial_optimizer=False"
        )
    saved = find_parameters(run, "best", other.evaluation.best_metric)
    if saved.vocabulary != vocabulary:
        raise InputError(
            f"training.initial_run={run} has another vocabulary: its hash is"
            f" {saved.vocabulary[:12]}, not {vocabulary[:12]}; train with the files"
            f" that {run / 'vocabulary'} holds"
        )
    loaded, base = saved.load(params), None
    if config.lora_rank is not None:
        name = config.initial_run or ""
        base = Base(
            run=name if "://" in name else os.path.abspath(name),
            checkpoint=int(saved.name),
            hash=folder.hash_tree(saved.path, "params"),
            scale=config.lora_alpha / config.lora_rank,
        )
    if not config.initial_optimizer:
        return Initial(loaded, None, base)
    # The rest, such as its random key and its counters, is not used.
    like = {"training": {"optimizer": optimizer}}
    rest = folder.restore(saved.path, like, partial=True)
    return Initial(loaded, rest["training"]["optimizer"], base)


def restart_schedule(optimizer: PyTree) -> PyTree:
    """Keep the moments of another run, and begin this run's schedule at its first
    update.
    """

    def is_schedule(node: PyTree) -> bool:
        return isinstance(node, optax.ScaleByScheduleState)

    def restart(node: PyTree) -> PyTree:
        start = optax.ScaleByScheduleState
        return start(jnp.zeros_like(node.count)) if is_schedule(node) else node

    return jax.tree.map(restart, optimizer, is_leaf=is_schedule)
