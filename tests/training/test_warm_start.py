"""Starting from another run: its best parameters, its optimizer where asked for, and
nothing that does not fit.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from training.little import assert_trees_equal

from jaxformer.checkpoints.manager import CheckpointManager
from jaxformer.errors import InputError
from jaxformer.runs import config as configuration
from jaxformer.runs.training import TrainingConfig
from jaxformer.training.optimizer import make_optimizer
from jaxformer.training.warm_start import load_initial

VOCABULARY = "0123456789abcdef"


def params(step):
    generator = np.random.default_rng(step)
    return {
        "kernel": generator.normal(size=(8, 4)).astype(np.float32),
        "bias": np.full(4, step, np.float32),
    }


def optimizer(step, name="adam"):
    """Return the state of a real optimizer with other numbers in it at each step."""
    state = make_optimizer(TrainingConfig(optimizer=name), d_model=8).init(params(0))
    return jax.tree.map(lambda leaf: leaf + jnp.asarray(step, leaf.dtype), state)


def write_run(path: Path, *, scores, averaged=False, **training) -> str:
    """Write a run with checkpoints at the steps of ``scores``."""
    base = configuration.parse(configuration.default_config().to_dict())
    path.mkdir()
    configuration.save(
        dataclasses.replace(base, training=TrainingConfig(**training)),
        path / "config.json",
    )
    checkpoints = CheckpointManager(path / "checkpoints", keep_latest=9)
    for step, bleu in scores.items():
        rest = {
            "step": jnp.int32(step),
            "optimizer": optimizer(step, training.get("optimizer", "adam")),
            "key": jnp.zeros(2, jnp.uint32),
        }
        if averaged:
            rest["params"] = params(step + 3)
        found = None if bleu is None else {"bleu": bleu}
        checkpoints.save(step, params(step), rest, {"vocabulary": VOCABULARY}, found)
    checkpoints.wait()
    checkpoints.close()
    return str(path)


def test_the_best_parameters(tmp_path):
    """Those of the best checkpoint, the latest where none was evaluated; the
    optimizer begins anew.
    """
    evaluated = write_run(
        tmp_path / "evaluated",
        scores={9_000: 3.0, 10_000: 5.0, 11_000: 4.0, 12_000: None},
    )
    initial = load_initial(
        TrainingConfig(initial_run=evaluated), VOCABULARY, params(0), optimizer(0)
    )
    assert (initial.step, initial.optimizer) == (10_000, None)
    assert_trees_equal(initial.params, params(10_000))
    unevaluated = write_run(
        tmp_path / "unevaluated", scores={9_000: None, 10_000: None}
    )
    initial = load_initial(
        TrainingConfig(initial_run=unevaluated), VOCABULARY, params(0), optimizer(0)
    )
    assert initial.step == 10_000


@pytest.mark.parametrize("averaged", [False, True])
def test_with_its_optimizer(tmp_path, averaged):
    """The state of the optimizer comes bit for bit where it is asked for, and what else
    the checkpoint holds does not matter: a moving average, or what other versions
    added.
    """
    path = write_run(
        tmp_path / "run", scores={10: 1.0}, averaged=averaged, optimizer="lion"
    )
    config = TrainingConfig(initial_run=path, initial_optimizer=True, optimizer="lion")
    initial = load_initial(config, VOCABULARY, params(0), optimizer(0, "lion"))
    assert_trees_equal(initial.params, params(10))
    assert_trees_equal(initial.optimizer, optimizer(10, "lion"))


@pytest.mark.skipif(jax.local_device_count() < 8, reason="needs eight devices")
def test_into_the_shardings_of_this_run(tmp_path):
    """On a mesh every array is read straight into its sharding."""
    path = write_run(tmp_path / "run", scores={10: 1.0})
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "fsdp"))
    sharding = NamedSharding(mesh, PartitionSpec("fsdp"))

    def abstract(tree):
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(
                leaf.shape,
                leaf.dtype,
                sharding=(
                    sharding if leaf.ndim else NamedSharding(mesh, PartitionSpec())
                ),
            ),
            tree,
        )

    config = TrainingConfig(initial_run=path, initial_optimizer=True)
    initial = load_initial(
        config, VOCABULARY, abstract(params(0)), abstract(optimizer(0))
    )
    assert_trees_equal((initial.params, initial.optimizer), (params(10), optimizer(10)))
    leaves = jax.tree.leaves((initial.params, initial.optimizer))
    assert {leaf.sharding for leaf in leaves if leaf.ndim} == {sharding}


def test_what_does_not_fit(tmp_path):
    """Another vocabulary, shape or optimizer is told in one line that names it."""
    path = write_run(tmp_path / "run", scores={10: 1.0})

    def refused(vocabulary=VOCABULARY, wanted=None, **training):
        with pytest.raises(InputError) as caught:
            load_initial(
                TrainingConfig(**{"initial_run": path, **training}),
                vocabulary,
                wanted or params(0),
                optimizer(0),
            )
        return str(caught.value)

    assert (
        refused(vocabulary="f" * 16)
        == f"training.initial_run={path} has another vocabulary: its hash is"
        " 0123456789ab, not ffffffffffff; train with the files that"
        f" {path}/vocabulary holds"
    )
    assert (
        refused(wanted={**params(0), "bias": np.zeros(5, np.float32)})
        == f"checkpoint 10 of training.initial_run={path} is of another model: bias is"
        " (4,) there and (5,) by the configuration"
    )
    assert "output is absent there and (3,) by the configuration" in refused(
        wanted={**params(0), "output": np.ones(3)}
    )
    assert (
        refused(optimizer="adamw", initial_optimizer=True)
        == f"training.initial_run={path} was trained by adam, not by adamw: set"
        " training.optimizer=adam, or training.initial_optimizer=False"
    )
    load_initial(
        TrainingConfig(initial_run=path, optimizer="adamw"),
        VOCABULARY,
        params(0),
        optimizer(0),
    )
    nowhere = str(tmp_path / "nowhere")
    assert (
        refused(initial_run=nowhere)
        == f"training.initial_run={nowhere} has no config.json; name the directory of a"
        " trained run"
    )


def test_a_run_without_checkpoints(tmp_path):
    """A run that has not saved anything yet is told so, and nothing is made in it."""
    path = write_run(tmp_path / "run", scores={})
    (tmp_path / "run" / "checkpoints").rmdir()
    with pytest.raises(
        InputError, match="holds no checkpoint yet; train the run first"
    ):
        load_initial(
            TrainingConfig(initial_run=path), VOCABULARY, params(0), optimizer(0)
        )
    assert not (tmp_path / "run" / "checkpoints").exists()
