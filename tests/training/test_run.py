"""The directory of a run belongs to one configuration, one text and one vocabulary."""

import contextlib
import errno
import shutil
import tempfile
from pathlib import Path

import pytest
from training.little import cached_make_engine, little_config, read_records, steps_of

from jaxformer.data.sources import load
from jaxformer.data.vocabulary import Vocabularies, Vocabulary
from jaxformer.errors import InputError
from jaxformer.runs.folder import WRITTEN
from jaxformer.training import train as training
from jaxformer.training.run import open_run


@pytest.fixture(autouse=True)
def _engines(monkeypatch):
    monkeypatch.setattr(training, "make_engine", cached_make_engine)


def claimed(config, directory):
    """Open a run and take the directory for it, as training does once everything is
    checked.
    """
    run = open_run(config, directory)
    with run.claim():
        pass
    return run


@pytest.fixture
def refused(corpus, tmp_path):
    """Return a function that expects a run to be refused and returns the one line."""

    def refuse(changes=None, start=open_run, name="run"):
        with pytest.raises(InputError) as caught:
            start(little_config(corpus, changes), tmp_path / name)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return refuse


def test_the_vocabulary_completes_the_model(corpus, tmp_path):
    """The model's vocabulary and ids are the vocabulary's, and so it is saved."""
    run = claimed(little_config(corpus), tmp_path / "run")
    vocabulary = run.vocabularies.target
    model = run.config.model
    assert (model.vocabulary_size, model.pad_id, model.bos_id) == (
        57,
        vocabulary.pad_id,
        vocabulary.bos_id,
    )
    assert claimed(little_config(corpus), tmp_path / "run").config == run.config
    assert claimed(run.config, tmp_path / "run").config == run.config


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model.d_ff", 64, "model.d_ff: 32 -> 64"),
        ("training.seed", 1, "training.seed: 0 -> 1"),
        ("training.learning_rate", 0.25, "training.learning_rate: 0.5 -> 0.25"),
        ("data.tokens_per_batch", 300, "data.tokens_per_batch: 200 -> 300"),
    ],
)
def test_a_directory_of_another_configuration(
    corpus, tmp_path, refused, key, value, message
):
    """Another configuration is refused with one line that names key, old and new
    value.
    """
    claimed(little_config(corpus), tmp_path / "run")
    before = (tmp_path / "run" / "config.json").read_bytes()
    assert (
        refused({key: value})
        == f"{tmp_path / 'run'} holds a run of another configuration: {message}; "
        "continue with the same values or choose another --workdir"
    )
    several = {
        key: value,
        "model.dropout_rate": 0.3,
        "training.label_smoothing": 0.2,
        "model.num_encoder_layers": 3,
    }
    assert message in refused(several)
    assert "model.dropout_rate: 0.1 -> 0.3" in refused(several)
    several |= {"data.max_length": 17, "training.warmup_steps": 99}
    assert refused(several).count(" -> ") == 5
    assert " and 1 more; " in refused(several)
    assert (tmp_path / "run" / "config.json").read_bytes() == before


def test_keys_that_may_change(corpus, tmp_path):
    """Steps, intervals, decoding and evaluation may change, and the new values are
    saved.
    """
    claimed(little_config(corpus), tmp_path / "run")
    changes = {
        "training.steps": 20,
        "training.log_every": 7,
        "training.keep_latest": 5,
        "decoding.beam_size": 2,
        "evaluation.samples": 1,
        "data.valid": corpus["data.train"],
    }
    run = claimed(little_config(corpus, changes), tmp_path / "run")
    assert run.config.training.steps == 20
    assert len(run.valid) == 300
    assert (
        claimed(little_config(corpus, changes), tmp_path / "run").config == run.config
    )


