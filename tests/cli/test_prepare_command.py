"""``prepare``: a corpus is fetched, or cleaned and tokenised once."""

import gzip
import json
import lzma
import shlex
import subprocess
import sys

import jax
import pytest

import runs
from jaxformer.cli.main import main
from jaxformer.data import hub, load, wmt


@pytest.fixture
def corpus(tmp_path):
    """Write a little parallel text with something for each step to drop."""
    pairs = [
        tuple(pair) for pair in list(load("bundled:en-de/valid", "en", "de"))[:300]
    ]
    pairs += [("", "leer"), ("same", "same"), pairs[0], ("short", "lang " * 40)]
    for side, name in enumerate(("en", "de")):
        (tmp_path / f"train.{name}").write_text(
            "".join(pair[side] + "\n" for pair in pairs), "utf-8"
        )
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
    """A table of what each step dropped, a picture of the lengths, and what to type
    next.
    """
    done = call(*arguments(corpus, tmp_path / "out"), "--report")
    assert done.code == 0
    assert done.lines[0] == corpus
    table = {line.split("  ")[0]: line.split() for line in done.lines if "%" in line}
    assert table["empty side"][-4:] == ["1", "0.33", "%", "303"]
    assert int(table["too many tokens"][-1]) == 304 - sum(
        int(cells[-4]) for cells in table.values()
    )
    assert (tmp_path / "out" / "lengths.png").read_bytes().startswith(b"\x89PNG")
    following = (
        done.err.splitlines()[-1].removeprefix("next: ").removesuffix(" --workdir=...")
    )
    given = [
        argument
        for argument in arguments(corpus, "x")[1:-1]
        if "data.train" not in argument
    ]
    assert shlex.split(following) == [
        "jaxformer",
        "train",
        *given,
        f"--config.data.train=prepared:{tmp_path}/out",
    ]
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    counts = manifest["counts"][corpus]
    assert counts["read"] == 304
    assert counts["dropped"]["drop_identical"] >= 1
    assert counts["dropped"]["drop_duplicates"] >= 1
    kept = 304 - sum(counts["dropped"].values())
    assert sum(manifest["lengths"][0]) == kept + counts["dropped"]["max_length"]
    again = call(*arguments(corpus, tmp_path / "out"), "--report")
    assert (again.code, again.out) == (0, done.out)


def test_train_reads_what_was_prepared(call, corpus, tmp_path):
    """Straight from text and from the prepared folder: the same losses to the last
    bit.
    """
    assert call(*arguments(corpus, tmp_path / "out")).code == 0
    train = [
        *(
            "train",
            f"--config={runs.ROOT}/configs/quickstart.py",
            *arguments(corpus, "x")[3:-1],
        ),
        *(
            "--config.model.d_model=16",
            "--config.model.d_ff=32",
            "--config.model.num_heads=2",
        ),
        *(
            "--config.model.num_encoder_layers=1",
            "--config.model.num_decoder_layers=1",
            "--config.data.num_buckets=2",
        ),
        *(
            "--config.training.steps=4",
            "--config.training.log_every=1",
            "--config.training.engine=jit",
        ),
        *(
            "--config.evaluation.max_sentences=0",
            "--config.evaluation.best_metric=loss",
            f"--config.data.valid={corpus}",
        ),
    ]
    losses = []
    for name, data in (("text", corpus), ("prepared", f"prepared:{tmp_path}/out")):
        # optax raises a float to the power of an integer
        with jax.numpy_dtype_promotion("standard"):
            assert (
                call(
                    *train,
                    f"--config.data.train={data}",
                    f"--workdir={tmp_path}/{name}",
                ).code
                == 0
            )
        lines = [
            json.loads(line)
            for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        ]
        losses.append([line["train/loss"] for line in lines if "train/loss" in line])
    assert len(losses[0]) == 4
    assert losses[0] == losses[1]


def test_a_published_corpus(call, monkeypatch, tmp_path):
    """What to train on comes as arguments of ``train``; the mirrors are passed on."""
    asked = {}

    def fetch(task, directory, *, mirrors, report):
        asked.update(name=task.name, directory=directory, mirrors=mirrors)
        report("fetching")
        return {
            "train": "text:d/train.*.en,d/train.*.de",
            "test": "text:d/test.en,d/test.de",
        }

    monkeypatch.setattr(wmt, "prepare_wmt", fetch)
    done = call(
        "prepare",
        "--dataset=wmt14.en-de",
        f"--output={tmp_path}/d",
        "--mirror=https://a",
        "--mirror=https://b",
    )
    assert done.lines == [
        "--config.data.train=text:d/train.*.en,d/train.*.de",
        "--config.data.test=text:d/test.en,d/test.de",
    ]
    assert done.err == "fetching\n"
    assert asked == {
        "name": "wmt14.en-de",
        "directory": tmp_path / "d",
        "mirrors": ["https://a", "https://b"],
    }


