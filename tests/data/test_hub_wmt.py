"""The WMT data sets of TFDS, made by TFDS's own code from archives of the published
form.

Everything is TFDS's but the text in the archives, the addresses, and the two functions
of TensorFlow that open a file and turn a name into text, with which TFDS unpacks.
"""

import sys
import types
from pathlib import Path

import pytest
from archive_server import tar_gz
from pairs import CODES

from jaxformer.cli import config_file
from jaxformer.data import hub
from jaxformer.data.preparing import prepare
from jaxformer.data.sources import load
from jaxformer.errors import InputError
from jaxformer.runs import config as configuration

COUNTS = {"europarl": 40, "commoncrawl": 23, "news": 17, "dev": 7, "test": 5}


def pairs(corpus):
    """Make the pairs of an archive, with Unicode line separators and an empty side."""
    made = [
        (f"{corpus} {n} für\u2028Äpfel & <Birnen>", f"{corpus} {n} for\x85apples")
        for n in range(COUNTS[corpus])
    ]
    made[3] = (made[3][0], "")
    return made


def whole(*corpora):
    """Return the pairs that have both sides, sorted."""
    return sorted(pair for corpus in corpora for pair in pairs(corpus) if all(pair))


def both(name, corpus, form="{line}\n"):
    """Name the two files of a corpus within its archive."""
    members = {}
    for code, kind, lines in zip(
        CODES, ("src", "ref"), zip(*pairs(corpus), strict=True), strict=True
    ):
        made = [form.format(line=line, number=n) for n, line in enumerate(lines, 1)]
        members[name.format(code, kind)] = "".join(made).encode()
    return members


SEGMENT = '<seg id="{number}">{line}</seg>\n'
NEWSTEST = "dev/newstest2014-deen-{1}.{0}.sgm"
ARCHIVES = {
    f"{name}.tgz": tar_gz(members)
    for name, members in {
        "training-parallel-commoncrawl": both("commoncrawl.de-en.{}", "commoncrawl"),
        "training-parallel-europarl-v7": both(
            "training/europarl-v7.de-en.{}", "europarl"
        ),
        "training-parallel-nc-v9": both("training/news-commentary-v9.de-en.{}", "news"),
        "dev": both("dev/newstest2013.{}", "dev") | both(NEWSTEST, "test", SEGMENT),
    }.items()
}
SPLITS = {
    "train": ("europarl", "commoncrawl", "news"),
    "validation": ("dev",),
    "test": ("test",),
}
NAME = "wmt14_translate/de-en"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def wmt(server, tmp_path, monkeypatch):
    """TFDS's WMT with the addresses of our server, and an empty folder."""
    wmt = pytest.importorskip("tensorflow_datasets.translate.wmt")
    for known in wmt.DATASET_MAP.values():
        names = [address.rsplit("/", 1)[-1] for address in known._urls]
        addresses = tuple(f"{server.address}/{name}" for name in names)
        monkeypatch.setattr(known, "_urls", addresses)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    for name, content in ARCHIVES.items():
        server.serve(f"/{name}", content)


@pytest.fixture
def tensorflow(monkeypatch):
    """What TFDS uses of TensorFlow to unpack."""
    from tensorflow_datasets.core.download import extractor

    space = types.SimpleNamespace
    gfile, compat = space(GFile=open), space(as_text=str)
    stand_in = space(io=space(gfile=gfile), compat=compat)
    monkeypatch.setattr(extractor, "tf", stand_in)
    monkeypatch.setattr(hub, "find_spec", lambda name: stand_in)


@pytest.fixture
def no_tensorflow(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)


def refused(name):
    with pytest.raises(InputError) as error:
        load(f"tfds:{name}/train", *CODES)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_archives_of_wmt_become_pairs(server, tensorflow, tmp_path, monkeypatch):
    """Every pair with two sides comes once. A folder that is prepared needs neither
    TensorFlow nor the network.
    """
    folder = tmp_path / NAME / "1.0.0"
    assert not folder.exists()
    load(f"tfds:{NAME}/train", *CODES)
    assert set(server.requests) == {f"/{name}" for name in ARCHIVES}
    for split, corpora in SPLITS.items():
        forward = list(load(f"tfds:{NAME}/{split}", "de", "en"))
        assert sorted(forward) == whole(*corpora)
        backward = list(load(f"tfds:{NAME}/{split}", "en", "de"))
        assert backward == [pair[::-1] for pair in forward]
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    monkeypatch.setattr(hub, "find_spec", lambda name: None)
    server.requests.clear()
    assert sorted(load(f"tfds:{NAME}/train", *CODES)) == whole(*SPLITS["train"])
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    assert not server.requests


def test_the_papers_text_is_prepared_from_nothing(tensorflow, tmp_path):
    """By the name in its configuration."""
    file, size = str(ROOT / "configs/paper/ende_base.py"), 80
    given = config_file.read(file, [f"--config.data.vocabulary_size={size}"])
    done = prepare(configuration.parse(given).data, tmp_path / "prepared")
    (counts,) = done.counts.values()
    assert counts.kept == len(whole(*SPLITS["train"]))


def test_without_tensorflow_no_archive_of_wmt_is_fetched(
    server, no_tensorflow, tmp_path, caplog
):
    """The error precedes any download, and names both cures."""
    message = refused(NAME)
    assert message == (
        f"tfds:{NAME} is not prepared in {tmp_path / NAME / '1.0.0'}, which needs"
        " TensorFlow once: pip install tensorflow; or read"
        " hf:wmt/wmt14#de-en/train, which needs none"
    )
    assert not server.requests
    assert not caplog.records
