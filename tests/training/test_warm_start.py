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
from training.little import assert_trees_equal

from jaxformer.checkpoints.manager import CheckpointManager
from jaxformer.errors import InputError
from jaxformer.runs import config as configuration
from jaxformer.runs.training import OPTIMIZERS, TrainingConfig
from jaxformer.training.optimizer import make_optimizer
from jaxformer.training.warm_start import load_initial

VOCABULARY = "0123456789abcdef"


def params(step):
    kernel = np.random.default_rng(step).normal(size=(8, 4)).astype(np.float32)
    return {"inner": {"kernel": kernel, "bias": np.full(4, step, np.float32)}}


def optimizer(step, **training):
    """Return the state of a real optimizer with other numbers in it at each step."""
    state = make_optimizer(TrainingConfig(**training), d_model=8).init(params(0))
    return jax.tree.map(lambda leaf: leaf + jnp.asarray(step, leaf.dtype), state)


def write_run(path: Path, *, scores, averaged=False, **training) -> str:
    """Write a run with checkpoints at the steps of ``scores``."""
    base = configuration.parse(configuration.default_config().to_dict())
    config = dataclasses.replace(base, training=TrainingConfig(**training))
    path.mkdir()
    configuration.save(config, path / "config.json")
    checkpoints = CheckpointManager(path / "checkpoints", keep_latest=9)
    for step, bleu in scores.items():
        moments = optimizer(step, **training)
        rest = {"step": jnp.int32(step), "optimizer": moments}
        if averaged:
            rest["params"] = params(step + 3)
        found = None if bleu is None else {"bleu": bleu}
        checkpoints.save(step, params(step), rest, {"vocabulary": VOCABULARY}, found)
    checkpoints.close()
    return str(path)


def begin(run, *, vocabulary=VOCABULARY, like=None, moments=None, **training):
    config = TrainingConfig(initial_run=str(run), **training)
    given = like or params(0), moments or optimizer(0, optimizer=config.optimizer)
    return load_initial(config, vocabulary, *given)


def test_the_best_parameters(tmp_path):
    """Those of the best checkpoint, the latest where none was evaluated. The optimizer
    begins at its start. Its state comes bit for bit where it is asked for, whatever
    else the checkpoint holds, such as a moving average.
    """
    for scores in ({9: 3.0, 10: 5.0, 11: 4.0, 12: None}, {9: None, 10: None}):
        initial = begin(write_run(tmp_path / f"{len(scores)}", scores=scores))
        assert initial.optimizer is None
        assert_trees_equal(initial.params, params(10))
    lion = {"optimizer": "lion"}
    run = write_run(tmp_path / "run", scores={10: 1.0}, averaged=True, **lion)
    initial = begin(run, initial_optimizer=True, **lion)
    assert_trees_equal(initial.params, params(10))
    assert_trees_equal(initial.optimizer, optimizer(10, **lion))


def test_what_does_not_fit(tmp_path):
    """Another vocabulary, shape or optimizer is named in one line."""
    path = write_run(tmp_path / "run", scores={10: 1.0})
    assert_trees_equal(begin(path, optimizer="adamw").params, params(10))
    write_run(tmp_path / "new", scores={})
    other = {"inner": {**params(0)["inner"], "bias": np.zeros(5, np.float32)}}
    moments = {"optimizer": "adamw", "initial_optimizer": True}
    for name, changes, message in (
        (
            "run",
            {"vocabulary": "f" * 16},
            "its hash is 0123456789ab, not ffffffffffff;",
        ),
        (
            "run",
            {"like": other},
            r"of another model: inner/bias is \(4,\) there and",
        ),
        (
            "run",
            moments,
            f"training.initial_run={path} was trained by adam, not by adamw",
        ),
        ("nowhere", {}, "has no config.json; name the directory of a trained run"),
        ("new", {}, "holds no checkpoint yet; train the run first"),
    ):
        with pytest.raises(InputError, match=message):
            begin(tmp_path / name, **changes)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({}, {"gradient_clip": 1.0}),
        ({"gradient_clip": 1.0}, {}),
        ({"gradient_clip": 1.0}, {"frozen": "*bias"}),
        ({"frozen": "*bias"}, {"gradient_clip": 1.0, "frozen": "*/b*"}),
    ],
)
def test_moments_of_what_both_train(tmp_path, name, theirs, ours):
    """They come whatever the clip and whatever else either run froze, in the structure
    of this run's optimizer.
    """
    theirs, ours = (each | {"optimizer": name} for each in (theirs, ours))
    run = write_run(tmp_path / "run", scores={10: 1.0}, **theirs)
    moments = optimizer(0, **ours)
    found = begin(run, moments=moments, initial_optimizer=True, **ours).optimizer
    assert_trees_equal(found, optimizer(10, **ours))


def test_moments_that_the_other_run_lacks(tmp_path):
    """Of parameters that it froze; the line names the key."""
    run = write_run(tmp_path / "run", scores={10: 1.0}, frozen="*bias")
    line = r"no moments of them, such as .*'bias'\]: set training.frozen=\*bias, or"
    with pytest.raises(InputError, match=line):
        begin(run, initial_optimizer=True)
