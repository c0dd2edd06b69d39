"""Whole little runs in this process: what they record, and that interruptions leave
no trace.
"""

import dataclasses
import math
import os
import shutil
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from training.little import (
    assert_same_run,
    assert_trees_equal,
    cached_make_engine,
    compiling,
    read_checkpoint,
    read_records,
    score,
    steps_of,
)

from jaxformer.checkpoints.saved import SavedCheckpoints
from jaxformer.data.pipeline import TrainingData
from jaxformer.data.sources import load
from jaxformer.errors import InputError
from jaxformer.evaluation.evaluate import make_validator
from jaxformer.training import loop
from jaxformer.training import train as training
from jaxformer.training.engines import make_engine
from jaxformer.training.loop import Outcome
from jaxformer.translation.translator import Translator

FINISHED = Outcome(12, finished=True, signal=None)
# No evaluation or checkpoint before the last step.
PLAIN = {"training.evaluate_every": 100, "training.checkpoint_every": 100}


@pytest.fixture
def on_step(monkeypatch):
    """Return a function that installs what is done after each update of a run; it is
    given the number of updates in this call and their metrics, which it may replace.
    """

    def install(act):
        class Watched:
            def __init__(self, engine):
                self._engine, self._made = engine, 0

            def __getattr__(self, name):
                return getattr(self._engine, name)

            def step(self, state, batch):
                state, metrics = self._engine.step(state, batch)
                self._made += 1
                return state, act(self._made, metrics) or metrics

        monkeypatch.setattr(
            training, "make_engine", lambda *parts: Watched(cached_make_engine(*parts))
        )

    return install


def interrupt(number=signal.SIGTERM):
    os.kill(os.getpid(), number)


def test_the_record(corpus, straight):
    """A line of training at each ``log_every`` and one of validation at each
    ``evaluate_every``, in order, with the rate of the schedule and the perplexity of
    the unsmoothed loss. The test set, which cannot be read, is not.
    """
    record = read_records(straight)
    lines = [(line["step"], "valid/nll" in line) for line in record]
    training_lines = [(step, False) for step in (3, 6, 9, 12)]
    assert lines == sorted([*training_lines, (6, True), (12, True)])
    for line in record:
        side = "valid" if "valid/nll" in line else "train"
        perplexity = pytest.approx(math.exp(line[f"{side}/nll"]), rel=1e-12)
        assert line[f"{side}/perplexity"] == perplexity
        smoothed = "train/loss" if side == "train" else "valid/smoothed_loss"
        assert line[smoothed] != line[f"{side}/nll"]
        if side == "train":
            rate = 0.5 * 16**-0.5 * line["step"] * 20**-1.5
            assert line["train/learning_rate"] == pytest.approx(rate, rel=1e-5)
    samples = read_records(straight, "samples.jsonl")
    assert [sample["step"] for sample in samples] == [6, 12]
    assert samples[0]["source"] == samples[1]["source"]
    with pytest.raises(InputError, match="not UTF-8"):
        list(load(corpus["data.test"], "en", "de"))


def test_validation_is_over_every_sentence_once(corpus, straight):
    """The validation loss, from batches whose last one is not full, is the mean over
    the tokens of all sentences scored one by one.
    """
    pairs = list(load(corpus["data.valid"], "en", "de"))
    translator = Translator.load(straight, "12")
    translator.decoding = dataclasses.replace(translator.decoding, batch_size=1)
    scores = translator.score(pairs)
    nll = -sum(score.log_probability for score in scores)
    expected = nll / sum(score.tokens for score in scores)
    found = read_records(straight)[-1]["valid/nll"]
    assert found == pytest.approx(expected, rel=1e-5)


