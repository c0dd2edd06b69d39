"""Starting from the parameters of another run, with its optimizer or without, or from
word vectors.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxformer import bucket
from jaxformer.checkpoints import folder
from jaxformer.checkpoints.parameters import Base, SavedParameters, find_parameters
from jaxformer.data.sources import IMPORTED
from jaxformer.data.vocabulary import Vocabularies
from jaxformer.data.word_vectors import Rows
from jaxformer.errors import InputError
from jaxformer.models.make import abstract_parameters
from jaxformer.runs import config as configuration
from jaxformer.runs.config import RunConfig
from jaxformer.runs.training import TrainingConfig
from jaxformer.training.optimizer import make_optimizer
from jaxformer.training.state import TrainState
from jaxformer.typing import Array, PyTree


class Initial(NamedTuple):
    """What a run begins with.

    Attributes:
        params: the parameters that the other run is decoded with, without those of
            ``drawn``.
        optimizer: the state of its optimizer; None where it was not asked for.
        base: what they are to adapters for them; None without LoRA.
        drawn: parts of the model, such as its head, that the other run has not.
    """

    params: PyTree
    optimizer: PyTree | None
    base: Base | None
    drawn: tuple[str, ...] = ()


HEADS = (
    *("pooler", "word_transform", "next_text", "classifier", "span"),
    *("logits", "output"),
)
"""Parts that read the encoder's output; another objective initialises new ones."""


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
    config: TrainingConfig,
    vocabulary: str,
    params: PyTree,
    optimizer: PyTree,
    *,
    text: str | None = None,
) -> Initial:
    """Read the best checkpoint of ``training.initial_run``, the latest where none was
    evaluated.

    Args:
        config: of the run that begins; ``initial_run`` is set.
        vocabulary: the hash of its vocabulary.
        params: shapes, types and, where given, shardings of its parameters.
        optimizer: the same of its optimizer's state; read with
            ``training.initial_optimizer``.
        text: the hash of the vocabulary of its text, where its targets are labels: the
            other run may have other labels, or none.

    Raises:
        InputError: there is no such run or no checkpoint, it has another vocabulary or
            another optimizer or froze what is trained now, or an array outside the head
            has another shape; a new head with adapters, or with the optimizer of the
            other run.
    """
    run = bucket.open_directory(config.initial_run or "")
    other = read_initial_config(run)
    if config.initial_optimizer:
        _check_optimizer(config, run, other)
    saved = find_parameters(run, "best", other.evaluation.best_metric)
    if saved.vocabulary != vocabulary and not (
        text is not None and _has_text(run, text, saved.vocabulary)
    ):
        raise InputError(
            f"training.initial_run={run} has another vocabulary: its hash is"
            f" {saved.vocabulary[:12]}, not {vocabulary[:12]}; train with the files"
            f" that {run / 'vocabulary'} holds"
        )
    loaded, drawn = _load_known(config, saved, other, params)
    base = None
    if config.lora_rank is not None:
        name = config.initial_run or ""
        base = Base(
            run=name if "://" in name else os.path.abspath(name),
            checkpoint=int(saved.name),
            hash=folder.hash_tree(saved.path, "params"),
            scale=config.lora_alpha / config.lora_rank,
        )
    if not config.initial_optimizer:
        return Initial(loaded, None, base, drawn)
    init = make_optimizer(other.training, other.model.d_model).init
    there = jax.eval_shape(init, params)
    here, shapes = _by_name(optimizer), _by_name(there)
    missing = here.keys() - shapes
    if missing:
        raise InputError(
            f"training.initial_run={run} froze parameters and has no moments of them,"
            f" such as {min(missing)}: set training.frozen={other.training.frozen}, or"
            " training.initial_optimizer=False"
        )
    like = jax.tree.structure(there).unflatten((shapes | here).values())
    # The rest, such as its random key and its counters, is not used.
    rest = folder.restore(saved.path, {"training": {"optimizer": like}}, partial=True)
    found = _by_name(rest["training"]["optimizer"])
    moments = jax.tree.structure(optimizer).unflatten(map(found.get, here))
    return Initial(loaded, moments, base)


