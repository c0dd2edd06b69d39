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

from jaxformer.checkpoints import folder
from jaxformer.checkpoints.average import (
    average,
    average_folders,
    best_steps,
    last_steps,
    list_averages,
    save_average,
    these_steps,
)
from jaxformer.checkpoints.manager import CheckpointManager
from jaxformer.checkpoints.parameters import find_parameters
from jaxformer.errors import InputError
from jaxformer.files import LOCK

STEPS = (8_000, 9_000, 10_000, 100_000)
BLEU = {8_000: 7.0, 9_000: 9.0, 10_000: 3.0, 100_000: 8.0}


def params(step, *, scale=1.0):
    generator = np.random.default_rng(step)
    return {
        "layer": {
            "kernel": jnp.asarray(scale * generator.normal(size=(5, 3)), jnp.float32)
        },
        "bias": jnp.asarray(generator.normal(size=(3,)), jnp.bfloat16),
    }


def save(manager, step, tree, bleu=None):
    scores = None if bleu is None else {"bleu": bleu}
    training = {"optimizer": jnp.zeros(4), "step": jnp.int32(step)}
    manager.save(step, tree, training, {"step": step, "vocabulary": "abc"}, scores)


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def manager(run):
    """Return the checkpoints of a run at STEPS."""
    manager = CheckpointManager(run / "checkpoints", keep_latest=len(STEPS))
    for step in STEPS:
        save(manager, step, params(step), BLEU[step])
    manager.wait()
    yield manager
    manager.close()


def test_the_mean(manager):
    """It is the arithmetic mean in float64, rounded once to the type of the
    parameters.
    """
    found = average(manager, STEPS)
    for path, leaf in jax.tree_util.tree_leaves_with_path(found):
        each = [
            dict(jax.tree_util.tree_leaves_with_path(params(step)))[path]
            for step in STEPS
        ]
        expected = (
            np.stack([np.asarray(one, np.float64) for one in each])
            .mean(axis=0)
            .astype(each[0].dtype)
        )
        assert leaf.dtype == each[0].dtype
        np.testing.assert_array_equal(leaf, expected)
    assert jax.tree.structure(found) == jax.tree.structure(params(0))


@pytest.mark.parametrize("copies", [1, 3, 7])
def test_the_mean_of_copies_is_the_copy(tmp_path, copies):
    """Bit for bit, whatever the number and the size of the values."""
    manager = CheckpointManager(tmp_path, keep_latest=copies)
    tree = {
        "layer": {"kernel": params(0, scale=1e30)["layer"]["kernel"]},
        "bias": params(0, scale=1e-30)["bias"],
    }
    for step in range(copies):
        save(manager, step, tree)
    manager.wait()
    assert_trees_equal(average(manager, range(copies)), tree)
    manager.close()


def test_what_is_chosen(manager):
    """Exactly as many as asked for, by number and not by letter, or by score."""
    assert last_steps(manager, 1) == [100_000]
    assert last_steps(manager, 2) == [10_000, 100_000]
    assert last_steps(manager, 4) == list(STEPS)
    assert best_steps(manager, 3) == [8_000, 9_000, 100_000]
    assert these_steps(manager, [100_000, 9_000]) == [9_000, 100_000]


def test_fewer_than_asked_for(manager):
    """One line says how many there are and how to keep more."""
    where = manager.directory
    with pytest.raises(InputError) as caught:
        last_steps(manager, 5)
    assert (
        str(caught.value)
        == f"--last=5 asks for 5 checkpoints and {where} holds 4 checkpoints: ask for"
        " fewer, or train with a larger training.keep_latest"
    )
    save(manager, 100_001, params(1))
    assert len(last_steps(manager, 4)) == 4
    with pytest.raises(
        InputError, match=r"holds 3 evaluated checkpoints: .* training.keep_best"
    ):
        best_steps(manager, 4)  # the worst made room for the latest
    with pytest.raises(InputError, match="--last=0 must be at least 1"):
        last_steps(manager, 0)
    with pytest.raises(InputError, match="there is no checkpoint '7' in"):
        these_steps(manager, [9_000, 7])
    with pytest.raises(InputError, match="--steps names 9000 twice"):
        these_steps(manager, [9_000, 9_000])


def test_checkpoints_to_average_survive(tmp_path):
    """With ``keep_latest`` of k the last k are there to average, the best and every
    k-th too.
    """
    manager = CheckpointManager(tmp_path, keep_latest=5, keep_best=3, keep_every=10)
    for step in range(1, 31):
        save(manager, step, params(step), -abs(step - 7.2))
    manager.wait()
    assert last_steps(manager, 5) == [26, 27, 28, 29, 30]
    assert best_steps(manager, 3) == [6, 7, 8]
    assert these_steps(manager, [10, 20, 30]) == [10, 20, 30]
    manager.close()


def test_an_average_is_found_and_read(run, manager):
    """It holds parameters alone and a record of what went in; the newest is found
    without a name.
    """
    assert list_averages(run) == []
    first = save_average(run, "last-2", manager, [10_000, 100_000])
    second = save_average(run, "a", manager, list(STEPS))
    assert list_averages(run) == [first, second]
    assert (first.steps, first.vocabulary) == ([10_000, 100_000], "abc")
    for which, name, steps in (
        ("average", "average/a", STEPS),
        ("average/a", "average/a", STEPS),
        ("average/last-2", "average/last-2", first.steps),
    ):
        saved = find_parameters(run, which, "bleu")
        assert (saved.name, saved.vocabulary) == (name, "abc")
        assert_trees_equal(saved.load(params(0)), average(manager, steps))
        with pytest.raises(
            InputError, match="it is damaged: training/_METADATA is missing"
        ):
            folder.read_shapes(saved.path, "it", "training")
    assert [path.name for path in average_folders(run)] == ["a", "last-2"]