def test_a_directory_with_other_files(tmp_path, refused):
    """A directory that holds files but no run is not taken over, and its files stay."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("precious")
    assert (
        refused()
        == f"{tmp_path / 'run'} holds files but no run (no config.json); choose an"
        " empty --workdir"
    )
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["thesis.tex"]


def test_a_vocabulary_larger_than_the_text_allows(corpus, tmp_path, refused):
    """The refusal names key and limit; with the limit the same directory works."""
    message = refused({"data.vocabulary_size": 5_000})
    assert message.startswith(
        "data.vocabulary_size: a vocabulary of 5000 pieces is too large for this text:"
        " it allows"
    )
    most = int(message.rsplit(" ", 1)[1])
    assert (
        claimed(
            little_config(corpus, {"data.vocabulary_size": most}), tmp_path / "run"
        ).vocabularies.target.size
        == most
    )


def test_text_that_is_not_there(corpus, tmp_path, refused):
    """Missing text is refused before the directory is made."""
    assert "no file" in refused({"data.train": "text:/nowhere/a,/nowhere/b"})
    assert "no file" in refused({"data.valid": "text:/nowhere/a,/nowhere/b"})
    assert not (tmp_path / "run").exists()


def test_another_vocabulary(corpus, tmp_path, refused):
    """A checkpoint goes on with the very vocabulary that it was trained with, not
    with one of the same size.
    """
    training.train(little_config(corpus, {"training.steps": 2}), tmp_path / "run")
    file = tmp_path / "run" / "vocabulary" / "shared.model"
    right = file.read_bytes()
    pairs = list(load(corpus["data.train"], "en", "de"))
    other = Vocabulary.train([pair.source for pair in pairs], 57, model="unigram")
    assert other.size == 57
    other.save(file)
    message = refused({"training.steps": 4}, training.train)
    assert (
        f"{tmp_path / 'run' / 'vocabulary'} is not the vocabulary of checkpoint 2: its"
        " hash is " in message
    )
    assert steps_of(tmp_path / "run") == [2]
    file.write_bytes(right)
    assert (
        training.train(
            little_config(corpus, {"training.steps": 4}), tmp_path / "run"
        ).step
        == 4
    )


def test_a_checkpoint_of_another_model(corpus, tmp_path, refused):
    """Checkpoints of another model under this run's name are refused by the first
    parameter that differs.
    """
    training.train(little_config(corpus, {"training.steps": 2}), tmp_path / "run")
    claimed(little_config(corpus, {"model.d_ff": 64}), tmp_path / "other")
    (tmp_path / "run" / "checkpoints").rename(tmp_path / "other" / "checkpoints")
    message = refused({"model.d_ff": 64, "training.steps": 4}, training.train, "other")
    where = f"checkpoint 2 in {tmp_path / 'other' / 'checkpoints'} is of another model"
    name = "decoder/layer_0/feed_forward/inner/bias"
    assert message == f"{where}: {name} is (32,) there and (64,) by the configuration"


def test_a_sentence_longer_than_the_positions(corpus, tmp_path, refused):
    """A validation sentence that the model has no positions for is refused before
    training, with its number.
    """
    files = tmp_path / "long.a", tmp_path / "long.b"
    for file in files:
        file.write_text("a b\n" + "a " * 60 + "\n")
    message = refused({"data.valid": f"text:{files[0]},{files[1]}"}, training.train)
    assert "pair 2 has 61 tokens and the model takes 32" in message
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_without_translation(corpus, tmp_path):
    """Without a validator only the loss is measured, and no translations are
    written.
    """
    assert training.train(
        little_config(corpus, {"training.steps": 2}), tmp_path / "run"
    ).finished
    assert not (tmp_path / "run" / "samples.jsonl").exists()
    assert "valid/bleu" not in read_records(tmp_path / "run")[-1]


def test_a_wrong_value_can_be_mended_in_the_same_directory(corpus, tmp_path, refused):
    """What is refused before training begins claims no directory: the cure that the
    line names works there.
    """
    message = refused({"data.tokens_per_batch": 1, "training.steps": 2}, training.train)
    assert message.startswith("data.tokens_per_batch=1 does not hold a pair")
    assert not (tmp_path / "run" / "config.json").exists()
    assert (
        training.train(
            little_config(corpus, {"training.steps": 2}), tmp_path / "run"
        ).step
        == 2
    )


def test_a_start_that_is_cut_off_leaves_no_trap(corpus, tmp_path):
    """Nothing is written before the run claims its directory, and a vocabulary that a
    kill kept from being written is trained again just as it was.
    """
    run = open_run(little_config(corpus), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with run.claim():
        pass
    assert (
        Vocabularies.load(tmp_path / "run" / "vocabulary").hash == run.vocabularies.hash
    )
    shutil.rmtree(tmp_path / "run" / "vocabulary")
    assert (
        claimed(little_config(corpus), tmp_path / "run").vocabularies.hash
        == run.vocabularies.hash
    )
    assert (
        Vocabularies.load(tmp_path / "run" / "vocabulary").hash == run.vocabularies.hash
    )


def test_a_folder_named_vocabulary_is_not_taken(corpus, tmp_path, refused):
    """A folder of the user's stays as it is, whatever its name."""
    (tmp_path / "run" / "vocabulary").mkdir(parents=True)
    (tmp_path / "run" / "vocabulary" / "shared.model").write_text("precious")
    assert "holds files but no run" in refused()
    assert (tmp_path / "run" / "vocabulary" / "shared.model").read_text() == "precious"


