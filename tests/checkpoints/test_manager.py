"""Checkpoints: whole or not at all, the latest and the best, from any number of
devices to any other.
"""

import os
import shutil
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorstore
from training.little import assert_trees_equal

import runs
from jaxformer import signals
from jaxformer.checkpoints.manager import CheckpointManager
from jaxformer.checkpoints.saved import SavedCheckpoints
from jaxformer.errors import InputError
from jaxformer.models.config import TransformerConfig
from jaxformer.models.transformer import Transformer
from jaxformer.runs.training import TrainingConfig
from jaxformer.training.engines import make_engine
from jaxformer.training.state import TrainState
from jaxformer.translation.translator import Translator


@pytest.fixture
def open_manager(tmp_path):
    """Return a function that opens this test's directory again, as another process
    would.
    """
    opened = []

    def open_(**options):
        for manager in opened:
            manager.wait()
        manager = CheckpointManager(tmp_path / "checkpoints", **options)
        opened.append(manager)
        return manager

    yield open_
    for manager in opened:
        manager.close()


def arrays(step):
    """Return a little tree of parameters and one of other state, different at each
    step.
    """
    generator = np.random.default_rng(step)
    params = {"table": jnp.asarray(generator.normal(size=(5, 3)), jnp.float32)}
    training = {"step": jnp.int32(step), "key": jnp.asarray([step, 7], jnp.uint32)}
    return params, training


def save(manager, step, scores=None, **progress):
    manager.save(step, *arrays(step), {"step": step, **progress}, scores)


def assert_whole(manager, step):
    params, training = arrays(step)
    parts = manager.restore(step, params=params, training=training)
    assert_trees_equal((parts["params"], parts["training"]), (params, training))


def folders(manager):
    manager.wait()
    return sorted(path.name for path in manager.directory.iterdir())


def test_what_is_saved_comes_back(open_manager):
    """Arrays bit for bit, counters as JSON, scores by name; also some parts only."""
    manager = open_manager()
    assert (manager.steps, manager.best()) == ([], None)
    nothing = r"^.* holds no checkpoint yet; train the run first$"
    with pytest.raises(InputError, match=nothing):
        manager.find("latest")
    position = {"epoch": 1, "batch": 2}
    progress = {"sums": {"loss": 0.1 + 0.2}, "position": position, "vocabulary": "é"}
    save(manager, 7, {"bleu": 12.5, "loss": 1.5}, **progress)
    again = open_manager()
    assert again.steps == [7]
    assert_whole(again, 7)
    assert again.progress(7) == {"step": 7, **progress}
    assert again.scores(7) == {"bleu": 12.5, "loss": 1.5}
    assert_trees_equal(again.restore(7, params=arrays(7)[0])["params"], arrays(7)[0])


def test_what_is_kept(open_manager):
    """The latest, the best and every k-th step are kept together, and only they, also
    over a restart.
    """
    keep = {"keep_latest": 2, "keep_best": 2, "keep_every": 40}
    manager = open_manager(**keep)
    scores = {10: 9.0, 30: 8.0, 40: 2.0, 60: 7.0, 80: 5.0, 90: 0.0}
    for step, bleu in scores.items():
        save(manager, step, {"bleu": bleu, "chrf": 100.0 - bleu})
        save(manager, step + 5)  # between evaluations
        if step == 40:
            manager = open_manager(**keep)
    assert folders(manager) == ["10", "30", "40", "80", "90", "95"]
    assert manager.ranking() == [10, 30, 80, 40, 90]
    found = [manager.find(which) for which in ("best", "latest", "80")]
    assert (manager.best(), found) == (10, [10, 95, 80])


def test_the_best_score(open_manager):
    """For ``loss`` the lowest is the best, for other scores the highest, and of equals
    the later. One that is not a number takes no place of a better one.
    """
    manager = open_manager(keep_latest=1, keep_best=3, best_metric="loss")
    for step, loss in enumerate([2.0, 1.0, np.nan, 1.0, 3.0, np.nan], start=1):
        save(manager, step, {"loss": loss, "bleu": -loss})
    assert folders(manager) == ["1", "2", "4", "6"]
    assert manager.best() == 4
    assert SavedCheckpoints(manager.directory, "bleu").best() == 4


def test_a_low_bleu_goes_by_the_loss(open_manager):
    """Where BLEU is below 1 the lowest loss is the best, and is kept; from 1 on BLEU
    decides, and of equals chrF.
    """
    manager = open_manager(keep_latest=1, keep_best=2)
    for step, loss in enumerate([5.0, 3.0, 4.0, 3.0, 6.0], start=1):
        save(manager, step, {"bleu": step / 6, "loss": loss, "chrf": 9.0 * loss})
    assert folders(manager) == ["2", "4", "5"]
    assert manager.ranking() == [4, 2, 5]
    save(manager, 6, {"bleu": 1.0, "loss": 9.0, "chrf": 1.0})
    assert folders(manager) == ["4", "6"]
    save(manager, 7, {"bleu": 1.0, "loss": 1.0, "chrf": 0.0})
    assert (folders(manager), manager.ranking()) == (["6", "7"], [6, 7])


