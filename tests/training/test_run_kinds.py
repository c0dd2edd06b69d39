"""Runs of every objective get vocabularies, sizes and validation batches that fit."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kinds import OBJECTIVES, config_of_kind, run_config, write_data

from jaxformer.checkpoints.manager import CheckpointManager
from jaxformer.data.vocabulary import Vocabularies
from jaxformer.data.vocabulary_labels import LabelVocabulary
from jaxformer.errors import InputError
from jaxformer.models.make import make_model
from jaxformer.runs import config as configuration
from jaxformer.runs.folder import complete_config
from jaxformer.training.run import open_run, validation_batches
from jaxformer.training.state import create_state
from jaxformer.training.step import make_train_step
from jaxformer.training.train import largest_batch
from jaxformer.training.warm_start import load_initial

LABELS = {"labelled": 3, "scored": 1, "tagged": 2, "spans": 2}
TWO_SIDES = (*LABELS, "documents")


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("kinds"))


def config_of(names, kind, **options):
    return run_config(kind, names[kind], **options)


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_a_run_of_each_kind(tmp_path, names, kind):
    """The model's sizes are those of text and labels, also when it is opened again. The
    largest batch holds those of training, packed where rows can be; validation has
    each example once.
    """
    config = config_of(names, kind, packed_length=24)
    assert config.packs == (kind in ("text", "masked", "tagged"))
    with open_run(config, tmp_path / "run").claim():
        pass
    run = open_run(config, tmp_path / "run")
    model, text = run.config.model, run.vocabularies.source
    assert model == open_run(config, tmp_path / "run").config.model
    assert model.text_vocabulary_size == text.size == 250
    assert model.vocabulary_size == LABELS.get(kind, 250)
    assert (model.pad_id, model.bos_id) == (text.pad_id, text.bos_id)
    assert model.eos_id == (None if kind == "text" else text.eos_id)
    assert model.mask_id == (None if kind == "text" else text.mask_id)
    data = run.text.load(run.vocabularies, seed=0)
    largest = largest_batch(run.config, 1)
    batch, _ = next(data.batches())
    assert batch.keys() == largest.keys()
    assert all(largest[name][1] >= side.shape[1] for name, side in batch.items())
    side = "source" if kind in TWO_SIDES else "target"
    valid = validation_batches(run, data)
    assert len({batch[side].shape for batch in valid}) == 1
    examples = len(run.valid) if kind == "text" else len(data.store)
    numbers = [
        batch.get(f"{side}_segments", batch[side] != text.pad_id) for batch in valid
    ]
    assert sum(each.max(axis=1).sum() for each in numbers) == examples


@pytest.mark.parametrize("kind", ["masked", "documents"])
def test_batches_say_which_pieces_continue_a_word(tmp_path, names, kind):
    """Where whole words are masked; the step takes them, and validation does not, but
    numbers its rows.
    """
    run = open_run(config_of(names, kind, whole_words=True), tmp_path / "run")
    data = run.text.load(run.vocabularies, seed=0)
    batch, _ = next(data.batches())
    assert batch.keys() == largest_batch(run.config, 1).keys()
    side = batch.get("source", batch["target"])
    pieces = run.vocabularies.source.pieces(side.ravel())
    begins = [piece.startswith("▁") for piece in pieces]
    assert (batch["continues"].ravel() == 1 - np.array(begins)).all()
    valid = validation_batches(run, data)
    assert "continues" not in valid[0]
    texts = [each.get("source", each["target"]) for each in valid]
    real = [(text != run.vocabularies.source.pad_id).any(axis=1) for text in texts]
    rows = [batch["row"][own, 0] for batch, own in zip(valid, real, strict=True)]
    assert sorted(np.concatenate(rows)) == [*range(len(data.store))]
    model = make_model(run.config.model)
    step = jax.jit(make_train_step(model, run.config.training))
    _, metrics = step(create_state(model, run.config.training), batch)
    assert metrics["tokens"] > 0


def test_validation_in_windows(tmp_path, names):
    """Every token is in one window, as long as those of training, which fill rows."""
    run = open_run(config_of(names, "text", window=16), tmp_path / "run")
    data = run.text.load(run.vocabularies, seed=0)
    valid = validation_batches(run, data)
    assert {batch["target"].shape[1] for batch in valid} == {16}
    assert {bucket.target_length for bucket in data.buckets} == {16}
    real = sum(int((batch["target"] != 0).sum()) for batch in valid)
    assert real == len(data.store.target.tokens)
    assert largest_batch(run.config, 1)["target"][1] == 16


def save(config, directory):
    """Write a run and a checkpoint of it."""
    with open_run(config, directory).claim():
        run = open_run(config, directory)
    params = {"x": jnp.zeros(3)}
    checkpoints = CheckpointManager(directory / "checkpoints", keep_latest=1)
    record = {"vocabulary": run.vocabularies.hash}
    checkpoints.save(1, params, {"step": jnp.int32(1)}, record, None)
    checkpoints.close()
    return run, params


def test_labels_begin_with_the_text_of_another_run(tmp_path, names):
    """Its vocabulary and its frame are kept. A run with other labels begins with that
    one in turn; one with another vocabulary does not.
    """
    first, params = save(config_of(names, "masked"), tmp_path / "masked")
    begun = {"training": {"initial_run": str(tmp_path / "masked")}}
    config = config_of(names, "labelled", **begun)
    second, _ = save(config, tmp_path / "labelled")
    assert second.vocabularies.source == first.vocabularies.source
    assert second.vocabularies.template == first.vocabularies.template
    begun = {"training": {"initial_run": str(tmp_path / "labelled")}}
    third = open_run(config_of(names, "tagged", **begun), tmp_path / "tagged")
    assert third.vocabularies.labels.labels == ("B-X", "O")
    for run in (second, third):
        both, training = run.vocabularies, run.config.training
        given = training, both.hash, params, None
        found = load_initial(*given, text=both.text_hash)
        np.testing.assert_array_equal(found.params["x"], params["x"])
        with pytest.raises(InputError, match="has another vocabulary"):
            load_initial(*given)
        with pytest.raises(InputError, match="has another vocabulary"):
            load_initial(*given, text="0" * 64)
    assert configuration.load(tmp_path / "labelled" / "config.json") == second.config


@pytest.mark.parametrize("kind", ["labelled", "tagged"])
def test_one_label_is_no_class(tmp_path, names, kind):
    """It is refused before anything is written."""
    run = open_run(config_of(names, kind), tmp_path / "run")
    one = Vocabularies(run.vocabularies.source, LabelVocabulary.from_labels(["a"]))
    with pytest.raises(InputError, match="needs two labels or more, not 1: name them"):
        complete_config(run.config, one)


def test_kinds_fit_objectives(names):
    masked = config_of(names, "masked")
    other = config_of_kind("text", names["text"])
    with pytest.raises(InputError, match=r"objective=masked needs data\.kind=masked"):
        dataclasses.replace(masked, data=other)