def test_the_validation_set_is_translated(train, corpus, tmp_path):
    """The real validator scores trees where they choose the best; a validation text
    without trees is refused before training.
    """
    best = {"evaluation.best_metric": "f1", "training.steps": 2}
    with pytest.raises(InputError, match="reference 1 is"):
        train("none", best, make_validator)
    source = Path(corpus["data.valid"].removeprefix("text:").split(",")[0])
    trees = tmp_path / "trees"
    trees.write_text("(S XX )S\n" * len(source.read_text().splitlines()))
    known = []  # the vocabulary knows the letters of trees
    for path in corpus["data.train"].removeprefix("text:").split(","):
        known.append(tmp_path / Path(path).name)
        known[-1].write_text(Path(path).read_text() + "(S XX )S\n" * 9)
    # Another model: its engine, with other shapes, is not that of other tests.
    changes = {**best, "data.valid": f"text:{source},{trees}", "model.d_ff": 24}
    changes["data.train"] = f"text:{known[0]},{known[1]}"
    train("run", changes, make_validator)
    last = read_records(tmp_path / "run")[-1]
    assert last["valid/f1"] == 0.0  # what it writes is no tree
    assert {"valid/bleu", "valid/chrf"} <= last.keys()
    assert len(read_records(tmp_path / "run", "samples.jsonl")) == 2
    assert SavedCheckpoints(tmp_path / "run" / "checkpoints", "f1").best() == 2


def test_evaluations_and_saves_change_nothing(train, tmp_path, straight):
    """Evaluations, checkpoints and logs at other steps leave the parameters the same,
    bit for bit.
    """
    often = {"training.evaluate_every": 5, "training.log_every": 1}
    often |= {"training.checkpoint_every": 6, "training.keep_every": 6}
    train("often", {**often, "training.steps": 24})
    train("rarely", {**PLAIN, "training.steps": 6}, None)
    for run, step in ((straight, 12), (tmp_path / "rarely", 6)):
        often_there = read_checkpoint(tmp_path / "often", step)
        assert_trees_equal(often_there, read_checkpoint(run, step))
    assert read_records(tmp_path / "often")[-2]["train/epoch"] == 1.0


@pytest.mark.parametrize(
    "engine", ["jit", pytest.param("pmap", marks=pytest.mark.slow)]
)
def test_a_run_compiles_three_programs(engine, train, monkeypatch):
    """What draws the state, the training step and the evaluation step, each once, and
    nothing else however many epochs and evaluations there are.
    """
    monkeypatch.setattr(training, "make_engine", make_engine)
    with compiling() as names:
        train("run", {"training.engine": engine, "training.steps": 24}, None)
    steps = ["eval_step", "train_step"] if engine == "jit" else ["_fun"] * 2
    assert sorted(names) == sorted(f"jit({name})" for name in ["first_state", *steps])


# Interruptions.


@pytest.mark.parametrize(
    "engine", ["jit", pytest.param("pmap", marks=pytest.mark.slow)]
)
def test_stopped_at_many_steps_and_resumed(train, on_step, tmp_path, straight, engine):
    """Stopped by a signal after every few updates and started again, the run ends with
    the same bits, dropout and order of the data included, and the same records; also on
    eight devices. Once it is finished the same command changes nothing.
    """
    changes, reference = {}, straight
    stops, last = {1: 1, 2: 3, 3: 6}, 12
    if engine == "pmap":
        stops, last, reference = {5: 5}, 6, tmp_path / "straight"
        changes = {"training.engine": engine, "training.steps": last}
        train("straight", changes)
    for stop, step in stops.items():
        on_step(lambda made, _, stop=stop: interrupt() if made == stop else None)
        assert train("run", changes) == Outcome(step, finished=False, signal="SIGTERM")
        assert steps_of(tmp_path / "run")[-1] == step
    on_step(lambda made, _: None)
    for _ in range(min(len(stops), 2)):
        assert train("run", changes) == Outcome(last, finished=True, signal=None)
        assert_same_run(tmp_path / "run", reference)


def test_stopped_in_an_evaluation(train, tmp_path, straight, monkeypatch):
    """A signal during an evaluation, also the last one, ends the run after saving; the
    same command makes the evaluation up before it continues. What was written before a
    kill is not written twice.
    """
    run = tmp_path / "run"

    def interrupted(lines):
        def validate(*given):
            if len(read_records(run)) == lines:
                interrupt(signal.SIGINT)
            return score(*made)(*given)

        made = []
        return lambda *parts: made.extend(parts) or validate

    class Killed(BaseException):
        pass

    def kill(*_):
        raise Killed

    for step, lines in ((6, 2), (12, 5)):
        assert train("run", None, interrupted(lines)) == Outcome(step, False, "SIGINT")
        assert steps_of(run)[-1] == step
        last = read_records(run)[-1]
        assert (last["step"], "valid/nll" in last) == (step, False)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "save", kill)
        with pytest.raises(Killed):
            train("run")
    assert "valid/nll" in read_records(run)[-1]
    assert train("run") == FINISHED
    assert_same_run(run, straight)


