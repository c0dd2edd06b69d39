"""Whole little runs in this process: what they record, and that interruptions leave
no trace.
"""

import dataclasses
import json
import math
import os
import shutil
import signal
from pathlib import Path

import jax
import numpy as np
import pytest
from training.little import (
    LITTLE_RUN,
    assert_same_run,
    assert_trees_equal,
    cached_make_engine,
    read_checkpoint,
    read_records,
    steps_of,
)

from jaxformer.checkpoints.saved import SavedCheckpoints
from jaxformer.data.sources import load
from jaxformer.errors import InputError
from jaxformer.evaluation.evaluate import make_validator
from jaxformer.training import loop
from jaxformer.training import train as training
from jaxformer.training.engines import make_engine
from jaxformer.training.loop import Outcome
from jaxformer.training.schedules import paper_schedule
from jaxformer.translation.translator import Translator


@pytest.fixture(autouse=True)
def _engines(monkeypatch):
    monkeypatch.setattr(training, "make_engine", cached_make_engine)


@pytest.fixture
def on_step(monkeypatch):
    """Return a function that has something done after each update; it is given the
    number of updates in this call.
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


# What a run records.


def test_the_record_is_complete(straight):
    """A line of training at each ``log_every``, one of validation at each
    ``evaluate_every``, in order.
    """
    lines = [(line["step"], "valid/nll" in line) for line in read_records(straight)]
    assert lines == [
        (3, False),
        (6, False),
        (6, True),
        (9, False),
        (12, False),
        (12, True),
    ]
    samples = read_records(straight, "samples.jsonl")
    assert [sample["step"] for sample in samples] == [6, 6, 12, 12]
    assert {frozenset(sample) for sample in samples} == {
        frozenset({"step", "source", "reference", "translation"})
    }
    assert samples[0]["source"] == samples[2]["source"]


def test_perplexity_is_that_of_the_plain_loss(straight):
    """Perplexity is exp of the mean unsmoothed loss a token; the smoothed loss has a
    name of its own.
    """
    for line in read_records(straight):
        side = "valid" if "valid/nll" in line else "train"
        assert line[f"{side}/perplexity"] == pytest.approx(
            math.exp(line[f"{side}/nll"]), rel=1e-12
        )
        assert (
            line["train/loss" if side == "train" else "valid/smoothed_loss"]
            != line[f"{side}/nll"]
        )


def test_rates_are_those_of_the_schedule(straight):
    """The logged rate is the one of the update that was just made."""
    schedule = paper_schedule(16, 20, 0.5)
    for line in read_records(straight):
        if "train/loss" in line:
            assert line["train/learning_rate"] == pytest.approx(
                float(schedule(line["step"] - 1)), rel=1e-6
            )
            assert line["train/learning_rate"] == pytest.approx(
                0.5 * 16**-0.5 * line["step"] * 20**-1.5, rel=1e-5
            )


def test_tokens_are_counted_without_padding(corpus, train, on_step, tmp_path):
    """The tokens of the log, and of the speed, are the real target tokens of its
    batches.
    """
    counted = []

    def count(made, metrics):
        counted.append(float(metrics["tokens"]))

    on_step(count)
    train("run", {"training.steps": 6})
    lines = [line for line in read_records(tmp_path / "run") if "train/tokens" in line]
    assert [line["train/tokens"] for line in lines] == [
        sum(counted[:3]),
        sum(counted[3:]),
    ]
    assert 0 < max(counted) <= LITTLE_RUN["data.tokens_per_batch"]
    pairs = list(load(corpus["data.train"], "en", "de"))
    # a token a letter, and the end
    assert sum(counted) < sum(len(pair.target.split()) + 1 for pair in pairs)


def test_validation_is_over_every_sentence_once(corpus, straight):
    """The validation loss, from batches whose last one is not full, is the mean over
    the tokens of all sentences scored one by one.
    """
    pairs = list(load(corpus["data.valid"], "en", "de"))
    translator = Translator.load(straight, "12")
    translator.decoding = dataclasses.replace(translator.decoding, batch_size=1)
    scores = translator.score(pairs)
    nll = -sum(score.log_probability for score in scores) / sum(
        score.tokens for score in scores
    )
    (found,) = [
        line["valid/nll"]
        for line in read_records(straight)
        if "valid/nll" in line and line["step"] == 12
    ]
    assert found == pytest.approx(nll, rel=1e-5)


def test_each_shape_is_compiled_once(train, monkeypatch):
    """A run over several epochs compiles its step once for each bucket."""
    made = []

    def remember(*parts):
        made.append(make_engine(*parts))  # no other test has had it
        return made[0]

    monkeypatch.setattr(training, "make_engine", remember)
    train(
        "run", {"training.steps": 50, "training.evaluate_every": 1_000}, validator=None
    )
    assert made[0].compilations() == LITTLE_RUN["data.num_buckets"]


def test_metrics_are_read_a_step_late(train, monkeypatch, on_step):
    """A step is made while the host gets the next batch. At a line of the log, and
    after a step that compiled, everything is read.
    """
    done = []
    add = loop.Meter.add

    def measured(meter, tokens, batch):
        done.append("measured")
        add(meter, tokens, batch)

    monkeypatch.setattr(loop.Meter, "add", measured)
    on_step(lambda step, metrics: done.append("made"))
    train(
        "run",
        {
            "training.steps": 6,
            "training.log_every": 4,
            "training.evaluate_every": 6,
            "data.num_buckets": 1,
        },
        validator=None,
    )
    at_once, late = ["made", "measured"], ["made", "made", "measured"]
    assert done == [*at_once, *late, "made", "measured", "measured", *late, "measured"]


# Evaluation leaves no trace in what is trained.


def test_evaluation_changes_nothing(train, tmp_path, straight):
    """Evaluations, checkpoints and logs at other steps leave the parameters the
    same, bit for bit.
    """
    often = {
        "training.evaluate_every": 2,
        "training.checkpoint_every": 1,
        "training.log_every": 1,
    }
    rarely = {
        "training.evaluate_every": 1_000,
        "training.checkpoint_every": 1_000,
        "training.log_every": 1_000,
    }
    for name, changes, validator in (
        ("often", often, make_validator),
        ("rarely", rarely, None),
    ):
        train(name, changes, validator)
        assert_trees_equal(
            read_checkpoint(tmp_path / name, 12), read_checkpoint(straight, 12)
        )


def test_the_test_set_is_not_touched(corpus, straight):
    """The little run names a test set that cannot be read: nobody reads it, and it
    chooses nothing.
    """
    with pytest.raises(InputError, match="not UTF-8"):
        list(load(corpus["data.test"], "en", "de"))
    assert steps_of(straight)[-1] == 12
    assert not any(
        name.startswith("test/") for line in read_records(straight) for name in line
    )


# Interruptions.


@pytest.mark.parametrize(
    "engine", ["jit", pytest.param("pmap", marks=pytest.mark.slow)]
)
def test_stopped_at_many_steps_and_resumed(train, on_step, tmp_path, straight, engine):
    """Stopped by a signal after every few updates and started again, the run ends with
    the same bits, dropout and order of the data included, and the same records; also on
    eight devices.
    """
    changes = {"training.engine": engine}
    reference = straight
    if engine == "pmap":
        changes["data.num_buckets"] = 1  # one shape to compile
        reference = tmp_path / "straight"
        train("straight", changes)
    stops = iter([1, 2, 3, 5])
    expected = iter([1, 3, 6, 11])
    while True:
        stop = next(stops, None)
        on_step(lambda made, metrics, stop=stop: interrupt() if made == stop else None)
        outcome = train("run", changes)
        if stop is None:
            break
        assert outcome == Outcome(next(expected), finished=False, signal="SIGTERM")
        assert steps_of(tmp_path / "run")[-1] == outcome.step
    assert outcome == Outcome(12, finished=True, signal=None)
    assert_same_run(tmp_path / "run", reference)


@pytest.mark.parametrize("step", [6, 12])
def test_stopped_in_an_evaluation(train, tmp_path, straight, step):
    """A signal during an evaluation, also the last one, ends the run after saving; the
    same command makes the evaluation up before it goes on.
    """

    def make(run, model):
        validate = make_validator(run, model)

        def interrupted(params, stop):
            if len(read_records(tmp_path / "run")) == {6: 2, 12: 5}[step]:
                interrupt(signal.SIGINT)
            return validate(params, stop)

        return interrupted

    assert train("run", validator=make) == Outcome(
        step, finished=False, signal="SIGINT"
    )
    assert steps_of(tmp_path / "run")[-1] == step
    assert read_records(tmp_path / "run")[-1]["step"] == step
    assert "valid/nll" not in read_records(tmp_path / "run")[-1]
    assert train("run") == Outcome(12, finished=True, signal=None)
    assert_same_run(tmp_path / "run", straight)
    assert (
        Translator.load(tmp_path / "run").checkpoint
        == Translator.load(straight).checkpoint
    )


def test_killed_while_an_evaluation_is_made_up(
    train, tmp_path, straight, monkeypatch, on_step
):
    """What a made-up evaluation has written before its checkpoint was saved is not
    written twice.
    """
    on_step(lambda made, metrics: interrupt() if made == 6 else None)
    assert not train("run").finished
    on_step(lambda made, metrics: None)

    class Killed(BaseException):
        pass

    def kill(parts, state, progress):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(loop, "save", kill)
        with pytest.raises(Killed):
            train("run")
    assert "valid/nll" in read_records(tmp_path / "run")[-1]
    assert train("run").finished
    assert_same_run(tmp_path / "run", straight)


def test_a_finished_run_stays_as_it_is(train, tmp_path, straight):
    """The same command on a finished run trains nothing and writes nothing more."""
    train("run")
    assert train("run") == Outcome(12, finished=True, signal=None)
    assert_same_run(tmp_path / "run", straight)


def test_fewer_steps_than_made_are_refused(train, tmp_path):
    """Nothing that is saved changes; as many as were made are a finished run."""
    train("run", {"training.steps": 8})
    before = (tmp_path / "run" / "config.json").read_bytes()
    with pytest.raises(InputError) as caught:
        train("run", {"training.steps": 7})
    assert (
        str(caught.value)
        == f"training.steps=7 is less than the 8 steps that {tmp_path / 'run'} has"
        " made: ask for as many at least, or choose another --workdir"
    )
    assert (tmp_path / "run" / "config.json").read_bytes() == before
    assert train("run", {"training.steps": 8}) == Outcome(8, finished=True, signal=None)


def test_an_extended_run_equals_a_long_one(train, tmp_path, straight):
    """A run of 8 steps that is given 12 ends with the parameters of one that had 12
    from the start.
    """
    train("run", {"training.steps": 8})
    assert train("run").step == 12
    assert_trees_equal(
        read_checkpoint(tmp_path / "run", 12), read_checkpoint(straight, 12)
    )


def test_a_bad_step_is_skipped_and_kept(train, tmp_path, on_step, capfd):
    """A step without a finite loss is counted, its batch is kept, the log's means
    leave it out, and the run goes on.
    """
    bad = {name: np.float32(np.nan) for name in ("loss", "nll", "gradient_norm")}
    on_step(
        lambda made, metrics: (
            {**metrics, **bad, "skipped": np.float32(1.0)} if made in (7, 8) else None
        )
    )
    assert train("run", {"training.max_bad_steps": 3}).finished
    line = next(line for line in read_records(tmp_path / "run") if line["step"] == 9)
    assert line["train/skipped"] == 2.0
    assert math.isfinite(line["train/loss"])
    assert line["train/loss"] > 1.0
    told = capfd.readouterr().err
    for step in (7, 8):
        file = tmp_path / "run" / "bad_batches" / f"step-{step}.npz"
        assert (
            f"step {step} is skipped: its loss is nan and its gradient norm nan; its"
            f" batch is kept in {file}\n" in told
        )
        with np.load(file) as batch:
            assert set(batch) == {"source", "target"}
    assert sorted(
        path.name for path in (tmp_path / "run" / "bad_batches").iterdir()
    ) == ["step-7.npz", "step-8.npz"]


def test_a_diverged_run_stops(train, tmp_path, straight, on_step):
    """Too many bad steps in a row stop the run with one line; the last good checkpoint
    is there, and from it the run goes on.
    """
    bad = {name: np.float32(np.nan) for name in ("loss", "nll", "gradient_norm")}
    on_step(
        lambda made, metrics: (
            {**metrics, **bad, "skipped": np.float32(1.0)} if made > 7 else None
        )
    )
    with pytest.raises(
        InputError,
        match=r"^3 steps in a row up to step 10 had no finite .*training diverged",
    ) as caught:
        train("run", {"training.max_bad_steps": 3})
    assert "\n" not in str(caught.value)
    assert steps_of(tmp_path / "run")[-1] == 8
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "8")
    on_step(lambda made, metrics: None)
    assert train("run").finished
    assert_same_run(tmp_path / "run", straight)


def test_an_absurd_rate_diverges(train, tmp_path):
    """With a learning rate of 1e30 no update after the first few has a finite loss;
    they are not made, and every checkpoint that is there is finite.
    """
    changes = {
        "training.learning_rate": 1e30,
        "training.max_bad_steps": 4,
        "training.checkpoint_every": 1,
    }
    with pytest.raises(
        InputError, match=r"^4 steps in a row up to step \d+ had no finite loss"
    ):
        train("run", {**changes, "data.num_buckets": 1})
    for step in steps_of(tmp_path / "run"):
        assert all(
            np.isfinite(leaf).all()
            for leaf in jax.tree.leaves(read_checkpoint(tmp_path / "run", step))
        )


def test_patience(train, tmp_path):
    """A run whose score gets no better ends after so many evaluations, with its best
    checkpoint kept; the same command changes nothing, and more patience goes on.
    """
    changes = {
        "training.patience": 2,
        "training.learning_rate": 1e-9,
        "training.evaluate_every": 2,
        "evaluation.best_metric": "bleu",
    }
    assert train("run", changes) == Outcome(6, finished=True, signal=None)
    before = read_records(tmp_path / "run")
    assert train("run", changes) == Outcome(6, finished=True, signal=None)
    assert read_records(tmp_path / "run") == before
    assert train("run", {**changes, "training.patience": 3}) == Outcome(
        8, finished=True, signal=None
    )


def test_saving_does_not_race_with_training(train, tmp_path):
    """Checkpoints of every step, saved while the next updates reuse the memory, are
    those of runs of that length.
    """
    train(
        "every",
        {
            "training.checkpoint_every": 1,
            "training.keep_latest": 12,
            "training.evaluate_every": 1_000,
        },
        None,
    )
    assert steps_of(tmp_path / "every") == list(range(1, 13))
    for step in (1, 5):
        train(f"of{step}", {"training.steps": step}, None)
        assert_trees_equal(
            read_checkpoint(tmp_path / "every", step),
            read_checkpoint(tmp_path / f"of{step}", step),
        )


def test_scores_of_two_validation_texts_are_never_compared(train, corpus, tmp_path):
    """A resumed run is refused on another validation text, with everything as it was,
    and goes on with the same text under another name.
    """
    train("run", {"training.steps": 6})
    saved = (tmp_path / "run" / "config.json").read_bytes()
    sides = corpus["data.valid"].removeprefix("text:").split(",")
    for number, side in enumerate(sides):
        lines = Path(side).read_text().splitlines(keepends=True)
        (tmp_path / f"same.{number}").write_text("".join(lines))
        (tmp_path / f"longer.{number}").write_text("".join(lines[::-1]))
    longer, same = (
        f"text:{tmp_path}/{name}.0,{tmp_path}/{name}.1" for name in ("longer", "same")
    )
    for changes in ({"data.valid": longer}, {"evaluation.max_sentences": 3}):
        with pytest.raises(
            InputError,
            match=(
                r"is another text than .* was evaluated on, and scores of two texts"
                r" do not"
            ),
        ):
            train("run", {"training.steps": 12, **changes})
        assert (tmp_path / "run" / "config.json").read_bytes() == saved
    train("run", {"training.steps": 7, "data.valid": same})
    train(
        "run",
        {
            "training.steps": 12,
            "evaluation.best_metric": "loss",
            "evaluation.max_sentences": 3,
        },
    )


def test_kept_checkpoints_of_another_validation_text_are_found(train, tmp_path):
    """Every checkpoint that the next best is compared with counts, not only the
    latest.
    """
    train(
        "run",
        {
            "training.evaluate_every": 6,
            "training.checkpoint_every": 6,
            "training.keep_best": 2,
        },
    )
    folder = tmp_path / "run" / "checkpoints" / "6"
    record = json.loads((folder / "_CHECKPOINT_METADATA").read_text())
    record["custom_metadata"]["valid"] = dict.fromkeys(
        record["custom_metadata"]["valid"], "another"
    )
    (folder / "_CHECKPOINT_METADATA").write_text(json.dumps(record))
    (folder / "checksums.json").unlink()
    with pytest.raises(InputError, match="scores of two texts do not"):
        train("run", {"training.steps": 18, "training.keep_best": 2})


def test_the_best_checkpoint_by_f1(train, corpus, tmp_path):
    """Trees are scored at each evaluation, and a validation text without trees is
    refused before training.
    """
    changes = {
        "training.steps": 2,
        "training.evaluate_every": 2,
        "evaluation.best_metric": "f1",
    }
    with pytest.raises(InputError, match="reference 1 is"):
        train("none", changes)
    source = Path(corpus["data.valid"].removeprefix("text:").split(",")[0])
    trees = tmp_path / "trees"
    trees.write_text("(S XX )S\n" * len(source.read_text().splitlines()))
    train("run", {**changes, "data.valid": f"text:{source},{trees}"})
    record = [each for each in read_records(tmp_path / "run") if "valid/f1" in each]
    assert [each["valid/f1"] for each in record] == [0.0]  # what it writes is no tree
    assert SavedCheckpoints(tmp_path / "run" / "checkpoints", "f1").best() == 2


def test_another_best_metric_begins_from_nothing(train, tmp_path, capfd):
    """Patience and best score of a resumed run are those of the score that it asks
    for, and standard error says so.
    """
    train("run", {"training.steps": 6, "evaluation.best_metric": "bleu"})
    changes = {
        "training.steps": 12,
        "training.patience": 1,
        "evaluation.best_metric": "loss",
    }
    assert train("run", changes).step == 12
    assert (
        "evaluation.best_metric=loss is new: the best so far begins again from nothing"
        in capfd.readouterr().err
    )