def test_separate_vocabularies_are_two_files(corpus, tmp_path):
    """Separate vocabularies stay two, even where both texts give the same one."""
    first = corpus["data.train"].removeprefix("text:").split(",")[0]
    same = f"text:{first},{first}"
    changes = {
        "data.train": same,
        "data.shared_vocabulary": False,
        "model.tied_embeddings": "target",
    }
    run = claimed(little_config(corpus, changes), tmp_path / "run")
    assert run.vocabularies.source == run.vocabularies.target
    files = sorted(path.name for path in (tmp_path / "run" / "vocabulary").iterdir())
    assert files == ["source.model", "target.model"]
    assert (
        claimed(little_config(corpus, changes), tmp_path / "run").config == run.config
    )


@pytest.mark.parametrize("alpha", [None, 0.1])
def test_another_text_under_the_same_name(corpus, tmp_path, refused, alpha):
    """A run does not go on with a text that was changed: its position there would mean
    nothing. One of the same counts is no exception, nor is one that each epoch segments
    anew.
    """
    source, target = (tmp_path / f"text.{side}" for side in ("a", "b"))
    pairs = list(load(corpus["data.train"], "en", "de"))
    source.write_text("".join(pair.source + "\n" for pair in pairs))
    target.write_text("".join(pair.target + "\n" for pair in pairs))
    changes = {
        "data.train": f"text:{source},{target}",
        "data.segmentation_alpha": alpha,
        "training.steps": 2,
    }
    training.train(little_config(corpus, changes), tmp_path / "run")
    source.write_text("".join(pair.source + "\n" for pair in pairs[1:] + pairs[:1]))
    message = refused({**changes, "training.steps": 4}, training.train)
    assert (
        f"is not the text that {tmp_path / 'run'} was trained on up to step 2"
        in message
    )


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ("text:/nowhere/a,/nowhere/b", "no file /nowhere/a"),
        ("bundled:en-de/tset", "did you mean bundled:en-de/test?"),
        ("2 * synthetic:reverse/test", "is not for evaluation"),
        ("synthetic:reverse/test + synthetic:copy/test", "is not for evaluation"),
        ("prepared:x", "is not for evaluation"),
        ("sacrebleu:wmt41", "has no test set 'wmt41'"),
    ],
)
def test_a_test_set_that_is_not_there(corpus, tmp_path, refused, test, message):
    """It is missed at the start, and not when training is done; nothing of it is
    read.
    """
    found = refused({"data.test": test})
    assert found.startswith("data.test: ")
    assert message in found
    assert not (tmp_path / "run").exists()


def test_a_vocabulary_of_another_size(corpus, tmp_path, refused):
    """In a run it can only be a wrong file: the cure is not another configuration,
    which would be refused.
    """
    claimed(little_config(corpus), tmp_path / "run")
    pairs = list(load(corpus["data.train"], "en", "de"))
    Vocabulary.train([pair.source for pair in pairs], 50).save(
        tmp_path / "run" / "vocabulary" / "shared.model"
    )
    message = refused()
    assert message.startswith(
        f"{tmp_path / 'run' / 'vocabulary'} is not the vocabulary of this run: it has"
        " 50 and 50"
    )
    assert message.endswith("put back the files that the run was trained with")


@pytest.mark.parametrize("name", ["file", "file/x"])
def test_a_file_for_a_directory(corpus, tmp_path, refused, name):
    (tmp_path / "file").write_text("")
    assert (
        refused(name=name) == f"{tmp_path / 'file'} is a file: choose another --workdir"
    )


def test_a_directory_that_the_system_refuses(corpus, tmp_path):
    run = open_run(little_config(corpus), Path("/proc/x"))
    with (
        pytest.raises(
            InputError,
            match=r"^cannot make the folder /proc/x .*: choose another --workdir$",
        ),
        run.claim(),
    ):
        pass


