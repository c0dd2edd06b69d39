"""Averages: the arithmetic mean of the parameters of the checkpoints that were asked
for, and nothing else.
"""

from __future__ import annotations

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from training.little import assert_trees_equal

from jaxformer.checkpoints.average import (
    average,
    best_steps,
    last_steps,
    save_average,
    these_steps,
)
from jaxformer.checkpoints.manager import CheckpointManager
from jaxformer.checkpoints.parameters import find_parameters
from jaxformer.checkpoints.saved import SavedCheckpoints
from jaxformer.errors import InputError

STEPS = (8_000, 9_000, 10_000, 100_000)
BLEU = (7.0, 9.0, 3.0, 8.0)


def params(step):
    generator = np.random.default_rng(step)
    kernel, bias = generator.normal(size=(5, 3)), generator.normal(size=(3,))
    return {
        "layer": {"kernel": jnp.asarray(kernel, jnp.float32)},
        "bias": jnp.asarray(bias, jnp.bfloat16),
    }


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Save a run with checkpoints at STEPS."""
    run = tmp_path_factory.mktemp("saved") / "run"
    manager = CheckpointManager(run / "checkpoints", keep_latest=len(STEPS))
    training = {"optimizer": jnp.zeros(4)}
    for step, bleu in zip(STEPS, BLEU, strict=True):
        progress = {"step": step, "vocabulary": "abc"}
        manager.save(step, params(step), training, progress, {"bleu": bleu})
    manager.close()
    return run


@pytest.fixture
def run(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "run")


@pytest.fixture
def checkpoints(run):
    return SavedCheckpoints(run / "checkpoints")


def test_the_mean(saved):
    """It is the arithmetic mean in float64, rounded once to the type of the
    parameters; that of copies is the copy.
    """
    checkpoints = SavedCheckpoints(saved / "checkpoints")
    found = average(checkpoints, STEPS)
    expected = jax.tree.map(
        lambda *leaves: np.mean(
            [np.asarray(leaf, np.float64) for leaf in leaves], axis=0
        ).astype(leaves[0].dtype),
        *map(params, STEPS),
    )
    assert_trees_equal(found, expected)
    assert found["bias"].dtype == jnp.bfloat16
    assert_trees_equal(average(checkpoints, [9_000] * 7), params(9_000))


def test_what_is_chosen(saved):
    """Exactly as many as asked for, by number and not by letter, or by score."""
    checkpoints = SavedCheckpoints(saved / "checkpoints")
    assert last_steps(checkpoints, 2) == [10_000, 100_000]
    assert last_steps(checkpoints, 4) == list(STEPS)
    assert best_steps(checkpoints, 3) == [8_000, 9_000, 100_000]
    assert these_steps(checkpoints, [100_000, 9_000]) == [9_000, 100_000]


def test_which_parameters(run, checkpoints):
    """``best``, ``latest`` and steps are those of the checkpoints, also next to an
    average of that name. Where there is no such average one line names those that there
    are, or how to make one.
    """
    no_average = "holds no average yet; make one: jaxformer average --workdir="
    for which in ("average", "average/last-2"):
        with pytest.raises(InputError, match=no_average):
            find_parameters(run, which, "bleu")
    save_average(run, "9000", checkpoints, [8_000])
    for which, step in (("best", 9_000), ("latest", 100_000), ("9000", 9_000)):
        found = find_parameters(run, which, "bleu")
        assert (found.name, found.vocabulary) == (step, "abc")
    assert_trees_equal(found.load(params(0)), params(9_000))
    for which in ("average/last-3", "average/", "average/../../x"):
        message = f"there is no checkpoint '{which}' in .*; there are average/9000$"
        with pytest.raises(InputError, match=message):
            find_parameters(run, which, "bleu")
    other = "checkpoint 9000 in .*averages is of another model: bias is "
    with pytest.raises(InputError, match=other):
        find_parameters(run, "average", "bleu").load({**params(0), "bias": np.zeros(4)})
