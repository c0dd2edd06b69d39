"""Damage: a checkpoint loads as it was saved, or one line names what is wrong with
it; the others still load.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from training.little import assert_trees_equal

from jaxformer.checkpoints import folder
from jaxformer.checkpoints.average import best_steps, list_averages, save_average
from jaxformer.checkpoints.manager import CheckpointManager
from jaxformer.checkpoints.parameters import find_parameters
from jaxformer.checkpoints.saved import SavedCheckpoints
from jaxformer.errors import InputError

STEPS = {10: 5.0, 20: 9.0, 30: 7.0}
PARAMS = {
    "table": jnp.asarray(np.random.default_rng(0).normal(size=(40, 30)), jnp.float32),
    "bias": jnp.ones(3),
}
CURE = (
    "restore it from a copy, choose another by --checkpoint, or remove it to resume"
    " from the one before"
)
TRAINING = {"step": jnp.int32(7), "optimizer": {"moment": jnp.full((40, 30), 0.5)}}


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """Save a run with a few checkpoints and an average."""
    run = tmp_path_factory.mktemp("saved") / "run"
    manager = CheckpointManager(run / "checkpoints", keep_latest=len(STEPS))
    for step, bleu in STEPS.items():
        scores = {"bleu": bleu}
        progress = {"step": step, "vocabulary": "abc"}
        progress |= {"evaluated": step, "scores": scores}
        manager.save(step, PARAMS, TRAINING, progress, scores)
    manager.close()
    save_average(run, "mean", SavedCheckpoints(run / "checkpoints"), [10, 20])
    return run


@pytest.fixture
def run(saved, tmp_path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "run"))


def load(run: Path, step: int = 20) -> None:
    """Read a checkpoint as translating and as resuming does; what is read must be
    what was saved.
    """
    assert_trees_equal(find_parameters(run, str(step), "bleu").load(PARAMS), PARAMS)
    checkpoints = SavedCheckpoints(run / "checkpoints")
    found = checkpoints.restore(step, params=PARAMS, training=TRAINING)
    assert_trees_equal(found, {"params": PARAMS, "training": TRAINING})
    assert checkpoints.scores(step) == {"bleu": STEPS[step]}
    assert checkpoints.progress(step)["step"] == step


def damages(content: bytes) -> dict[str, bytes | None]:
    """Damage the content of a file in several ways; None: the file is lost."""
    flipped = bytearray(content)
    place = random.Random(len(content)).randrange(8 * len(content))
    flipped[place // 8] ^= 1 << place % 8
    return {
        "lost": None,
        "empty": b"",
        "half": content[: len(content) // 2],
        "zeros": bytes(len(content)),
        "one bit": bytes(flipped),
    }


def test_any_damage_of_any_file_is_refused_or_harmless(run, capfd):
    """Whatever file is lost, cut, cleared or changed by a bit, the arrays are those
    saved, or one line refuses them; any damage of the arrays is refused.
    """
    path, refused = run / "checkpoints" / "20", 0
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        content = file.read_bytes()
        for kind, changed in damages(content).items():
            if changed is None:
                file.unlink()
            else:
                file.write_bytes(changed)
            try:
                load(run)
                assert "ocdbt" not in str(file), (file, kind)
            except InputError as error:
                refused += 1
                line = str(error)
                begin = f"checkpoint 20 in {path.parent} is damaged: "
                assert line.startswith(begin), (file, kind)
                assert line.endswith("; " + CURE)
                assert "\n" not in line
            file.write_bytes(content)
    assert refused > 70
    load(run)
    assert capfd.readouterr() == ("", "")


def test_without_checksums(run, capfd):
    """Checkpoints of earlier versions load, and those of a process that was killed
    before it wrote them.
    """
    for file in run.rglob(folder.CHECKSUMS):
        file.unlink()
    load(run)
    assert_trees_equal(find_parameters(run, "average", "bleu").load(PARAMS), PARAMS)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("lost", ["_CHECKPOINT_METADATA", "params", "metrics"])
def test_a_damaged_checkpoint_hides_no_other(run, lost):
    """The others are listed, ranked and read; the damaged one is refused by what it
    lacks.
    """
    path = run / "checkpoints" / "30" / lost
    path.unlink() if path.is_file() else shutil.rmtree(path)
    load(run, 10)
    checkpoints = SavedCheckpoints(run / "checkpoints")
    assert (checkpoints.steps, checkpoints.ranking()) == ([10, 20, 30], [20, 30, 10])
    if lost != "metrics":
        missing = rf"checkpoint 30 in .* is damaged: {lost}.* is missing"
        with pytest.raises(InputError, match=missing):
            load(run, 30)


@pytest.mark.parametrize("content", [None, b"{}}"])
def test_lost_scores_make_no_other_checkpoint_the_best(run, content):
    """The loop's own record has them too; training that resumes keeps the best by
    them.
    """
    file = run / "checkpoints" / "20" / "metrics" / "metrics"
    file.unlink() if content is None else file.write_bytes(content)
    checkpoints = SavedCheckpoints(run / "checkpoints")
    assert (checkpoints.best(), best_steps(checkpoints, 2)) == (20, [20, 30])
    assert find_parameters(run, "best", "bleu").name == 20
    if content is not None:
        invalid = r"checkpoint 20 in .* is damaged: metrics is missing or no valid JSON"
        with pytest.raises(InputError, match=invalid):
            CheckpointManager(run / "checkpoints")
        return
    manager = CheckpointManager(run / "checkpoints", keep_latest=1)
    manager.save(40, PARAMS, TRAINING, {"step": 40}, {"bleu": 1.0})
    manager.wait()
    assert manager.steps == [20, 40]
    manager.close()


def test_parameters_that_are_not_finite_are_refused(tmp_path):
    """By every reader of parameters, resuming and averaging included; the line names
    the array.
    """
    bad = {**PARAMS, "table": PARAMS["table"].at[3, 4].set(np.inf)}
    manager = CheckpointManager(tmp_path / "checkpoints", keep_latest=3)
    manager.save(1, PARAMS, TRAINING, {"vocabulary": "abc"}, None)
    manager.save(2, bad, TRAINING, {"vocabulary": "abc"}, None)
    manager.save(3, PARAMS, {**TRAINING, "params": bad}, {"vocabulary": "abc"}, None)
    manager.close()
    checkpoints = SavedCheckpoints(tmp_path / "checkpoints")
    averaged = {**TRAINING, "params": PARAMS}
    refusal = r"checkpoint \d in .* has parameters that are not finite: table; choose"
    for read in (
        lambda: find_parameters(tmp_path, "2", "bleu").load(PARAMS),
        lambda: checkpoints.restore(3, params=PARAMS, training=averaged),
        lambda: save_average(tmp_path, "mean", checkpoints, [1, 2]),
    ):
        with pytest.raises(InputError, match=refusal):
            read()
    assert list_averages(tmp_path) == []


def test_averages_next_to_each_other(run):
    """The newest is the last one made. A damaged one hides no other."""
    checkpoints = SavedCheckpoints(run / "checkpoints")
    save_average(run, "a", checkpoints, [10])
    save_average(run, "Z", checkpoints, [30])
    assert [each.name for each in list_averages(run)] == ["mean", "a", "Z"]
    assert find_parameters(run, "average", "bleu").name == "average/Z"
    (run / "averages" / "mean" / "_CHECKPOINT_METADATA").unlink()
    assert_trees_equal(find_parameters(run, "average/a", "bleu").load(PARAMS), PARAMS)
    missing = r"checkpoint mean in .* is damaged: _CHECKPOINT_METADATA is missing"
    with pytest.raises(InputError, match=missing):
        find_parameters(run, "average", "bleu")
    save_average(run, "mean", checkpoints, [10])
    assert find_parameters(run, "average", "bleu").name == "average/mean"


def test_a_file_that_the_system_refuses_is_no_damage(run, monkeypatch):
    """One line has the reason, and nobody is told to remove the checkpoint."""
    read, path = Path.read_bytes, run / "checkpoints" / "20"
    error = PermissionError(13, "Permission denied", str(path / folder.CHECKSUMS))

    def refuse(file):
        if file == path / folder.CHECKSUMS:
            raise error
        return read(file)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(InputError) as caught:
        load(run)
    assert str(caught.value) == f"cannot read checkpoint 20 in {path.parent}: {error}"
