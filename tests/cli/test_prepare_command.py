"""``prepare``: a corpus is cleaned and tokenised once."""

import gzip
import json
import shlex
import signal

import pytest
from cli.text import write

import runs
from jaxformer.data import corpus as corpus_module
from jaxformer.data.sources import load

CONFIG = f"--config={runs.ROOT}/configs/quickstart.py"
KEYS = {
    "data.vocabulary_size": 300,
    "data.drop_identical": True,
    "data.drop_duplicates": True,
}


@pytest.fixture
def corpus(tmp_path):
    """Write a little parallel text with something for each step to drop."""
    pairs = [tuple(pair) for pair in load("bundled:en-de/valid", "en", "de")][:300]
    pairs += [("", "leer"), ("same", "same"), pairs[0], ("short", "lang " * 40)]
    files = [
        write(tmp_path / f"an train.{name}", lines)
        for name, lines in zip(("en", "de"), zip(*pairs, strict=True), strict=True)
    ]
    return f"text:{files[0]},{files[1]}"


def arguments(corpus, **more):
    keys = {"data.train": corpus, **KEYS, **more}
    return [CONFIG, *(f"--config.{key}={value}" for key, value in keys.items())]


def test_report(call, corpus, tmp_path):
    """It prints a table of what each step dropped, draws the lengths, and says what to
    type next, in quotes where paths have blanks.
    """
    output = tmp_path / "an out"
    given = ("prepare", *arguments(corpus), f"--output={output}", "--report")
    done = call(*given)
    assert done.code == 0
    assert done.lines[0] == corpus
    table = {line.split("  ")[0]: line.split() for line in done.lines if "%" in line}
    assert table["empty"][-4:] == ["1", "0.33", "%", "303"]
    dropped = sum(int(cells[-4]) for cells in table.values())
    assert int(table["too many tokens"][-1]) == 304 - dropped
    assert (output / "lengths.png").read_bytes().startswith(b"\x89PNG")
    words = shlex.split(done.err.splitlines()[-1])
    config, _, *kept = arguments(corpus)
    prepared = f"--config.data.train=prepared:{output}"
    command = ["next:", "jaxformer", "train", config, *kept, prepared, "--workdir=..."]
    assert words == command
    manifest = json.loads((output / "manifest.json").read_text())
    counts = manifest["counts"][corpus]
    assert counts["read"] == 304
    assert counts["dropped"]["drop_identical"] >= 1
    assert counts["dropped"]["drop_duplicates"] >= 1
    kept = 304 - sum(counts["dropped"].values())
    assert sum(manifest["lengths"][0]) == kept + counts["dropped"]["max_length"]
    again = call(*given)
    assert (again.code, again.out) == (0, done.out)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--report", "--config"),
        ("CONFIG --config.data.train=prepared:x", "is prepared already"),
    ],
)
def test_wrong_options(call, tmp_path, options, message):
    given = options.replace("CONFIG", CONFIG).split()
    assert message in call("prepare", *given, f"--output={tmp_path}/out").error


@pytest.mark.parametrize("command", ["prepare --output", "train --workdir"])
def test_bad_text(call, tmp_path, command):
    """One line, although a vocabulary would be trained on the text."""
    text = tmp_path / "a.tsv.gz"
    text.write_bytes(gzip.compress(b"a\tb\n" * 9999)[:40])
    name, option = command.split()
    data = f"--config.data.train=tsv:{text}"
    done = call(name, CONFIG, data, f"{option}={tmp_path}/out")
    assert done.code == 1
    last = done.err.splitlines()[-1]
    assert last.startswith(f"jaxformer: error: {text} breaks off after")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["train --workdir", "prepare --output"])
def test_interrupted_while_text_is_read(call, corpus, tmp_path, command, monkeypatch):
    """130 and one line; the same command then does it all."""
    name, option = command.split()
    given = [name, *arguments(corpus), f"{option}={tmp_path}/out"]

    def interrupted(*_, **__):
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(corpus_module, "tokenize", interrupted)
        done = call(*given)
    assert done.code == 130
    *before, last = done.err.splitlines()
    cure = "the same command continues, or starts again if nothing was saved"
    assert last == f"jaxformer: interrupted; {cure}"
    first, *others = before
    assert first.startswith("training the vocabulary on ")
    assert all(line.endswith(": searching for duplicates") for line in others)
    assert not (tmp_path / "out" / "manifest.json").exists()
    if name == "prepare":
        assert call(*given).code == 0


def test_nothing_left(call, corpus, tmp_path):
    """A corpus whose every pair is dropped ends in one line with the reasons, and no
    folder that looks finished.
    """
    given = arguments(corpus, **{"data.max_length": 1})
    done = call("prepare", *given, f"--output={tmp_path}/out")
    assert done.code == 1
    last = done.err.splitlines()[-1]
    rule = "data.train: every one of 304 pairs was dropped"
    assert last.startswith(f"jaxformer: error: {rule}")
    assert "by too many tokens (data.max_length)" in last
    assert not (tmp_path / "out" / "manifest.json").exists()