def test_a_signal_ends_the_wait_for_a_batch(train, tmp_path, monkeypatch):
    """A run that waits for a batch that never comes can be stopped, and what was
    trained is saved.
    """
    batches = TrainingData.batches

    def stuck(self, *given, **named):
        for number, item in enumerate(batches(self, *given, **named)):
            if number == 5:
                threading.Timer(0.2, interrupt).start()
                time.sleep(60.0)
            yield item

    monkeypatch.setattr(TrainingData, "batches", stuck)
    begun = time.monotonic()
    assert train("run", {}, None) == Outcome(5, finished=False, signal="SIGTERM")
    assert time.monotonic() - begun < 50.0
    assert steps_of(tmp_path / "run")[-1] == 5


# Bad steps.


def test_bad_steps(train, tmp_path, straight, on_step, capfd):
    """A step without a finite loss is counted, its batch is kept, and the means of the
    log leave it out. Too many in a row stop the run with one line; it continues from
    the last good checkpoint.
    """
    run, bad = tmp_path / "run", dict.fromkeys(("loss", "nll", "gradient_norm"), np.nan)
    on_step(
        lambda made, metrics: (
            {**metrics, **bad, "skipped": np.float32(1.0)}
            if made in (2, 8, 9, 10)
            else None
        )
    )
    diverged = r"^3 steps in a row up to step 10 had no finite .*training diverged"
    with pytest.raises(InputError, match=diverged):
        train("run", {"training.max_bad_steps": 3})
    first = read_records(run)[0]
    assert first["train/skipped"] == 1.0
    assert 1.0 < first["train/loss"] < math.inf
    files = [f"step-{step}.npz" for step in (10, 2, 8, 9)]
    assert sorted(path.name for path in (run / "bad_batches").iterdir()) == files
    with np.load(run / "bad_batches" / "step-2.npz") as batch:
        assert {"source", "target"} <= set(batch)
    line = "step 2 is skipped: its loss is nan and its gradient norm nan; its batch is"
    kept = run / "bad_batches" / "step-2.npz"
    assert f"{line} kept in {kept}\n" in capfd.readouterr().err
    assert steps_of(run)[-1] == 8
    shutil.rmtree(run / "checkpoints" / "8")
    on_step(lambda made, _: None)
    assert train("run") == FINISHED
    assert_trees_equal(read_checkpoint(run, 12), read_checkpoint(straight, 12))


def test_float16_without_an_update(train, tmp_path, capfd):
    """Where every step since the last line of the log is skipped, a line says so, and
    the log has its latest loss scale.
    """
    changes = {"model.dtype": "float16", "training.loss_scale": 2.0**40}
    changes |= {"training.steps": 3, "training.log_every": 2, **PLAIN}
    assert train("run", changes, None).finished
    lines = [line for line in read_records(tmp_path / "run") if "train/skipped" in line]
    assert [line["train/skipped"] for line in lines] == [2.0, 1.0]
    assert [line["train/loss_scale"] for line in lines] == [2.0**39, 2.0**38]
    shown = capfd.readouterr().err
    for step, scale in ((2, 2.0**39), (3, 2.0**38)):
        line = f"step {step}: no step since the last line updated the parameters, at"
        assert f"{line} a loss scale that is down to {scale:g};" in shown


@pytest.mark.slow
def test_float16_and_a_profile(train, tmp_path):
    """Lost steps are no bad steps, the scale is in the log, and the trace is where the
    line says.
    """
    changes = {"model.dtype": "float16", "training.loss_scale": 2.0**30}
    changes |= {"training.max_bad_steps": 1, "training.profile_step": 2}
    assert train("run", {**changes, **PLAIN}, None).finished
    run = tmp_path / "run"
    lines = [line for line in read_records(run) if "train/skipped" in line]
    assert lines[0]["train/skipped"] > 0.0
    assert lines[-1]["train/loss_scale"] < 2.0**30
    assert list((run / "profile").rglob("*.xplane.pb"))
    assert not (run / "bad_batches").exists()