@pytest.mark.parametrize("kind", ["file", "folder", "nothing"])
def test_nothing_is_written_through_a_link(corpus, tmp_path, kind):
    """A link among what a run writes is refused, or replaced; what it points to is
    unchanged, and is not made.
    """
    claimed(little_config(corpus), tmp_path / "run")
    outside, model = (
        tmp_path / "outside",
        tmp_path / "run" / "vocabulary" / "shared.model",
    )
    for name in [*WRITTEN, "config.json", "vocabulary/shared.model"]:
        link = tmp_path / "run" / name
        if kind == "folder":
            outside.mkdir()
            (outside / "file").write_text("of somebody else")
        elif kind == "file":
            outside.write_bytes(model.read_bytes() if link == model else b"")
        saved = link.rename(tmp_path / "saved") if link.exists() else None
        link.symlink_to(outside)
        before = outside.stat().st_mtime_ns if outside.exists() else None
        refusal = pytest.raises(
            InputError,
            match=f"{name} is a symbolic link, and nothing is written through links: ",
        )
        with refusal if name in WRITTEN else contextlib.suppress(InputError, OSError):
            claimed(little_config(corpus), tmp_path / "run")
        assert (outside.stat().st_mtime_ns if outside.exists() else None) == before
        assert kind != "folder" or [path.name for path in outside.iterdir()] == ["file"]
        link.unlink()
        if saved is not None:
            saved.rename(link)
        if kind == "folder":
            shutil.rmtree(outside)
        outside.unlink(missing_ok=True)


def test_a_run_may_itself_be_a_link(corpus, tmp_path):
    """Whoever gives the directory chooses where it is."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    claimed(little_config(corpus), tmp_path / "run")
    assert (tmp_path / "disk" / "config.json").exists()


@pytest.mark.parametrize("there", [False, True])
def test_a_start_that_fails_before_the_first_step_leaves_no_run(
    corpus, tmp_path, monkeypatch, there
):
    """A new directory is free again; that of a run that began before is as it was."""
    config = little_config(corpus, {"training.steps": 2})
    if there:
        claimed(config, tmp_path / "run")

    def refuse(*_, **__):
        raise InputError("no")

    monkeypatch.setattr(training, "Log", refuse)
    with pytest.raises(InputError, match=r"^no$"):
        training.train(config, tmp_path / "run")
    assert (tmp_path / "run" / "config.json").exists() == there
    assert (tmp_path / "run").exists() == there


def test_a_start_that_fails_keeps_a_directory_that_it_did_not_make(
    corpus, tmp_path, monkeypatch
):
    (tmp_path / "run").mkdir()
    monkeypatch.setattr(training, "Log", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        training.train(little_config(corpus, {"training.steps": 2}), tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []


def test_a_validator_that_is_refused_changes_no_run(corpus, tmp_path):
    """As one for trees, where the validation text has none: a resumed run keeps its
    configuration.
    """
    claimed(little_config(corpus, {"training.steps": 2}), tmp_path / "run")
    saved = (tmp_path / "run" / "config.json").read_bytes()

    def refuse(*_):
        raise InputError("no trees")

    with pytest.raises(InputError, match=r"^no trees$"):
        training.train(
            little_config(corpus, {"training.steps": 4}), tmp_path / "run", refuse
        )
    assert (tmp_path / "run" / "config.json").read_bytes() == saved


def test_a_directory_that_cannot_be_written_is_found_before_the_text_is_read(
    corpus, tmp_path, monkeypatch
):
    claimed(little_config(corpus), tmp_path / "run")

    def refuse(*_, dir, **__):
        raise OSError(errno.EROFS, "Read-only file system", str(dir))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    monkeypatch.setattr("jaxformer.training.run.TrainingText", None)
    with pytest.raises(
        InputError,
        match=(
            r"^cannot write .*/run: Read-only file system; choose a place that can be"
        ),
    ):
        open_run(little_config(corpus), tmp_path / "run")


def test_what_is_told_before_there_is_a_run(corpus, tmp_path):
    """That a vocabulary is trained, when it is."""
    told = []
    with open_run(little_config(corpus), tmp_path / "run", report=told.append).claim():
        pass
    assert told == [f"training the vocabulary on {corpus['data.train']}"]
    open_run(little_config(corpus), tmp_path / "run", report=told.append)
    assert len(told) == 1
