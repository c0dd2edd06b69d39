"""A prepared folder is made once, from the text as it is, and not taken for that of
another text.
"""

import gzip
import hashlib
import json
import os
import shutil

import pytest

from jaxformer.data import DataConfig, TrainingText, Vocabularies, load
from jaxformer.data.preparing import prepare
from jaxformer.errors import InputError

BASE = {
    "train": "bundled:en-de/valid",
    "vocabulary_size": 400,
    "max_length": 60,
    "tokens_per_batch": 700,
    "num_buckets": 4,
    "workers": 1,
}


def config_of(**options):
    return DataConfig(**{**BASE, **options})


@pytest.fixture(scope="module")
def pairs():
    return list(load("bundled:en-de/test", "en", "de"))


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


def times(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


def test_preparing_again_finds_it_done(tmp_path):
    told = []
    first = prepare(config_of(), tmp_path / "prepared", report=told.append)
    before = times(tmp_path / "prepared")
    again = prepare(config_of(), tmp_path / "prepared", report=told.append)
    assert times(tmp_path / "prepared") == before
    assert again.counts == first.counts
    assert told[-1] == f"{tmp_path / 'prepared'} is prepared already"
    assert "was prepared with max_length=60, not 50" in refuse(
        config_of(max_length=50), tmp_path / "prepared"
    )
    # What only training reads may differ.
    prepare(
        config_of(tokens_per_batch=900, num_buckets=2, packing=True),
        tmp_path / "prepared",
    )


def test_changed_text_is_not_taken_for_prepared(tmp_path, corpus, pairs):
    """A byte is enough, of the same counts; the line names the file, and the cure is to
    restore it or begin again.

    A file that was only touched is the same.
    """
    config, output = config_of(train=corpus), tmp_path / "prepared"
    told = []
    prepare(config, output)
    before = times(output)
    changed = tmp_path / "1.de"
    os.utime(changed, (0, 0))
    prepare(config, output, report=told.append)
    assert told == [f"{output} is prepared already"]
    right = changed.read_bytes()
    changed.write_bytes(right.replace(b"e", b"i", 1))
    assert (
        refuse(config, output)
        == f"{changed} has changed since {output} was prepared: remove {output} and"
        " prepare it again, choose another --output, or restore the text"
    )
    (tmp_path / "0.en").write_text("x\n" * 200)
    assert f"{tmp_path / '0.en'} has changed (and 1 more) since" in refuse(
        config, output
    )
    write(tmp_path, pairs)
    assert changed.read_bytes() == right
    prepare(config, output)
    assert times(output) == before


@pytest.mark.parametrize(("change", "what"), [("add", "is new"), ("remove", "is gone")])
def test_a_pattern_that_names_other_files(tmp_path, corpus, change, what):
    """One that came and one that went are named, each side's."""
    prepare(config_of(train=corpus), tmp_path / "prepared")
    for language in ("en", "de"):
        if change == "add":
            (tmp_path / f"2.{language}").write_text("x\n")
        else:
            (tmp_path / f"1.{language}").unlink()
    name = tmp_path / ("2.en" if change == "add" else "1.en")
    assert refuse(config_of(train=corpus), tmp_path / "prepared").startswith(
        f"{name} {what} (and 1 more) since "
    )


@pytest.mark.parametrize(
    ("name", "files"),
    [
        (r"text:{0}/a\,b.en,{0}/ab.de.gz", ["a,b.en", "ab.de.gz"]),
        ("tsv:{0}/part#*.tsv#2,1", ["part#1.tsv", "part#2.tsv"]),
        ("tsv:{0}/part#1.tsv", ["part#1.tsv"]),
        ("jsonl:{0}/x.jsonl", ["x.jsonl"]),
        (
            "jsonl:{0}/x.jsonl + tsv:{0}/part#1.tsv + bundled:en-de/valid",
            ["x.jsonl", "part#1.tsv"],
        ),
        ("bundled:en-de/valid", []),
        ("synthetic:copy/valid", []),
    ],
)
def test_the_manifest_names_the_files_that_are_read(
    monkeypatch, tmp_path, pairs, name, files
):
    """Each with the SHA-256 of its bytes as they are stored: those that reading the
    text opens, and no other.
    """
    lines = {
        side: "".join(pair[index] + "\n" for pair in pairs)
        for index, side in enumerate(("en", "de"))
    }
    (tmp_path / "a,b.en").write_text(lines["en"], "utf-8")
    (tmp_path / "ab.de.gz").write_bytes(gzip.compress(lines["de"].encode()))
    for number in (1, 2):
        (tmp_path / f"part#{number}.tsv").write_text(
            "".join(f"{one}\t{other}\n" for one, other in pairs), "utf-8"
        )
    (tmp_path / "x.jsonl").write_text(
        "".join(json.dumps({"en": one, "de": other}) + "\n" for one, other in pairs),
        "utf-8",
    )
    config = config_of(
        train=name.format(tmp_path), vocabulary_size=57 if "synthetic" in name else 400
    )
    prepare(config, tmp_path / "prepared")
    recorded = json.loads((tmp_path / "prepared" / "manifest.json").read_bytes())[
        "request"
    ]["files"]
    assert recorded == {
        str(tmp_path / file): hashlib.sha256((tmp_path / file).read_bytes()).hexdigest()
        for file in files
    }
    opened = set()
    plain_open = type(tmp_path).open
    monkeypatch.setattr(
        type(tmp_path),
        "open",
        lambda path, *rest: opened.add(path.name) or plain_open(path, *rest),
    )
    assert sum(1 for _ in TrainingText.open(config).pairs) > 0
    assert {file for file in opened if not file.startswith("valid.")} == set(files)


def test_text_that_changes_while_it_is_read(monkeypatch, tmp_path, corpus):
    """Nobody would know what the folder holds: nothing is left of it, and the same
    command then begins again.
    """
    config, output = config_of(train=corpus), tmp_path / "prepared"
    train = TrainingText.vocabularies

    def change_meanwhile(*given, **options):
        vocabularies = train(*given, **options)
        with (
            (tmp_path / "1.en").open("a") as english,
            (tmp_path / "1.de").open("a") as german,
        ):
            english.write("one more\n")
            german.write("eins mehr\n")
        return vocabularies

    monkeypatch.setattr(TrainingText, "vocabularies", change_meanwhile)
    assert (
        refuse(config, output)
        == f"{tmp_path / '1.en'} changed while it was read: give the same command again"
    )
    assert not output.exists()
    monkeypatch.undo()
    assert sum(count.read for count in prepare(config, output).counts.values()) == 401


BAD = {
    "unequal": (b"a\nb\nc\n", b"a\nb\n", "0.en has 3 lines and {0}/0.de has 2"),
    "utf-8": (b"a\n\xff\n", b"a\nb\n", "0.en, line 2: not UTF-8"),
    "empty": (b"", b"a\n", "0.en is empty"),
}


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("bad", BAD)
def test_bad_text_leaves_nothing_behind(tmp_path, bad, made):
    """The error is that of the text, also while a vocabulary is trained; the mended
    name works in the same folder.
    """
    english, german, message = BAD[bad]
    (tmp_path / "0.en").write_bytes(english)
    (tmp_path / "0.de").write_bytes(german)
    output = tmp_path / "prepared"
    if made:
        output.mkdir()
    before = sorted(tmp_path.rglob("*"))
    found = refuse(config_of(train=f"text:{tmp_path}/0.en,{tmp_path}/0.de"), output)
    assert found.startswith(f"{tmp_path}/{message.format(tmp_path)}")
    assert sorted(tmp_path.rglob("*")) == before
    assert prepare(config_of(), output).counts


@pytest.mark.parametrize(
    ("part", "damage"),
    [
        ("lengths.npy", None),
        ("lengths.npy", b""),
        ("source.bin", None),
        ("target.bin", b"less"),
        ("vocabulary/shared.model", None),
        ("vocabulary/shared.model", b"less"),
        ("manifest.json", b"{"),
    ],
)
def test_a_damaged_folder_is_not_called_prepared(tmp_path, part, damage):
    """``prepare`` names the part, and the cure that its line and that of training
    give works.
    """
    output = tmp_path / "prepared"
    prepare(config_of(), output)
    if damage is None:
        (output / part).unlink()
    else:
        (output / part).write_bytes(damage)
    message = refuse(config_of(), output)
    assert str(output) in message
    if not part.endswith(".model") or damage is None:
        assert f"remove {output} and prepare it again" in message
    with pytest.raises(InputError) as caught:
        training_of(tmp_path, f"prepared:{output}")
    assert str(caught.value) == message
    shutil.rmtree(output)
    assert prepare(config_of(), output).counts


def test_all_values_that_differ_are_named_at_once(tmp_path):
    """As arguments that can be typed, which then work."""
    changes = {
        "vocabulary_size": 300,
        "max_words": 50,
        "drop_identical": True,
        "source_eos": False,
    }
    prepare(config_of(**changes), tmp_path / "prepared")
    with pytest.raises(InputError) as caught:
        training_of(tmp_path, f"prepared:{tmp_path}/prepared")
    for key, value in changes.items():
        assert f"--config.data.{key}={value} " in str(caught.value).replace(",", " ")
    text = TrainingText.open(
        config_of(train=f"prepared:{tmp_path}/prepared", **changes)
    )
    assert text.load(
        text.vocabularies(tmp_path / "vocabulary"), seed=3
    ).statistics.pairs
    assert "vocabulary_size=300, not 400 and " in refuse(
        config_of(), tmp_path / "prepared"
    )


def test_another_segmentation_each_epoch_cannot_be_prepared(tmp_path):
    assert "needs the text in each epoch" in refuse(
        config_of(segmentation_alpha=0.1), tmp_path / "x"
    )


def test_a_vocabulary_that_does_not_fit(tmp_path):
    """The folder that was given is named, and nothing is made."""
    prepare(config_of(), tmp_path / "a")
    given = tmp_path / "a" / "vocabulary"
    message = refuse(config_of(vocabulary_size=300), tmp_path / "b", vocabulary=given)
    assert message.startswith(
        f"data.vocabulary_size is 300 and {given / 'shared.model'} has 400 pieces"
    )
    message = refuse(config_of(), tmp_path / "b", vocabulary=tmp_path / "a")
    assert message.endswith(f"did you mean {given}?")
    assert not (tmp_path / "b").exists()
    told = []
    prepare(config_of(), tmp_path / "b", vocabulary=given, report=told.append)
    assert not any("vocabulary" in line for line in told)


def test_the_manifest_can_be_read_by_people(tmp_path):
    """Each entry is one line."""
    prepare(config_of(), tmp_path / "a")
    text = (tmp_path / "a" / "manifest.json").read_text("utf-8")
    assert len(text.splitlines()) == len(json.loads(text)) + 2


@pytest.mark.parametrize("output", ["file", "file/x", "/proc/x"])
def test_a_folder_that_cannot_be_made(tmp_path, output):
    (tmp_path / "file").write_text("")
    message = refuse(config_of(), tmp_path / output)
    assert "choose another --output" in message
    assert str(tmp_path / "file" if output.startswith("file") else output) in message


def test_a_file_that_cannot_be_read(tmp_path):
    """A folder in place of a file is named before anything is made."""
    (tmp_path / "a.jsonl").mkdir()
    message = refuse(
        config_of(train=f"jsonl:{tmp_path}/a.jsonl"), tmp_path / "prepared"
    )
    assert message == f"{tmp_path / 'a.jsonl'} is a folder: name a file"
    assert not (tmp_path / "prepared").exists()


def test_a_given_vocabulary_is_used(tmp_path):
    """So several folders can be trained on together, with weights."""
    prepare(config_of(), tmp_path / "a")
    prepare(
        config_of(train="bundled:en-de/test"),
        tmp_path / "b",
        vocabulary=tmp_path / "a" / "vocabulary",
    )
    assert Vocabularies.load(tmp_path / "a" / "vocabulary") == Vocabularies.load(
        tmp_path / "b" / "vocabulary"
    )
    data = training_of(tmp_path, f"prepared:{tmp_path}/a + 2 * prepared:{tmp_path}/b")
    sizes = [share.stop - share.start for share in data.shares]
    assert data.statistics.pairs == sizes[0] + 2 * sizes[1]
    prepare(config_of(train="bundled:en-de/test"), tmp_path / "c")
    with pytest.raises(InputError, match="have different vocabularies"):
        training_of(tmp_path, f"prepared:{tmp_path}/a + prepared:{tmp_path}/c")


def test_what_is_not_prepared(tmp_path):
    """A folder that is prepared already, and mixtures whose weights belong to
    training.
    """
    assert "is prepared already" in refuse(
        config_of(train=f"prepared:{tmp_path}"), tmp_path / "x"
    )
    for options in (
        {"train": "2 * bundled:en-de/valid"},
        {"train": "bundled:en-de/valid + bundled:en-de/test", "temperature": 2.0},
    ):
        assert "has weights or a temperature: prepare each" in refuse(
            config_of(**options), tmp_path / "x"
        )
    assert not (tmp_path / "x").exists()


def training_of(tmp_path, train):
    text = TrainingText.open(config_of(train=train))
    return text.load(text.vocabularies(tmp_path / "vocabulary"), seed=3)
