"""The directory of a run belongs to one configuration, one text and one vocabulary."""

import errno
import functools
import tempfile
from types import SimpleNamespace

import pytest
from training.little import cached_make_engine, little_config, steps_of

from jaxformer.data.corpus import TrainingText
from jaxformer.data.sources import load
from jaxformer.data.vocabulary import Vocabulary
from jaxformer.errors import InputError
from jaxformer.training import train as training
from jaxformer.training.introduction import _introduce_data
from jaxformer.training.run import open_run

FEW = {"training.steps": 2}


@pytest.fixture(autouse=True)
def _engines(monkeypatch):
    monkeypatch.setattr(training, "make_engine", cached_make_engine)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def config(corpus):
    """Return a function that changes the configuration of the little run."""
    return functools.partial(little_config, corpus)


@pytest.fixture
def claim(config, path):
    """Return a function that opens a run and takes the directory for it, as training
    does once everything is checked.
    """

    def claimed(changes=None):
        run = open_run(config(changes), path)
        with run.claim():
            pass
        return run

    return claimed


@pytest.fixture
def refused(config, path):
    """Return a function that expects a run to be refused and returns the one line."""

    def refuse(changes=None, start=open_run, path=path):
        with pytest.raises(InputError) as caught:
            start(config(changes), path)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return refuse


def pairs(corpus):
    return list(load(corpus["data.train"], "en", "de"))


def test_a_directory_of_another_configuration(claim, path, refused):
    """Another configuration is refused with one line that names keys, old and new
    values, five at most.
    """
    claim()
    before = (path / "config.json").read_bytes()
    changes = {"training.learning_rate": 0.25}
    assert refused(changes) == (
        f"{path} holds a run of another configuration: training.learning_rate: 0.5 ->"
        " 0.25; continue with the same values or choose another --workdir"
    )
    changes |= {"model.dropout_rate": 0.3, "training.label_smoothing": 0.2}
    changes |= {"model.num_encoder_layers": 3, "data.max_length": 17}
    changes |= {"training.seed": 1}
    message = refused(changes)
    assert "model.dropout_rate: 0.1 -> 0.3" in message
    assert message.count(" -> ") == 5
    assert ", and 1 more; " in message
    assert (path / "config.json").read_bytes() == before


@pytest.mark.parametrize(
    ("first", "then", "refusal"),
    [
        ({"cooldown_steps": 4}, {"steps": 20}, "_steps=4 of training.steps=12: change"),
        (
            {},
            {"steps": 14, "cooldown_steps": 4},
            "_steps=4 of training.steps=14: change",
        ),
        ({}, {"steps": 16, "cooldown_steps": 4}, None),
        ({"schedule": "cosine"}, {"steps": 20}, "training.initial_run={path} trains"),
        ({}, {"steps": 11}, "training.steps=11 is less than the 12 steps that "),
    ],
)
def test_an_end_that_is_past(claim, path, refused, first, then, refusal):
    """Once the rate falls towards the end, or would have, the end stays; a cool-down
    can be added after what was trained. Where a schedule is fixed by its end, the cure
    is a run that begins with this one's parameters.
    """
    base = {"schedule": "constant", "warmup_steps": 2, **first}
    first, then = (
        {f"training.{name}": value for name, value in keys.items()}
        for keys in (base, {**base, **then})
    )
    claim(first)
    (path / "checkpoints" / "12").mkdir(parents=True)
    if refusal is None:
        claim(then)
    else:
        assert refusal.format(path=path) in refused(then)


def test_a_directory_with_other_files(path, refused):
    """A directory that holds files but no run is not taken over, and its files stay."""
    (path / "vocabulary").mkdir(parents=True)
    (path / "vocabulary" / "shared.model").write_text("precious")
    assert "holds files but no run (no config.json)" in refused()
    (file,) = (each for each in path.rglob("*") if each.is_file())
    assert file.read_text() == "precious"


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("train", "text:/nowhere/a,/nowhere/b", "no file"),
        ("train", "text:{0}/a,{0}/b", "a has 3 lines and .*b has 2: line i of one"),
        ("valid", "text:{0}/a,{0}/b", "a has 3 lines and .*b has 2: line i of one"),
        ("test", "text:{0}/a,{0}/b", "data.test: .*a has 3 lines and .*b has 2: "),
        ("test", "text:/nowhere/a,/nowhere/b", "data.test: .*no file /nowhere/a"),
    ],
)
def test_text_that_is_missing(path, corpus, key, text, message, monkeypatch, tmp_path):
    """Files that are missing or of different lengths are found at the start, before a
    vocabulary is trained or the directory is made.
    """
    monkeypatch.setattr(TrainingText, "vocabularies", lambda *_, **__: 1 / 0)
    for name, count in {"a": 3, "b": 2}.items():
        (tmp_path / name).write_text("x\n" * count)
    text = text.format(tmp_path)
    with pytest.raises(InputError, match=message):
        open_run(little_config(corpus, {f"data.{key}": text}), path)
    assert not path.exists()