def _by_name(optimizer: PyTree) -> dict[str, Any]:
    """Name the leaves of an optimizer's state from the index in its chain on: clipping
    and frozen parameters put that into other tuples.
    """
    return {
        re.sub(r"^.*?(?=\[\d+\]\.)", "", jax.tree_util.keystr(path), count=1): leaf
        for path, leaf in jax.tree.leaves_with_path(optimizer)
    }


def _check_optimizer(config: TrainingConfig, run: Path, other: RunConfig) -> None:
    """Refuse a run without the optimizer that is trained with."""
    if other.training.optimizer != config.optimizer:
        raise InputError(
            f"training.initial_run={run} was trained by {other.training.optimizer}, not"
            f" by {config.optimizer}: set"
            f" training.optimizer={other.training.optimizer}, or"
            " training.initial_optimizer=False"
        )
    if other.data.train.startswith(IMPORTED):
        raise InputError(
            f"training.initial_run={run} was imported, without an optimizer: set"
            " training.initial_optimizer=False"
        )


def _load_known(
    config: TrainingConfig, saved: SavedParameters, other: RunConfig, params: PyTree
) -> tuple[PyTree, tuple[str, ...]]:
    """Read the parameters, and return with them the parts of a head that are not in the
    other run, or have another size there.
    """
    if config.objective == "translation":  # which has no head
        return saved.load(params), ()
    there = abstract_parameters(other.model)
    drawn = tuple(
        part
        for part in HEADS
        if part in params and _shapes(params[part]) != _shapes(there.get(part))
    )
    if not drawn and params.keys() == there.keys():
        return saved.load(params), ()
    run = config.initial_run
    for name in ("lora_rank", "initial_optimizer"):
        if drawn and getattr(config, name):
            raise InputError(
                f"training.{name}={getattr(config, name)} needs a head that is trained,"
                f" and {', '.join(drawn)} of training.initial_run={run} would be newly"
                " drawn: leave it out"
            )
    shared = {part: tree for part, tree in params.items() if part not in drawn}
    if saved.base is None:
        like = {"params": shared}
        return folder.restore(saved.path, like, partial=True)["params"], drawn
    whole = saved.load(there)  # merged with what the adapters are for
    return {part: whole[part] for part in shared}, drawn


def _shapes(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf.shape, tree)


def _has_text(run: Path, text: str, recorded: str) -> bool:
    """Whether the text of a run has a vocabulary, and a checkpoint was trained with the
    vocabularies in its folder.
    """
    found = Vocabularies.load(run / "vocabulary")
    return found.text_hash == text and found.hash == recorded


def fill_tables(state: TrainState, tables: Mapping[str, Rows]) -> TrainState:
    """Begin with rows of tables of embeddings that are given. One factor gives them the
    root mean square of the table that was drawn.
    """

    @jax.jit
    def fill(table: Array, tokens: Array, rows: Array) -> Array:
        factor = jnp.sqrt(jnp.mean(table**2) / jnp.mean(rows**2))
        return table.at[tokens].set(factor * rows)

    filled = {x: {"table": fill(state.params[x]["table"], *tables[x])} for x in tables}
    params = {**state.params, **filled}
    return dataclasses.replace(state, params=params, average=state.average and params)


def restart_schedule(optimizer: PyTree) -> PyTree:
    """Keep the moments of another run, and begin this run's schedule at its first
    update.
    """
    kind = optax.ScaleByScheduleState
    return jax.tree.map(
        lambda node: jax.tree.map(jnp.zeros_like, node) if type(node) is kind else node,
        optimizer,
        is_leaf=lambda node: type(node) is kind,
    )
