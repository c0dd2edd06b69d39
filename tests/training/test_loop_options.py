"""What a configuration asks for reaches the loop: another run to begin with,
float16, profiles, stalls, cool-downs.
"""

import os
import shutil
import signal
import threading
import time

import pytest
from training.little import assert_trees_close, read_checkpoint, read_records, steps_of

from jaxformer.data.pipeline import TrainingData
from jaxformer.errors import InputError
from jaxformer.runs.records import append
from jaxformer.training import loop
from jaxformer.translation.translator import Translator


def interrupt():
    """Send SIGTERM to this process."""
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_run_begins_with_another_one(train, tmp_path, straight):
    """Its first parameters are the best of the other run, and its vocabulary too;
    without its optimizer moments and schedule begin anew, and with it the moments go on
    under the schedule of the new run.
    """
    names = {}
    for name, changes in (
        ("plain", {}),
        ("moments", {"training.initial_optimizer": True}),
    ):
        begin = {
            "training.initial_run": str(straight),
            "training.steps": 1,
            "training.learning_rate": 1e-12,
            **changes,
        }
        assert train(name, begin, None).finished
        names[name] = read_checkpoint(tmp_path / name, 1)
        assert (tmp_path / name / "vocabulary" / "shared.model").read_bytes() == (
            straight / "vocabulary" / "shared.model"
        ).read_bytes()
        line = read_records(tmp_path / name)[-2]
        assert line["train/learning_rate"] == pytest.approx(
            1e-12 * 16**-0.5 * 20**-1.5, rel=1e-5
        )
    best = read_checkpoint(straight, Translator.load(straight).checkpoint)
    for found in names.values():
        assert_trees_close(found["params"], best["params"], atol=1e-9, rtol=0)
        assert [
            int(state.count)
            for state in found["training"]["optimizer"]
            if hasattr(state, "count")
        ][-1] == 1
    moments = {name: found["training"]["optimizer"][0] for name, found in names.items()}
    assert [int(moments[name].count) for name in ("plain", "moments")] == [
        1,
        int(best["training"]["step"]) + 1,
    ]


@pytest.mark.parametrize("kept", ["results.json", "averages", "curve.png"])
def test_a_run_whose_checkpoints_are_gone_is_not_begun_anew(train, tmp_path, kept):
    """What was scored or averaged came of checkpoints: without them the record of
    the run is left as it is.
    """
    run, few = tmp_path / "run", {"training.steps": 2}
    train("run", few, None)
    shutil.rmtree(run / "checkpoints")
    (run / kept).mkdir()
    before = (run / "metrics.jsonl").read_bytes()
    with pytest.raises(
        InputError,
        match=(
            f"has {kept} of a run whose checkpoints are gone: put .*/checkpoints"
            " back, or"
        ),
    ):
        train("run", few, None)
    assert (run / "metrics.jsonl").read_bytes() == before
    (run / kept).rmdir()
    (run / "checkpoints").mkdir()
    assert train("run", few, None).finished  # as one that was killed before it had one


def test_a_record_of_steps_is_not_cut_where_the_checkpoints_are_gone(train, tmp_path):
    """Without the folder of checkpoints any line proves that it is gone, with it one
    after the second save.
    """
    run, few = tmp_path / "run", {"training.steps": 2}
    train("run", few, None)
    shutil.rmtree(run / "checkpoints")
    before = (run / "metrics.jsonl").read_bytes()
    with pytest.raises(
        InputError,
        match=(
            r"has the record of 2 steps and no checkpoint: put .*/checkpoints back,"
            r" or .*"
        ),
    ):
        train("run", few, None)
    (run / "checkpoints").mkdir()
    seldom = {"training.evaluate_every": 1, "training.checkpoint_every": 1}
    append(run / "metrics.jsonl", {"step": 3})
    with pytest.raises(InputError, match="has the record of 3 steps and no checkpoint"):
        train("run", {**few, **seldom}, None)
    assert (run / "metrics.jsonl").read_bytes() == before + b'{"step": 3}\n'
    (run / "metrics.jsonl").unlink()
    assert train("run", few, None).finished


