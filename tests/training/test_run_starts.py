"""What a run begins and continues with: scores, another run, lost checkpoints."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from training.little import (
    assert_trees_equal,
    little_config,
    read_checkpoint,
    read_records,
)

from jaxformer.checkpoints.saved import SavedCheckpoints
from jaxformer.data.vocabulary import Vocabularies
from jaxformer.errors import InputError
from jaxformer.runs.records import Validation, append
from jaxformer.training import train as training
from jaxformer.training.loop import Outcome
from jaxformer.training.run import open_run
from jaxformer.translation.translator import Translator


def test_a_vocabulary_of_another_size_names_the_run_that_has_it(
    corpus, straight, tmp_path
):
    changes = {"training.initial_run": str(straight), "data.vocabulary_size": 63}
    with pytest.raises(InputError) as error:
        open_run(little_config(corpus, changes), tmp_path / "run")
    named = f"data.vocabulary_size is 63 and {straight}/vocabulary/"
    assert str(error.value).startswith(named)
    assert "has 57 pieces: set" in str(error.value)


@pytest.mark.slow
def test_patience(train, tmp_path, capfd):
    """A run whose score gets no better ends after so many evaluations; the same command
    changes nothing, and more patience continues. Another score begins from nothing, and
    standard error says so.
    """
    same = lambda *_: lambda *_: Validation({"bleu": 1.0}, [])  # noqa: E731

    def run(patience, metric="bleu"):
        best = {"training.patience": patience, "evaluation.best_metric": metric}
        return train("run", {"training.evaluate_every": 2, **best}, same)

    assert run(2) == Outcome(6, finished=True, signal=None)
    before = read_records(tmp_path / "run")
    assert run(2) == Outcome(6, finished=True, signal=None)
    assert read_records(tmp_path / "run") == before
    assert run(3) == Outcome(8, finished=True, signal=None)
    assert run(1, "loss") == Outcome(12, finished=True, signal=None)
    assert (
        "evaluation.best_metric=loss is new: the best so far begins again from nothing"
        in capfd.readouterr().err
    )


def test_a_low_bleu_ends_no_run_whose_loss_falls(train, tmp_path, capfd):
    """The lowest loss is the best checkpoint while BLEU is below 1, and the log says
    so.
    """
    bleu = iter([0.5, *[0.0] * 11])

    def scores(*_):
        return lambda *_: Validation({"bleu": next(bleu)}, [])

    often = {"training.evaluate_every": 1, "training.checkpoint_every": 1}
    found = train("run", {**often, "training.patience": 2}, scores)
    assert found == Outcome(12, finished=True, signal=None)
    losses = [
        x["valid/nll"] for x in read_records(tmp_path / "run") if "valid/nll" in x
    ]
    best = SavedCheckpoints(tmp_path / "run" / "checkpoints").best()
    assert best == 1 + losses.index(min(losses)) > 2
    assert "BLEU is below 1: the best checkpoint has" in capfd.readouterr().err


def test_scores_of_two_validation_texts_are_never_compared(train, corpus, tmp_path):
    """A resumed run is refused on another validation text, with everything as it was,
    also where only a kept checkpoint was scored on it. The same text under another name
    is no other, and a score by the loss needs the same pairs only.
    """
    run, refusal = tmp_path / "run", r"is another text than .* scores of two texts do"
    train("run", {"training.steps": 6})
    saved = (run / "config.json").read_bytes()
    sides = corpus["data.valid"].removeprefix("text:").split(",")
    for number, side in enumerate(sides):
        lines = Path(side).read_text().splitlines(keepends=True)
        (tmp_path / f"same.{number}").write_text("".join(lines))
        (tmp_path / f"other.{number}").write_text("".join(lines[::-1]))
    other, same = (f"text:{tmp_path}/{x}.0,{tmp_path}/{x}.1" for x in ("other", "same"))
    for changes in ({"data.valid": other}, {"evaluation.max_sentences": 3}):
        with pytest.raises(InputError, match=refusal):
            train("run", changes)
        assert (run / "config.json").read_bytes() == saved
    by_loss = {"evaluation.best_metric": "loss", "evaluation.max_sentences": 0}
    train("run", {"training.steps": 7, "data.valid": same})
    train("run", {**by_loss, "training.keep_best": 3})
    assert "valid/bleu" not in read_records(run)[-1]
    record = run / "checkpoints" / "6" / "_CHECKPOINT_METADATA"
    content = json.loads(record.read_text())
    content["custom_metadata"]["valid"]["loss"] = "another"
    record.write_text(json.dumps(content))
    (record.parent / "checksums.json").unlink()
    with pytest.raises(InputError, match=refusal):
        train("run", {**by_loss, "training.steps": 18, "training.keep_best": 3})


@pytest.mark.parametrize("with_optimizer", [False, True])
def test_a_run_begins_with_another_one(
    train, tmp_path, straight, monkeypatch, with_optimizer
):
    """Its first parameters are the best of the other run, and its vocabulary too. The
    schedule begins at its first update, and so do the moments unless they are asked
    for.
    """
    begun = []
    monkeypatch.setattr(
        training,
        "run_loop",
        lambda parts, state, progress: begun.append(parts.engine.collect(state)),
    )
    changes = {"training.initial_optimizer": with_optimizer}
    train("run", {**changes, "training.initial_run": str(straight)}, None)
    best = read_checkpoint(straight, Translator.load(straight).checkpoint)
    assert_trees_equal(begun[0].params, best["params"])
    adam, *_, schedule = begun[0].optimizer
    assert int(schedule.count) == int(begun[0].step) == 0
    if with_optimizer:
        assert_trees_equal(adam, best["training"]["optimizer"][0])
    else:
        assert not any(leaf.any() for leaf in jax.tree.leaves(adam))
    models = (
        run / "vocabulary" / "shared.model" for run in (tmp_path / "run", straight)
    )
    assert next(models).read_bytes() == next(models).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    "tables", [["embedding"], ["source_embedding", "target_embedding"]], ids=len
)
def test_a_run_begins_with_word_vectors(train, tmp_path, monkeypatch, capfd, tables):
    """Tables and their average begin with the vectors of words, at the root mean square
    of the drawn table, and the log counts them; all else is as it is drawn. A run that
    continues does not read the file.
    """
    file, begun = tmp_path / "vectors.vec", []
    vectors = np.random.default_rng(0).normal(size=(2, 16)).astype(np.float32)
    lines = [" ".join(map(str, vector)) for vector in vectors.tolist()]
    file.write_text(f"2 16\na {lines[0]}\nf {lines[1]}\n")
    changes = {"training.ema_decay": 0.5, "training.steps": 4}
    if len(tables) == 2:
        changes |= {"model.tied_embeddings": "none", "data.shared_vocabulary": False}
    given = {**changes, "data.embeddings": str(file)}
    with monkeypatch.context() as patch:
        note = lambda parts, state, _: begun.append(parts.engine.collect(state))  # noqa: E731
        patch.setattr(training, "run_loop", note)
        train("plain", changes, None)
        train("run", given, None)
    said = capfd.readouterr().err
    plain, filled = (jax.tree.map(np.array, state) for state in begun)
    assert_trees_equal(filled.average, filled.params)
    sides = Vocabularies.load(tmp_path / "run" / "vocabulary")
    for table in tables:
        side = sides.target if table.startswith("target") else sides.source
        ids = [side.pieces(range(side.size)).index(piece) for piece in ("▁a", "▁f")]
        found, expected = (x.params.pop(table)["table"] for x in (filled, plain))
        factor = np.sqrt(np.mean(expected**2) / np.mean(vectors**2))
        expected[ids] = factor * vectors
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        assert f"2 of {side.size} rows of {table} are from {file}" in said
    assert_trees_equal(filled.params, plain.params)
    train("run", given, None)
    file.unlink()
    assert train("run", {**given, "training.steps": 6}, None).step == 6
    with pytest.raises(InputError, match="gives its own: leave one out"):
        train("next", {**given, "training.initial_run": str(tmp_path / "run")})


def test_a_run_whose_checkpoints_are_gone_does_not_begin_again(train, tmp_path):
    """What was scored or averaged came of checkpoints: without them the record of the
    run stays as it is. Without the folder of checkpoints any line proves that it is
    gone, with it one after the second save.
    """
    run, few = tmp_path / "run", {"training.steps": 2}
    record = run / "metrics.jsonl"
    train("run", few, None)
    shutil.rmtree(run / "checkpoints")
    before = record.read_bytes()

    def refused(message, changes=few):
        cure = "put .*/checkpoints back, or choose another"
        with pytest.raises(InputError, match=f"has {message}: {cure}"):
            train("run", changes, None)

    for kept in ("results.json", "averages", "curve.png"):
        (run / kept).mkdir()
        refused(f"{kept} of a run whose checkpoints are gone")
        (run / kept).rmdir()
    refused("the record of 2 steps and no checkpoint")
    assert record.read_bytes() == before
    (run / "checkpoints").mkdir()
    append(record, {"step": 3})
    often = {"training.evaluate_every": 1, "training.checkpoint_every": 1}
    refused("the record of 3 steps and no checkpoint", {**few, **often})
    assert record.read_bytes() == before + b'{"step": 3}\n'
    record.write_bytes(before)
    assert train("run", few, None).finished  # as one that was killed before it had one


def test_an_attention_backend_is_refused_before_any_text_is_read(train, tmp_path):
    changes = {"model.attention_backend": "pallas", "data.train": "text:is,missing"}
    with pytest.raises(InputError, match="pallas is for a TPU, and this is a CPU"):
        train("run", changes)
    assert not (tmp_path / "run").exists()
