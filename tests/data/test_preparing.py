"""A prepared folder is made once, from the text as it is, and not taken for that of
another text.
"""

import dataclasses
import gzip
import hashlib
import json
import os
import shutil

import pytest
from pairs import config_of

from jaxformer.data.corpus import TrainingText
from jaxformer.data.preparing import new_folder, prepare
from jaxformer.data.sources import load
from jaxformer.data.vocabulary import Vocabularies
from jaxformer.errors import InputError


@pytest.fixture(scope="module")
def pairs():
    return list(load("bundled:en-de/test", "en", "de"))


@pytest.fixture
def output(prepared, tmp_path):
    """A copy of the prepared folder."""
    return shutil.copytree(prepared, tmp_path / "prepared")


@pytest.fixture
def corpus(tmp_path, pairs):
    """Write parallel text in two parts, and name it."""
    write(tmp_path, pairs)
    return f"text:{tmp_path}/*.en,{tmp_path}/*.de"


def write(folder, pairs):
    for part in range(2):
        for side, language in enumerate(("en", "de")):
            lines = [pair[side] + "\n" for pair in pairs[200 * part : 200 * part + 200]]
            (folder / f"{part}.{language}").write_text("".join(lines), "utf-8")


def refuse(config, output, **options):
    with pytest.raises(InputError) as caught:
        prepare(config, output, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def training_of(tmp_path, train, **options):
    text = TrainingText.open(config_of(train=train, **options))
    return text.load(text.vocabularies(tmp_path / "vocabulary"), seed=3)


def times(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


def test_preparing_again_finds_it_done(output):
    """Keys that only training reads may differ."""
    told, before = [], times(output)
    config = config_of(tokens_per_batch=900, num_buckets=2, packing=True)
    assert prepare(config, output, report=told.append).counts
    assert times(output) == before
    assert told == [f"{output} is prepared already"]
    message = refuse(config_of(max_length=50, vocabulary_size=300), output)
    assert "with other vocabulary_size, max_length: choose another" in message


def test_changed_text_is_not_taken_for_prepared(tmp_path, corpus, pairs):
    """One byte is enough. A file that was touched is the same."""
    config, output = config_of(train=corpus), tmp_path / "prepared"
    prepare(config, output)
    before, changed = times(output), tmp_path / "1.de"
    os.utime(changed, (0, 0))
    prepare(config, output)
    changed.write_bytes(changed.read_bytes().replace(b"e", b"i", 1))
    said = f"{output} was prepared with other files: choose another --output, or remove"
    assert refuse(config, output).startswith(said)
    write(tmp_path, pairs)
    prepare(config, output)
    assert times(output) == before
    files = [tmp_path / f"2.{language}" for language in ("de", "en")]
    for path in files:
        path.write_text("x\n")
    assert refuse(config, output).startswith(said)
    for path in (*files, changed, changed.with_suffix(".en")):
        path.unlink()
    assert refuse(config, output).startswith(said)


@pytest.mark.parametrize(
    ("name", "files"),
    [
        (r"text:{0}/a\,b.en,{0}/ab.de.gz", ["a,b.en", "ab.de.gz"]),
        (
            "jsonl:{0}/x.jsonl + tsv:{0}/part#*.tsv#2,1 + bundled:en-de/valid",
            ["x.jsonl", "part#1.tsv", "part#2.tsv"],
        ),
    ],
)
def test_the_manifest_names_the_files_that_are_read(tmp_path, pairs, name, files):
    """Each with the SHA-256 of its bytes as they are stored. Each entry is a line."""
    english, german = (
        "".join(pair[side] + "\n" for pair in pairs).encode() for side in (0, 1)
    )
    (tmp_path / "a,b.en").write_bytes(english)
    (tmp_path / "ab.de.gz").write_bytes(gzip.compress(german))
    for number in (1, 2):
        table = "".join(f"{one}\t{other}\n" for one, other in pairs)
        (tmp_path / f"part#{number}.tsv").write_text(table, "utf-8")
    records = (json.dumps({"en": one, "de": other}) + "\n" for one, other in pairs)
    (tmp_path / "x.jsonl").write_text("".join(records), "utf-8")
    prepare(config_of(train=name.format(tmp_path)), tmp_path / "prepared")
    manifest = (tmp_path / "prepared" / "manifest.json").read_text("utf-8")
    content = json.loads(manifest)
    assert len(manifest.splitlines()) == len(content) + 2
    paths = [tmp_path / file for file in files]
    digests = {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths
    }
    assert content["request"]["files"] == digests


@pytest.mark.parametrize(
    ("part", "damage", "cure"),
    [
        ("vocabulary/shared.model", None, "remove {}"),
        ("vocabulary/shared.model", b"less", "train or copy it again"),
    ],
)
def test_a_damaged_folder_is_not_called_prepared(tmp_path, output, part, damage, cure):
    """Preparing and training name the part and the same cure."""
    (output / part).unlink()
    if damage:
        (output / part).write_bytes(damage)
    message = refuse(config_of(), output)
    assert str(output) in message
    assert cure.format(output) in message
    with pytest.raises(InputError) as caught:
        training_of(tmp_path, f"prepared:{output}")
    assert str(caught.value) == message


def test_a_vocabulary_that_does_not_fit(tmp_path, prepared):
    vocabulary = prepared / "vocabulary"
    config = config_of(vocabulary_size=300)
    message = refuse(config, tmp_path / "b", vocabulary=vocabulary)
    assert f"size is 300 and {vocabulary / 'shared.model'} has 400 pieces" in message
    message = refuse(config_of(), tmp_path / "b", vocabulary=prepared)
    assert message.endswith(f"did you mean {vocabulary}?")
    assert not (tmp_path / "b").exists()


def test_a_given_vocabulary_is_used(tmp_path, prepared):
    """Several folders can be trained on together, with weights."""
    told, config = [], config_of(train="bundled:en-de/test")
    options = {"vocabulary": prepared / "vocabulary", "report": told.append}
    prepare(config, tmp_path / "b", **options)
    assert not any("vocabulary" in line for line in told)
    one, other = (
        Vocabularies.load(path / "vocabulary") for path in (prepared, tmp_path / "b")
    )
    assert one == other
    data = training_of(tmp_path, f"prepared:{prepared} + 2 * prepared:{tmp_path}/b")
    sizes = [share.stop - share.start for share in data.shares]
    assert data.statistics.pairs == sizes[0] + 2 * sizes[1]
    prepare(config, tmp_path / "c")
    with pytest.raises(InputError, match="have different vocabularies"):
        training_of(tmp_path, f"prepared:{prepared} + prepared:{tmp_path}/c")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": "prepared:x"}, "is prepared already"),
        ({"train": "2 * bundled:en-de/valid"}, "has weights or a temperature: prepare"),
        ({"segmentation_alpha": 0.1}, "needs the text in each epoch"),
    ],
)
def test_what_is_not_prepared(tmp_path, options, message):
    assert message in refuse(config_of(**options), tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("error", [KeyboardInterrupt, InputError])
def test_an_interrupted_start_keeps_its_vocabulary(
    tmp_path, monkeypatch, shared, error
):
    """The same call does not train it again; one that failed leaves nothing, and a call
    for other tokens begins anew.
    """
    config, output = config_of(shared_vocabulary=shared), tmp_path / "p"

    def interrupted(*_, **__):
        raise error("in the middle")

    def lines_of(changes, folder=output):
        lines = []
        prepare(dataclasses.replace(config, **changes), folder, report=lines.append)
        return lines

    def stop():
        with monkeypatch.context() as patch:
            patch.setattr(TrainingText, "encode", interrupted)
            with pytest.raises(error):
                lines_of({})

    stop()
    assert (output / ".unfinished" / "vocabulary").exists() == (
        error is KeyboardInterrupt
    )
    assert not [*tmp_path.rglob("*.bin")]
    trained = [line for line in lines_of({}) if line.startswith("training the voc")]
    assert bool(trained) == (error is InputError)
    straight = tmp_path / "straight"
    lines_of({}, straight)
    found, expected = (
        {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in (output, straight)
    )
    assert found == expected
    shutil.rmtree(output)
    stop()
    assert any("training the vocabulary" in x for x in lines_of({"max_words": 20}))


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    """A failed block leaves nothing; what a killed process left is removed. A second
    process is refused, and what is no empty folder.
    """
    folder = tmp_path / "p"
    with pytest.raises(KeyboardInterrupt), new_folder(folder) as unfinished:  # noqa: PT012
        (unfinished / "source.bin").write_text("half")
        raise KeyboardInterrupt
    assert not folder.exists()
    (folder / ".unfinished").mkdir(parents=True)
    (folder / ".unfinished" / "source.bin").write_text("half")
    with new_folder(folder) as unfinished:
        (unfinished / "x").write_text("x")
        for other, message in (
            (folder, "another process prepares"),
            (tmp_path, "holds other files: choose an empty --output"),
            (unfinished / "x" / "y", f"{unfinished}/x is a file: choose another --out"),
        ):
            with pytest.raises(InputError, match=message), new_folder(other):
                pass
    assert [path.name for path in folder.iterdir()] == ["x"]
    assert [path.name for path in tmp_path.iterdir()] == ["p"]