def test_another_run_that_does_not_fit(train, tmp_path, straight):
    """A run to begin with that is not there, or of another model, is refused and
    leaves the directory free.
    """
    for changes, message in (
        ({"training.initial_run": str(tmp_path / "nowhere")}, "has no config.json"),
        (
            {"training.initial_run": str(straight), "model.d_ff": 64},
            "is of another model",
        ),
    ):
        with pytest.raises(InputError, match=message):
            train("run", changes, None)
        assert not (tmp_path / "run" / "config.json").exists()
    assert train("run", {"training.steps": 1}, None).finished


def test_float16_r_drop_and_a_profile(train, tmp_path, monkeypatch):
    """One little run with all of them: lost steps are no bad steps, the scale is in the
    log, a batch counts twice in the work of a step, and the trace is where the line
    says.
    """
    passes = []
    meter = loop.Meter
    monkeypatch.setattr(
        loop,
        "Meter",
        lambda *given, **named: (
            passes.append(named["passes"]) or meter(*given, **named)
        ),
    )
    changes = {
        "model.dtype": "float16",
        "training.loss_scale": 2.0**30,
        "training.r_drop": 1.0,
        "training.max_bad_steps": 1,
        "training.profile_step": 2,
        "training.profile_steps": 1,
        "data.num_buckets": 1,
    }
    assert train("run", changes, None).finished
    lines = [line for line in read_records(tmp_path / "run") if "train/skipped" in line]
    assert lines[0]["train/skipped"] > 0.0
    assert lines[-1]["train/loss_scale"] < 2.0**30
    assert passes == [2]
    assert list((tmp_path / "run" / "profile").rglob("*.xplane.pb"))
    assert not (tmp_path / "run" / "bad_batches").exists()


def test_a_signal_ends_the_wait_for_a_batch(train, tmp_path, monkeypatch):
    """Who waits for a batch that never comes can be stopped, and what was trained is
    saved.
    """
    batches = TrainingData.batches

    def stuck(self, *given, **named):
        for number, item in enumerate(batches(self, *given, **named)):
            if number == 5:
                threading.Timer(0.2, interrupt).start()
                time.sleep(60.0)
            yield item

    with monkeypatch.context() as patch:
        patch.setattr(TrainingData, "batches", stuck)
        begun = time.monotonic()
        outcome = train("run", {}, None)
        assert time.monotonic() - begun < 50.0
    assert (outcome.finished, outcome.signal) == (False, "SIGTERM")
    assert steps_of(tmp_path / "run")[-1] == outcome.step == 5


def test_validation_by_the_loss_alone(train, tmp_path):
    """Without sentences to translate nothing is translated."""
    changes = {"evaluation.max_sentences": 0, "evaluation.best_metric": "loss"}
    assert train("run", changes).finished
    assert "valid/bleu" not in read_records(tmp_path / "run")[-1]
    assert "valid/nll" in read_records(tmp_path / "run")[-1]


@pytest.mark.parametrize(
    ("first", "then", "refused"),
    [
        (
            {"training.cooldown_steps": 4, "training.steps": 12},
            {"training.steps": 20},
            True,
        ),
        (
            {"training.steps": 12},
            {"training.steps": 14, "training.cooldown_steps": 4},
            True,
        ),
        (
            {"training.steps": 12},
            {"training.steps": 16, "training.cooldown_steps": 4},
            False,
        ),
    ],
)
def test_a_cool_down_is_not_gone_back_on(train, first, then, refused):
    """Once the rate falls towards the end, or would have, the end stays; a cool-down
    can be added behind what was trained.
    """
    base = {
        "training.schedule": "constant",
        "training.learning_rate": 1e-3,
        "training.warmup_steps": 2,
    }
    train("run", {**base, **first}, None)
    if refused:
        with pytest.raises(
            InputError,
            match=r"is at step 12, within the last training.cooldown_steps=4",
        ):
            train("run", {**base, **first, **then}, None)
    else:
        assert train("run", {**base, **first, **then}, None).step == 16