@pytest.mark.parametrize("lost", ["record", "params"])
def test_what_was_cut_is_named(run, manager, lost):
    """A copy that broke off leaves folders without their record or arrays: a line
    names the folder and the cure.
    """
    save_average(run, "mine", manager, [10_000])
    for which, cut in (
        ("average", run / "averages" / "mine"),
        ("10000", run / "checkpoints" / "10000"),
    ):
        for path in list(cut.iterdir()):
            if lost == "record" or path.name == "params":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        with pytest.raises(
            InputError, match=f"{cut.name} in {cut.parent} is damaged: .* is missing; "
        ):
            find_parameters(run, which, "bleu")


def test_other_names_still_name_checkpoints(run, manager):
    """``best``, ``latest`` and steps are those of the checkpoints, also beside
    averages.
    """
    save_average(run, "9000", manager, [8_000])
    for which, step in (("best", 9_000), ("latest", 100_000), ("9000", 9_000)):
        saved = find_parameters(run, which, "bleu")
        assert (saved.name, saved.vocabulary) == (step, "abc")
        assert_trees_equal(saved.load(params(0)), params(step))


def test_no_such_average(run, manager):
    """One line names those that there are, or how to make one."""
    for which in ("average", "average/last-2"):
        with pytest.raises(
            InputError,
            match="holds no average yet; make one: jaxformer average --workdir=",
        ):
            find_parameters(run, which, "bleu")
    save_average(run, "last-2", manager, [9_000])
    for which in ("average/last-3", "average/", "average/../../x"):
        with pytest.raises(
            InputError,
            match=f"there is no checkpoint '{which}' in .*; there are average/last-2$",
        ):
            find_parameters(run, which, "bleu")
    saved = find_parameters(run, "average", "bleu")
    with pytest.raises(
        InputError,
        match=(
            r"checkpoint average/last-2 in .* is of another model: bias is \(3,\) there"
        ),
    ):
        saved.load({**params(0), "bias": jnp.zeros(4)})


@pytest.mark.parametrize(
    "name", ["", "a.b", "../a", "a/b", ".hidden", "-a", "a b", "a" * 151]
)
def test_a_name_that_is_no_folder(run, manager, name):
    """A name with dots or slashes is refused before anything is written."""
    with pytest.raises(
        InputError, match="--name must be 1 to 150 letters, digits, - and _, not "
    ):
        save_average(run, name, manager, [9_000])
    assert not (run / "averages").exists()


@pytest.mark.parametrize("moment", ["while", "written", "renamed"])
def test_killed_while_it_is_saved(run, manager, monkeypatch, moment):
    """A process that is killed leaves averages that are whole; the same command
    makes the new one.
    """

    class Killed(BaseException):
        pass

    def killed(path, trees, record):
        if moment == "while":
            unfinished = path.with_name(f"{path.name}.orbax-checkpoint-tmp")
            unfinished.mkdir()
            (unfinished / "params").touch()
        else:
            write(path, trees, record)
            if moment == "renamed":
                path.with_suffix("").rename(path.with_suffix(".replaced"))
        raise Killed

    save_average(run, "mean", manager, [8_000, 9_000])
    write = folder.write
    with monkeypatch.context() as patch:
        patch.setattr(folder, "write", killed)
        with pytest.raises(Killed):
            save_average(run, "mean", manager, [9_000, 10_000])
    assert [each.steps for each in list_averages(run)] == (
        [] if moment == "renamed" else [[8_000, 9_000]]
    )
    save_average(run, "mean", manager, [9_000, 10_000])
    assert [each.steps for each in list_averages(run)] == [[9_000, 10_000]]
    assert sorted(path.name for path in (run / "averages").iterdir()) == [
        ".lock",
        "mean",
    ]
    found = find_parameters(run, "average", "bleu").load(params(0))
    assert_trees_equal(found, average(manager, [9_000, 10_000]))


def test_only_its_own_leftovers_are_removed(run, manager, tmp_path):
    """Folders that merely begin with the name stay, and so does what a link in the
    place of a leftover points to.
    """
    save_average(run, "mean", manager, [8_000, 9_000])
    copies = [
        run / "averages" / f"mean.{ending}"
        for ending in ("keep", "new", "old", "new.bak")
    ]
    for path in copies:
        shutil.copytree(run / "averages" / "mean", path)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").touch()
    for ending in ("unfinished", "replaced"):
        (run / "averages" / f"mean.{ending}").symlink_to(tmp_path / "outside")
    save_average(run, "mean", manager, [9_000, 10_000])
    assert [each.steps for each in list_averages(run)] == [[9_000, 10_000]]
    assert set((run / "averages").iterdir()) == {
        run / "averages" / "mean",
        run / "averages" / LOCK,
        *copies,
    }
    assert all((path / "params").is_dir() for path in copies)
    assert (tmp_path / "outside" / "file").exists()
