"""``prepare``: a corpus is fetched, or cleaned and tokenised once."""

import json

import jax
import pytest

import runs
from jaxformer.data import hub, load, published


@pytest.fixture
def corpus(tmp_path):
    """Write a little parallel text with something for each step to drop."""
    pairs = [tuple(pair) for pair in list(load("bundled:en-de/valid", "en", "de"))[:300]]
    pairs += [("", "leer"), ("same", "same"), pairs[0], ("short", "lang " * 40)]
    for side, name in enumerate(("en", "de")):
        (tmp_path / f"train.{name}").write_text("".join(pair[side] + "\n" for pair in pairs), "utf-8")
    return f"text:{tmp_path}/train.en,{tmp_path}/train.de"


def arguments(corpus, output):
    return [
        "prepare",
        f"--config={runs.ROOT}/configs/quickstart.py",
        f"--config.data.train={corpus}",
        "--config.data.vocabulary_size=300",
        "--config.data.drop_identical=True",
        "--config.data.drop_duplicates=True",
        f"--output={output}",
    ]


def test_report(call, corpus, tmp_path):
    """A table of what each step dropped, a picture of the lengths, and what to type next (statement 62)."""
    done = call(*arguments(corpus, tmp_path / "out"), "--report")
    assert done.code == 0
    assert done.lines[0] == corpus
    table = {line.split("  ")[0]: line.split() for line in done.lines if "%" in line}
    assert table["empty side"][-4:] == ["1", "0.33", "%", "303"]
    assert int(table["too many tokens"][-1]) == 304 - sum(int(cells[-4]) for cells in table.values())
    assert (tmp_path / "out" / "lengths.png").read_bytes().startswith(b"\x89PNG")
    assert f"prepared:{tmp_path}/out" in done.err
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    counts = manifest["counts"][corpus]
    assert counts["read"] == 304
    assert counts["dropped"]["drop_identical"] >= 1
    assert counts["dropped"]["drop_duplicates"] >= 1
    assert manifest["pairs"] == 304 - sum(counts["dropped"].values())
    again = call(*arguments(corpus, tmp_path / "out"), "--report")
    assert (again.code, again.out) == (0, done.out)


def test_train_reads_what_was_prepared(call, corpus, tmp_path):
    """Straight from text and from the prepared folder: the same losses to the last bit (statement 119)."""
    assert call(*arguments(corpus, tmp_path / "out")).code == 0
    train = [
        *("train", f"--config={runs.ROOT}/configs/quickstart.py", *arguments(corpus, "x")[3:-1]),
        *("--config.model.d_model=16", "--config.model.d_ff=32", "--config.model.num_heads=2"),
        *("--config.training.steps=4", "--config.training.log_every=1", "--config.evaluation.max_sentences=2"),
        "--config.data.valid=bundled:en-de/valid",
    ]
    losses = []
    for name, data in (("text", corpus), ("prepared", f"prepared:{tmp_path}/out")):
        with jax.numpy_dtype_promotion("standard"):  # optax raises a float to the power of an integer
            assert call(*train, f"--config.data.train={data}", f"--workdir={tmp_path}/{name}").code == 0
        lines = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        losses.append([line["train/loss"] for line in lines if "train/loss" in line])
    assert len(losses[0]) == 4
    assert losses[0] == losses[1]


def test_a_published_corpus(call, monkeypatch, tmp_path):
    """What to train on comes as arguments of ``train``; the mirrors are passed on."""
    asked = {}

    def fetch(name, directory, *, mirrors, report):
        asked.update(name=name, directory=directory, mirrors=mirrors)
        report("fetching")
        return {"train": "text:d/train.*.en,d/train.*.de", "test": "text:d/test.en,d/test.de"}

    monkeypatch.setattr(published, "prepare_published", fetch)
    done = call(
        "prepare", "--dataset=wmt14.en-de", f"--output={tmp_path}/d", "--mirror=https://a", "--mirror=https://b"
    )
    assert done.lines == [
        "--config.data.train=text:d/train.*.en,d/train.*.de",
        "--config.data.test=text:d/test.en,d/test.de",
    ]
    assert done.err == "fetching\n"
    assert asked == {"name": "wmt14.en-de", "directory": tmp_path / "d", "mirrors": ["https://a", "https://b"]}


def test_a_set_of_tensorflow_datasets(call, monkeypatch, tmp_path):
    """It lands in the folder that is named, and the line says how to read it."""
    monkeypatch.setenv("TFDS_DATA_DIR", "elsewhere")
    monkeypatch.setattr(hub, "prepare_tfds", lambda name: tmp_path / name)
    done = call("prepare", "--dataset=tfds:wmt14_translate/de-en", f"--output={tmp_path}")
    assert done.err == f"prepared {tmp_path}/wmt14_translate/de-en; read it with TFDS_DATA_DIR={tmp_path} in the " + (
        "environment\n"
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--dataset=wmt14.en-dd"], "wmt14.en-de"),
        (["--dataset=wmt14.en-de", "--report"], "belong to --config"),
        (["--dataset=wmt14.en-de", "--config.data.max_length=9"], "belong to --config"),
        (["--config=CONFIG", "--mirror=https://a"], "--mirror belongs to --dataset"),
        (["--config=CONFIG", "--config.data.train=text:no.en,no.de"], "no.en"),
        (["--config=CONFIG", "--config.data.train=prepared:x"], "is prepared already"),
    ],
)
def test_what_cannot_be_prepared(call, tmp_path, given, message):
    given = [argument.replace("CONFIG", f"{runs.ROOT}/configs/quickstart.py") for argument in given]
    assert message in call("prepare", *given, f"--output={tmp_path}/out").error


def test_nothing_left(call, corpus, tmp_path):
    """A corpus whose every pair is dropped ends in one line with the reasons, and no folder that looks finished."""
    done = call(*arguments(corpus, tmp_path / "out"), "--config.data.max_length=1")
    assert done.code == 1
    last = done.err.splitlines()[-1]
    assert last.startswith("jaxformer: error: data.train: every one of 304 pairs was dropped")
    assert "by too many tokens (data.max_length)" in last
    assert not (tmp_path / "out" / "manifest.json").exists()