def test_steps_are_numbers(open_manager):
    """Step 10000 is later than step 9000. Where nothing was evaluated, ``best`` is the
    latest; another name is refused with those that there are.
    """
    manager = open_manager()
    for step in (9_000, 10_000):
        save(manager, step)
    assert manager.steps == [9_000, 10_000]
    manager.wait()
    assert (manager.best(), manager.find("best")) == (None, 10_000)
    for which in ("8", "bset"):
        there = rf"no checkpoint '{which}' in .*; there are best, latest, 9000, 10000$"
        with pytest.raises(InputError, match=there):
            manager.find(which)


def test_what_killed_processes_left_behind(open_manager):
    """Folders of unfinished saves are no checkpoints, and the process that writes
    removes them. An old checkpoint that was half removed leaves the latest usable. If
    both a replaced checkpoint and the new one are whole, the new one stays.
    """
    manager = open_manager(keep_latest=3)
    for step in (1, 2, 3):
        save(manager, step)
    manager.wait()
    directory = manager.directory
    for name in ("8.orbax-checkpoint-tmp", "8.orbax-checkpoint-tmp-1234"):
        shutil.copytree(directory / "3", directory / name)
        shutil.rmtree(directory / name / "params")
    shutil.copytree(directory / "3", directory / "3.replaced")
    for name in ("_CHECKPOINT_METADATA", "commit_success.txt", "params/_METADATA"):
        (directory / "1" / name).unlink(missing_ok=True)
    again = open_manager(keep_latest=2)
    assert again.find("latest") == 3
    again.remove_leftovers()
    assert_whole(again, 3)
    save(again, 8)
    assert folders(again) == ["3", "8"]


def test_a_step_is_saved_again_only_with_its_scores(open_manager):
    """A checkpoint without scores is saved again with those of its evaluation, and
    counts for the best; any other is saved once.
    """
    manager = open_manager()
    save(manager, 5, None, note="first")
    save(manager, 5, None, note="second")
    manager.wait()
    assert manager.progress(5)["note"] == "first"
    manager = open_manager()
    for bleu in (3.0, 4.0):
        save(manager, 5, {"bleu": bleu}, note=f"evaluated {bleu}")
    assert folders(manager) == ["5"]
    again = open_manager()
    assert (again.scores(5), again.best()) == ({"bleu": 3.0}, 5)
    assert again.progress(5)["note"] == "evaluated 3.0"
    assert_whole(again, 5)


def test_changed_arrays_do_not_change_the_checkpoint(open_manager):
    """Training continues while a checkpoint is saved: what the memory is reused for
    does not get into it.
    """
    manager = open_manager(keep_latest=20)
    update = jax.jit(lambda table: table * 1.5 + 1.0, donate_argnums=0)
    table, expected = jnp.zeros((256, 256)), []
    for step in range(5):
        expected.append(np.array(table))
        manager.save(step, {"table": table}, {"step": jnp.int32(step)}, {}, None)
        for _ in range(3):
            table = update(table)
    manager.wait()
    for step, wanted in enumerate(expected):
        found = manager.restore(step, params={"table": wanted})["params"]
        np.testing.assert_array_equal(found["table"], wanted)


@pytest.mark.skipif(jax.local_device_count() < 8, reason="needs eight devices")
def test_saved_by_one_engine_restored_by_another(open_manager):
    """A checkpoint of any engine restores in any other, bit for bit, where its arrays
    are to be. Without a sharding they come to the first device.
    """
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1, "max_length": 16}
    config = TransformerConfig(16, d_model=8, d_ff=16, num_heads=2, **layers)
    pmap, mesh = (
        make_engine(Transformer(config), TrainingConfig(engine=engine, **cut))
        for engine, cut in (("pmap", {}), ("mesh", {"mesh_fsdp": 2, "mesh_tensor": 2}))
    )
    kept = jax.tree.map(
        lambda leaf: (
            np.arange(np.prod(leaf.shape)).reshape(leaf.shape).astype(leaf.dtype)
        ),
        pmap.shapes,
    )
    state = pmap.collect(pmap.place(kept))
    for step, engine in enumerate((mesh, pmap), start=1):
        manager, like = open_manager(), engine.abstract()
        manager.save(step, state.weights, state.rest(), {}, None)
        manager.wait()
        parts = manager.restore(step, params=like.weights, training=like.rest())
        state = TrainState.from_parts(parts["params"], parts["training"])
        assert_trees_equal(state, kept)
        for leaf, wanted in zip(*map(jax.tree.leaves, (state, like)), strict=True):
            assert leaf.sharding == wanted.sharding
        plain = manager.restore(step, params=kept.weights)["params"]
        assert_trees_equal(plain, kept.weights)
        devices = {x for leaf in jax.tree.leaves(plain) for x in leaf.devices()}
        assert devices == {jax.local_devices()[0]}
        state = engine.collect(engine.place(state))


def test_an_interruption_while_a_checkpoint_is_read_is_not_lost(monkeypatch):
    """Orbax reads in an event loop, which may make another exception of it."""
    original, sent = tensorstore.open, []

    def interrupted(*arguments, **keywords):
        if not sent:
            sent.append(True)
            os.kill(os.getpid(), signal.SIGINT)
        return original(*arguments, **keywords)

    run = runs.random_run()
    monkeypatch.setattr(tensorstore, "open", interrupted)
    with signals.noted():
        with pytest.raises((KeyboardInterrupt, InputError)):
            Translator.load(run)
        with pytest.raises(KeyboardInterrupt):
            signals.check()
    assert sent
