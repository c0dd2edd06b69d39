"""Checkpoints: whole or not at all, the latest and the best, from any number of
devices to any other.
"""

import gc
import os
import shutil
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorstore
from training.little import assert_trees_close, assert_trees_equal, cached_make_engine

import runs
from jaxformer import signals
from jaxformer.checkpoints import manager as manager_module
from jaxformer.checkpoints.manager import CheckpointManager
from jaxformer.errors import InputError
from jaxformer.models.config import TransformerConfig
from jaxformer.models.seq2seq import Transformer
from jaxformer.runs.training import TrainingConfig
from jaxformer.training.state import TrainState
from jaxformer.translation.translator import Translator


@pytest.fixture(autouse=True)
def _promotion():
    """Let optax promote types: its bias correction is a float to the power of an
    integer.
    """
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture
def open_manager(tmp_path):
    """Return a function that opens this test's directory anew, as another process
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


def restored(manager, step):
    params, training = arrays(step)
    parts = manager.restore(step, params=params, training=training)
    return parts["params"], parts["training"]


def folders(manager):
    manager.wait()
    return sorted(path.name for path in manager.directory.iterdir())


def test_what_is_saved_comes_back(open_manager):
    """Arrays bit for bit, counters as JSON, scores by name; parts alone too."""
    manager = open_manager()
    progress = {
        "sums": {"loss": 0.1 + 0.2},
        "position": {"epoch": 1, "batch": 2},
        "vocabulary": "é",
    }
    save(manager, 7, {"bleu": 12.5, "loss": 1.5}, **progress)
    again = open_manager()
    assert again.steps == [7]
    assert_trees_equal(restored(again, 7), arrays(7))
    assert again.progress(7) == {"step": 7, **progress}
    assert again.scores(7) == {"bleu": 12.5, "loss": 1.5}
    assert_trees_equal(again.restore(7, params=arrays(7)[0])["params"], arrays(7)[0])


def test_nothing_is_saved_yet(open_manager):
    """An empty directory has no checkpoint, and says so."""
    manager = open_manager()
    assert (manager.steps, manager.best()) == ([], None)
    with pytest.raises(
        InputError, match=r"^.* holds no checkpoint yet; train the run first$"
    ):
        manager.find("latest")


def test_latest_and_best_are_kept(open_manager):
    """The two latest and the best are kept, however many worse ones follow, also
    over a restart.
    """
    scores = {10: 3.0, 20: 9.0, 30: 4.0, 40: 8.0, 50: 1.0, 60: 2.0}
    manager = open_manager(keep_latest=2, keep_best=1)
    for step, bleu in scores.items():
        save(manager, step, {"bleu": bleu, "chrf": 100.0 - bleu})
        save(manager, step + 5)  # between evaluations
        if step == 30:
            manager = open_manager(keep_latest=2, keep_best=1)
    assert folders(manager) == ["20", "60", "65"]
    assert (
        manager.best(),
        manager.find("best"),
        manager.find("latest"),
        manager.find("60"),
    ) == (20, 20, 65, 60)


def test_the_k_best_are_the_best(open_manager):
    """Kept are the k best, not the k latest improvements."""
    manager = open_manager(keep_latest=1, keep_best=2)
    for step, bleu in enumerate([1.0, 2.0, 9.0, 8.0, 3.0, 4.0, 5.0], start=1):
        save(manager, step, {"bleu": bleu})
    assert folders(manager) == ["3", "4", "7"]


def test_every_kth_is_kept_besides(open_manager):
    """The latest, the best and every k-th step are kept together, and only they."""
    manager = open_manager(keep_latest=2, keep_best=2, keep_every=40)
    scores = {
        10: 9.0,
        20: 1.0,
        30: 8.0,
        40: 2.0,
        50: 3.0,
        60: 7.0,
        70: 4.0,
        80: 5.0,
        90: 0.0,
        100: 6.0,
        110: 1.0,
    }
    for step, bleu in scores.items():
        save(manager, step, {"bleu": bleu})
        save(manager, step + 5)
        if step == 50:
            manager = open_manager(keep_latest=2, keep_best=2, keep_every=40)
    assert folders(manager) == ["10", "110", "115", "30", "40", "80"]
    assert manager.ranking() == [10, 30, 80, 40, 110]


def test_a_score_that_is_not_a_number_is_the_worst(open_manager):
    """One evaluation that failed to give a number takes no place of a better one."""
    manager = open_manager(keep_latest=1, keep_best=2, best_metric="loss")
    for step, loss in enumerate([2.0, float("nan"), 1.0, 3.0, float("nan")], start=1):
        save(manager, step, {"loss": loss})
    assert folders(manager) == ["1", "3", "5"]
    assert manager.best() == 3


def test_a_lower_loss_is_better(open_manager):
    """For ``loss`` the lowest is the best, for other scores the highest, and of
    equals the later.
    """
    manager = open_manager(keep_latest=5, best_metric="loss")
    for step, loss in ((1, 3.0), (2, 1.0), (3, 2.0), (4, 1.0)):
        save(manager, step, {"loss": loss, "bleu": -loss})
    assert manager.best() == 4
    assert open_manager(keep_latest=5, best_metric="bleu").best() == 4


def test_best_without_any_evaluation(open_manager):
    """Where nothing was evaluated, ``best`` is the latest; another name is refused
    with those that there are.
    """
    manager = open_manager()
    save(manager, 9)
    save(manager, 10)
    assert (manager.best(), manager.find("best")) == (None, 10)
    for which in ("8", "bset", "-1"):
        with pytest.raises(
            InputError,
            match=rf"no checkpoint '{which}' in .*; there are best, latest, 9, 10$",
        ):
            manager.find(which)


def test_steps_are_numbers(open_manager):
    """Step 10000 is later than step 9000."""
    manager = open_manager(keep_latest=3)
    for step in (9_000, 10_000, 100_000):
        save(manager, step)
    assert manager.steps == [9_000, 10_000, 100_000]
    assert manager.find("latest") == 100_000


def test_what_killed_saves_left_behind(open_manager):
    """Folders of unfinished saves are no checkpoints, and the process that writes
    removes them.
    """
    manager = open_manager()
    save(manager, 4)
    manager.wait()
    for name in ("8.orbax-checkpoint-tmp", "8.orbax-checkpoint-tmp-1234"):
        shutil.copytree(manager.directory / "4", manager.directory / name)
        shutil.rmtree(manager.directory / name / "params")
    again = open_manager()
    assert again.steps == [4]
    assert again.find("latest") == 4
    again.remove_leftovers()
    assert folders(again) == ["4"]
    assert_trees_equal(restored(again, 4), arrays(4))
    save(again, 8)
    assert folders(again) == ["4", "8"]


def test_an_old_checkpoint_that_was_half_removed(open_manager):
    """A process killed while it removed an old checkpoint leaves the latest usable."""
    manager = open_manager(keep_latest=3)
    for step in (1, 2, 3):
        save(manager, step)
    manager.wait()
    for name in ("_CHECKPOINT_METADATA", "commit_success.txt", "params/_METADATA"):
        (manager.directory / "1" / name).unlink(missing_ok=True)
    again = open_manager(keep_latest=2)
    again.remove_leftovers()
    assert again.find("latest") == 3
    assert_trees_equal(restored(again, 3), arrays(3))
    save(again, 4)
    assert folders(again) == ["3", "4"]


def test_the_same_step_is_saved_once(open_manager):
    """A step that is already saved is not saved again."""
    manager = open_manager()
    save(manager, 5, {"bleu": 1.0}, note="first")
    save(manager, 5, None, note="second")
    save(manager, 5, {"bleu": 2.0}, note="third")
    manager.wait()
    assert manager.progress(5)["note"] == "first"
    assert manager.scores(5) == {"bleu": 1.0}


def test_scores_are_added_later(open_manager):
    """A checkpoint without scores is saved again with those of its evaluation, and
    counts for the best.
    """
    manager = open_manager()
    save(manager, 5, None, evaluated=0)
    manager = open_manager()
    save(manager, 5, {"bleu": 3.0}, evaluated=5)
    assert folders(manager) == ["5"]
    again = open_manager()
    assert again.scores(5) == {"bleu": 3.0}
    assert again.progress(5)["evaluated"] == 5
    assert again.best() == 5
    assert_trees_equal(restored(again, 5), arrays(5))


@pytest.mark.parametrize("when", ["before", "while"])
def test_killed_while_scores_are_added(open_manager, monkeypatch, when):
    """A process that is killed while it saves a checkpoint again leaves the old one
    or the new one.
    """
    manager = open_manager()
    save(manager, 5, None, note="old")
    manager.wait()

    class Killed(BaseException):
        pass

    def killed(self, *parts):
        if when == "while":
            (self.directory / "5.orbax-checkpoint-tmp").mkdir()
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointManager, "_save", killed)
        # nothing is tidied by a killed process
        patch.setattr(manager_module, "_settle", lambda replaced: None)
        with pytest.raises(Killed):
            save(manager, 5, {"bleu": 3.0}, note="new")
    again = open_manager()
    again.remove_leftovers()
    assert folders(again) == ["5"]
    assert (again.steps, again.progress(5)["note"]) == ([5], "old")
    assert_trees_equal(restored(again, 5), arrays(5))
    save(again, 5, {"bleu": 3.0}, note="new")
    again.wait()
    assert again.progress(5)["note"] == "new"


def test_killed_before_the_replaced_one_is_removed(open_manager):
    """If both the old and the new are whole, the new one stays."""
    manager = open_manager()
    save(manager, 5, {"bleu": 3.0})
    manager.wait()
    shutil.copytree(manager.directory / "5", manager.directory / "5.replaced")
    again = open_manager()
    assert again.steps == [5]
    again.remove_leftovers()
    assert folders(again) == ["5"]


def test_a_failed_save(open_manager, monkeypatch):
    """A disk without space is told in one line with the last good checkpoint, which
    still loads.
    """
    manager = open_manager()
    save(manager, 4)
    manager.wait()

    def full(self, *arguments, **keywords):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(type(manager._checkpointer), "save_checkpointables_async", full)
        with pytest.raises(InputError) as caught:
            save(manager, 8)
    assert (
        str(caught.value)
        == f"could not save a checkpoint in {manager.directory}: [Errno 28] No space"
        " left on device; the last good checkpoint is step 4"
    )
    assert_trees_equal(restored(open_manager(), 4), arrays(4))


def test_a_checkpoint_of_another_model(open_manager):
    """The first array that differs is named with both shapes."""
    manager = open_manager()
    save(manager, 4)
    manager.wait()
    with pytest.raises(
        InputError,
        match=(
            r"checkpoint 4 in .* is of another model: table is \(5, 3\) there and \(5,"
            r" 4\) by"
        ),
    ):
        manager.restore(4, params={"table": jnp.zeros((5, 4))})
    with pytest.raises(
        InputError,
        match=(
            r"is of another model: bias is absent there and \(3,\) by the configuration"
        ),
    ):
        manager.restore(4, params={"table": jnp.zeros((5, 3)), "bias": jnp.zeros(3)})


def test_changed_arrays_do_not_change_the_checkpoint(open_manager):
    """Training goes on while a checkpoint is saved: what the memory is reused for
    does not get into it.
    """
    manager = open_manager(keep_latest=20)
    update = jax.jit(lambda table: table * 1.5 + 1.0, donate_argnums=0)
    table = jnp.zeros((256, 256))
    expected = []
    for step in range(8):
        expected.append(np.array(table))
        manager.save(step, {"table": table}, {"step": jnp.int32(step)}, {}, None)
        for _ in range(3):
            table = update(table)
    manager.wait()
    for step, wanted in enumerate(expected):
        found = manager.restore(step, params={"table": jnp.zeros((256, 256))})[
            "params"
        ]["table"]
        np.testing.assert_array_equal(np.asarray(found), wanted)


ENGINES = {
    "jit": {"engine": "jit"},
    "pmap": {"engine": "pmap"},
    "mesh": {"engine": "mesh", "mesh_fsdp": 2, "mesh_tensor": 2},
}


@pytest.mark.slow
@pytest.mark.skipif(jax.local_device_count() < 8, reason="needs eight devices")
@pytest.mark.parametrize(
    ("before", "after"), [("pmap", "jit"), ("jit", "mesh"), ("mesh", "pmap")]
)
def test_saved_by_one_engine_restored_by_another(open_manager, before, after):
    """A checkpoint of any engine restores in any other, bit for bit; training goes on
    from it as on the devices that saved it.
    """
    model = Transformer(
        TransformerConfig(
            vocabulary_size=16, d_model=8, d_ff=16, num_heads=2, num_encoder_layers=1, num_decoder_layers=1,
            dropout_rate=0.0, max_length=16,
        )
    )  # fmt: skip
    generator = np.random.default_rng(0)
    batches = [
        {
            side: generator.integers(3, 16, (16, 9)).astype(np.int32)
            for side in ("source", "target")
        }
        for _ in "ab"
    ]
    engines = {
        name: cached_make_engine(
            model, TrainingConfig(warmup_steps=300, **ENGINES[name])
        )
        for name in (before, after)
    }

    state, _ = engines[before].step(engines[before].create(), batches[0])
    collected = engines[before].collect(state)
    kept = jax.tree.map(np.array, collected)
    manager = open_manager()
    manager.save(1, collected.weights, collected.rest(), {"step": 1}, None)
    state, _ = engines[before].step(state, batches[1])
    expected = jax.tree.map(np.array, engines[before].collect(state))

    like = engines[after].abstract()
    parts = open_manager().restore(1, params=like.weights, training=like.rest())
    found = TrainState.from_parts(parts["params"], parts["training"])
    assert_trees_equal(found, kept)
    assert [leaf.sharding for leaf in jax.tree.leaves(found)] == [
        leaf.sharding for leaf in jax.tree.leaves(like)
    ]
    state, _ = engines[after].step(engines[after].place(found), batches[1])
    again = engines[after].collect(state)
    assert_trees_close(again.optimizer, expected.optimizer, atol=1e-6, rtol=1e-5)
    assert int(again.step) == 2


def test_an_interruption_while_a_checkpoint_is_read_is_not_lost(monkeypatch, capfd):
    """Orbax reads in an event loop, which would keep the exception or make another
    one of it.
    """
    original, sent = tensorstore.open, []

    def interrupted(*arguments, **keywords):
        if not sent:
            sent.append(True)
            os.kill(os.getpid(), signal.SIGINT)
        return original(*arguments, **keywords)

    run = runs.random_run()
    capfd.readouterr()
    monkeypatch.setattr(tensorstore, "open", interrupted)
    with signals.noted(), pytest.raises(KeyboardInterrupt):
        Translator.load(run)
    assert sent
    gc.collect()
    assert capfd.readouterr().err == ""