def test_a_set_of_tensorflow_datasets(call, monkeypatch, tmp_path):
    """It lands in the folder that is named, and the line says how to read it."""
    monkeypatch.setenv("TFDS_DATA_DIR", "elsewhere")
    monkeypatch.setattr(hub, "prepare_tfds", lambda name: tmp_path / name)
    done = call(
        "prepare", "--dataset=tfds:wmt14_translate/de-en", f"--output={tmp_path}"
    )
    assert (
        done.err == f"prepared {tmp_path}/wmt14_translate/de-en; read it with"
        f" TFDS_DATA_DIR={tmp_path} in the " + "environment\n"
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
    given = [
        argument.replace("CONFIG", f"{runs.ROOT}/configs/quickstart.py")
        for argument in given
    ]
    assert message in call("prepare", *given, f"--output={tmp_path}/out").error


def test_what_is_typed_next_may_need_quotes(call, corpus, tmp_path):
    """Also where paths have blanks; values that the folder was prepared with go
    along.
    """
    done = call(*arguments(corpus, tmp_path / "an out"))
    words = shlex.split(done.err.splitlines()[-1].removeprefix("next: "))
    assert f"--config.data.train=prepared:{tmp_path}/an out" in words
    assert "--config.data.vocabulary_size=300" in words


INTERRUPTED = """
import gc, os, signal, sys, time
from jaxformer.cli.main import main
from jaxformer.data import corpus, encoding

def send():
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(3):
        pass

def _xla_gc_callback(phase, info):
    send()
    gc.callbacks.remove(_xla_gc_callback)

if sys.argv[1] == "text":
    real = corpus.tokenize
    def tokenize(*given, **options):
        for piece in real(*given, **options):
            gc.callbacks.append(_xla_gc_callback)
            gc.collect()
            yield piece
    corpus.tokenize = tokenize
    encoding.CHUNK = 50
else:
    from jaxformer.data.vocabulary import Vocabulary
    real = Vocabulary.train.__func__
    def train(kind, sentences, *given, **options):
        def feed():
            for number, sentence in enumerate(sentences):
                if number == 100:
                    send()
                    time.sleep(60 * (sys.argv[1] == "busy"))
                yield sentence
        return real(kind, feed(), *given, **options)
    Vocabulary.train = classmethod(train)
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize("command", ["prepare", "train"])
@pytest.mark.parametrize("where", ["text", "vocabulary", "busy"])
def test_interrupted_while_text_is_read(corpus, tmp_path, command, where):
    """Ctrl-C is never lost, not even within JAX's callback of the garbage collector,
    nor waited for while compiled code is busy: 130 and one line; the same command then
    does it all.
    """
    given = arguments(corpus, tmp_path / "out")
    if command == "train":
        given = [
            "train",
            *given[1:-1],
            f"--workdir={tmp_path}/out",
            "--config.data.valid=bundled:en-de/valid",
        ]
    line = [sys.executable, "-c", INTERRUPTED, where, *given]
    done = subprocess.run(
        line, capture_output=True, text=True, check=False, env=runs.environment()
    )
    assert done.returncode == 130, done.stderr
    told = done.stderr.splitlines()
    assert (
        told[-1]
        == "jaxformer: interrupted; the same command continues, or starts again if"
        " nothing was saved"
    )
    assert [
        line for line in told[:-1] if not line.startswith("training the vocabulary on ")
    ] == []
    if command == "prepare":
        assert main(given) == 0
    else:
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"a.en": b"a\nb\n", "a.de": b"a\n"}, "a.en has 2 lines and "),
        ({"a.en": b"a\n\xff\n", "a.de": b"a\nb\n"}, "a.en, line 2: not UTF-8"),
        ({"a.en": b"", "a.de": b"a\n"}, "a.en is empty"),
        ({"a.tsv": b"a\tb\nc\n"}, "a.tsv, line 2: column 2 of 1"),
        ({"a.jsonl": b"{}\n"}, "a.jsonl, line 1: no language 'en'"),
        (
            {"a.tsv.gz": gzip.compress(b"a\tb\n" * 9999)[:40]},
            "a.tsv.gz breaks off after line ",
        ),
        (
            {"a.tsv.xz": lzma.compress(b"a\tb\n" * 9999)[:90]},
            "a.tsv.xz breaks off after line ",
        ),
    ],
)
@pytest.mark.parametrize("command", ["prepare", "train"])
def test_bad_text(call, tmp_path, command, content, message):
    """One clear line, with nothing before it, although a vocabulary would be trained
    on the text.
    """
    for name, lines in content.items():
        (tmp_path / name).write_bytes(lines)
    paths = ",".join(str(tmp_path / name) for name in content)
    kind = "text" if len(content) == 2 else next(iter(content)).split(".")[1]
    folder = "output" if command == "prepare" else "workdir"
    config = f"--config={runs.ROOT}/configs/quickstart.py"
    done = call(
        command,
        config,
        f"--config.data.train={kind}:{paths}",
        f"--{folder}={tmp_path}/out",
    )
    assert done.code == 1
    assert done.err.splitlines()[-1].startswith(
        f"jaxformer: error: {tmp_path}/{message}"
    )
    assert "Traceback" not in done.err
    assert not (tmp_path / "out").exists()


def test_nothing_left(call, corpus, tmp_path):
    """A corpus whose every pair is dropped ends in one line with the reasons, and no
    folder that looks finished.
    """
    done = call(*arguments(corpus, tmp_path / "out"), "--config.data.max_length=1")
    assert done.code == 1
    last = done.err.splitlines()[-1]
    assert last.startswith(
        "jaxformer: error: data.train: every one of 304 pairs was dropped"
    )
    assert "by too many tokens (data.max_length)" in last
    assert not (tmp_path / "out" / "manifest.json").exists()