def test_another_text_or_vocabulary(corpus, path, config, refused, tmp_path):
    """A checkpoint continues with the very vocabulary that it was trained with, not
    with one of the same or another size; and not with a text that was changed, also one
    that each epoch segments again: its position there would mean nothing.
    """
    source, target = (tmp_path / f"text.{side}" for side in ("a", "b"))
    source.write_text("".join(pair.source + "\n" for pair in pairs(corpus)))
    target.write_text("".join(pair.target + "\n" for pair in pairs(corpus)))
    text = {"data.train": f"text:{source},{target}", "data.segmentation_alpha": 0.1}
    more = {**text, "training.steps": 4}
    training.train(config({**text, **FEW}), path)
    file = path / "vocabulary" / "shared.model"
    right, lines = file.read_bytes(), source.read_text().splitlines(keepends=True)
    Vocabulary.train(lines, 57, model="unigram").save(file)
    another = f"{file.parent} is not the vocabulary of checkpoint 2: its hash is "
    assert another in refused(more, training.train)
    Vocabulary.train(lines, 50).save(file)
    assert f"{file} has 50 pieces" in refused(more)
    file.write_bytes(right)
    source.write_text("".join(lines[1:] + lines[:1]))
    another = f"is not the text that {path} was trained on up to step 2"
    assert another in refused(more, training.train)
    source.write_text("".join(lines))
    assert steps_of(path) == [2]
    assert training.train(config(more), path).step == 4


def test_what_is_refused_before_training_claims_no_directory(tmp_path, path, refused):
    """A validation sentence that the model has no positions for is named by its
    number.
    """
    files = tmp_path / "long.a", tmp_path / "long.b"
    for file in files:
        file.write_text("a b\n" + "a " * 60 + "\n")
    message = refused({"data.valid": f"text:{files[0]},{files[1]}"}, training.train)
    assert "pair 2 has 61 tokens and the model takes 32" in message
    message = refused({"data.tokens_per_batch": 1}, training.train)
    assert message.startswith("data.tokens_per_batch=1 does not hold a packed row")
    assert not path.exists()


def test_a_directory_that_cannot_be_written(path, refused, monkeypatch, claim):
    """It is found before the text is read."""
    claim()

    def refuse(*_, dir, **__):
        raise OSError(errno.EROFS, "Read-only file system", str(dir))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    monkeypatch.setattr("jaxformer.training.run.TrainingText", None)
    assert refused().startswith(f"cannot write {path}: Read-only file system; choose a")


@pytest.mark.parametrize("there", ["nothing", "an empty folder", "a run"])
def test_a_start_that_fails_before_the_first_step_leaves_no_run(
    config, path, claim, monkeypatch, there
):
    """A directory is as it was, also that of a run that began before; one that was made
    is gone. A validator that is refused changes no configuration.
    """
    if there == "a run":
        claim(FEW)
    elif there == "an empty folder":
        path.mkdir()
    saved = (path / "config.json").read_bytes() if there == "a run" else b""
    with pytest.raises(ZeroDivisionError):
        training.train(config({"training.steps": 4}), path, lambda *_: 1 / 0)
    assert there != "a run" or (path / "config.json").read_bytes() == saved
    monkeypatch.setattr(training, "Log", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        training.train(config(FEW), path)
    assert path.exists() == (there != "nothing")
    assert (path / "config.json").exists() == (there == "a run")
    assert there != "an empty folder" or not list(path.iterdir())


@pytest.mark.parametrize(("known", "empty"), [(0, 0), (3, 0), (0, 2), (2, 1)])
def test_odd_validation_text_is_named(config, corpus, tmp_path, known, empty):
    """The first lines of a run count the validation pairs that are training text, and
    those with an empty side.
    """
    train, valid = (list(load(corpus[f"data.{x}"], "", "")) for x in ("train", "valid"))
    other = [pair for pair in valid if pair not in train][: 9 - known - empty]
    blank = [("\x01 ", "a b"), ("a b", "")][:empty]
    path = tmp_path / "valid.tsv"
    lines = ["\t".join(pair) + "\n" for pair in [*train[5 : 5 + known], *other, *blank]]
    path.write_text("".join(lines), "utf-8")
    run = open_run(config({"data.valid": f"tsv:{path}"}), tmp_path / "run")
    said: list[str] = []
    display = SimpleNamespace(say=said.append)
    _introduce_data(display, run, run.text.load(run.vocabularies, seed=0))
    warnings = [line for line in said if line.startswith("warning")]
    assert len(warnings) == bool(known) + bool(empty)
    if empty:
        assert f"{empty} of them have an empty side" in warnings[0]
    if known:
        assert f"{known} of the validation text's 9 different rows" in warnings[-1]


def test_empty_validation_text_is_refused(config, tmp_path):
    path = tmp_path / "valid.tsv"
    path.write_text("\t\n\ta\n")
    with pytest.raises(InputError, match="no pair with text on both sides"):
        open_run(config({"data.valid": f"tsv:{path}"}), tmp_path / "run")
