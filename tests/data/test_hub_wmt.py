"""The WMT data sets of TFDS, made by TFDS's own code from archives of the published
form.

Everything is TFDS's but the text in the archives, the addresses, and the two functions
of TensorFlow that open a file and turn a name into text, with which TFDS unpacks.
"""

import sys
import types

import pytest
from archive_server import status, tar_gz
from pairs import CODES

from jaxformer.data import hub, load
from jaxformer.errors import InputError

COUNTS = {"europarl": 40, "commoncrawl": 23, "news": 17, "dev": 7, "test": 5}
EMPTY = 3  # the number of the pair without a source


def pairs(corpus):
    """Make the pairs of an archive, with line separators of Unicode and one empty
    side.
    """
    made = [
        (f"{corpus} {n} für\u2028Äpfel & <Birnen>", f"{corpus} {n} for\x85apples")
        for n in range(COUNTS[corpus])
    ]
    made[EMPTY] = (made[EMPTY][0], "")
    return made


def whole(*corpora):
    """Return the pairs that have both sides, sorted."""
    return sorted(pair for corpus in corpora for pair in pairs(corpus) if all(pair))


def text(corpus, language):
    return "".join(
        f"{pair[CODES.index(language)]}\n" for pair in pairs(corpus)
    ).encode()


def sgm(corpus, language):
    lines = text(corpus, language).decode().split("\n")[:-1]
    return "".join(
        f'<seg id="{number}">{line}</seg>\n' for number, line in enumerate(lines, 1)
    ).encode()


def both(name, corpus, write=text):
    """Name the two files of a corpus within its archive."""
    return {name.format(code): write(corpus, code) for code in CODES}


def newstest(year, corpus):
    sides = {"src.de": "de", "ref.en": "en"}
    return {
        f"dev/newstest{year}-deen-{name}.sgm": sgm(corpus, code)
        for name, code in sides.items()
    }


ARCHIVES = {
    name: tar_gz(members)
    for name, members in {
        "training-parallel-commoncrawl.tgz": both(
            "commoncrawl.de-en.{}", "commoncrawl"
        ),
        "training-parallel-europarl-v7.tgz": both(
            "training/europarl-v7.de-en.{}", "europarl"
        ),
        "training-parallel-nc-v9.tgz": both(
            "training/news-commentary-v9.de-en.{}", "news"
        ),
        "dev.tgz": both("dev/newstest2013.{}", "dev") | newstest(2014, "test"),
    }.items()
}
SPLITS = {
    "train": ("europarl", "commoncrawl", "news"),
    "validation": ("dev",),
    "test": ("test",),
}


@pytest.fixture
def wmt(server, tmp_path, monkeypatch):
    """TFDS's WMT with the addresses of our server, and an empty folder."""
    wmt = pytest.importorskip("tensorflow_datasets.translate.wmt")
    for known in wmt.DATASET_MAP.values():
        names = [address.rsplit("/", 1)[-1] for address in known._urls]
        monkeypatch.setattr(
            known, "_urls", tuple(f"{server.address}/{name}" for name in names)
        )
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    return wmt


@pytest.fixture
def tensorflow(wmt, monkeypatch):
    """What TFDS uses of TensorFlow to unpack."""
    from tensorflow_datasets.core.download import extractor

    stand_in = types.SimpleNamespace(
        io=types.SimpleNamespace(gfile=types.SimpleNamespace(GFile=open)),
        compat=types.SimpleNamespace(as_text=str),
    )
    monkeypatch.setattr(extractor, "tf", stand_in)
    monkeypatch.setattr(hub, "find_spec", lambda name: stand_in)


@pytest.fixture
def no_tensorflow(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)


def serve(server):
    for name, content in ARCHIVES.items():
        server.serve(f"/{name}", content)


def refused(name):
    with pytest.raises(InputError) as error:
        hub.prepare_tfds(name)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_archives_of_wmt_become_pairs(server, tensorflow, tmp_path, monkeypatch):
    """Every pair with two sides comes once. What is prepared needs neither TensorFlow
    nor the network.
    """
    serve(server)
    folder = hub.prepare_tfds("wmt14_translate/de-en")
    assert folder == tmp_path / "wmt14_translate" / "de-en" / "1.0.0"
    asked = sorted({path for path, _ in server.requests})
    assert asked == sorted(f"/{name}" for name in ARCHIVES)
    for split, corpora in SPLITS.items():
        forward = list(load(f"tfds:wmt14_translate/de-en/{split}", "de", "en"))
        assert sorted(forward) == whole(*corpora)
        assert list(load(f"tfds:wmt14_translate/de-en/{split}", "en", "de")) == [
            pair[::-1] for pair in forward
        ]
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    monkeypatch.setattr(hub, "find_spec", lambda name: None)
    server.requests.clear()
    assert hub.prepare_tfds("wmt14_translate/de-en") == folder
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    assert not server.requests


def test_without_tensorflow_no_archive_of_wmt_is_fetched(
    server, wmt, no_tensorflow, tmp_path, caplog
):
    """The error precedes any download, and names both cures."""
    serve(server)
    message = refused("wmt14_translate/de-en")
    start = (
        "preparing tfds:wmt14_translate/de-en needs more than reading it (TensorFlow"
        " unpacks its archives): "
    )
    assert message.startswith(start)
    assert (
        "pip install tensorflow importlib_resources, or prepare it on another machine"
        " and copy its folder" in message
    )
    assert message.endswith(str(tmp_path / "wmt14_translate" / "de-en" / "1.0.0"))
    assert not server.requests
    assert not caplog.records


def test_without_tensorflow_another_archive_is_not_unpacked(
    server, no_tensorflow, tmp_path, monkeypatch
):
    """Where only TFDS knows that it must unpack, its failure is told in the same
    line.
    """
    tfds = pytest.importorskip("tensorflow_datasets")
    address = server.serve("/corpus.tgz", tar_gz(both("corpus.{}", "news")))

    class PackedCorpus(tfds.core.GeneratorBasedBuilder):
        # it stands in no package, where TFDS would look for its checksums
        code_path = None
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            return tfds.core.DatasetInfo(
                builder=self, features=tfds.features.Translation(languages=CODES)
            )

        def _split_generators(self, dl_manager):
            return {
                "train": self._generate_examples(
                    dl_manager.download_and_extract(address)
                )
            }

        def _generate_examples(self, folder):
            yield 0, {code: str(folder) for code in CODES}

    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    message = refused("packed_corpus")
    assert message.startswith(
        "preparing tfds:packed_corpus needs more than reading it ("
    )
    assert "pip install tensorflow" in message


def test_an_address_that_is_gone_is_named(server, tensorflow, tmp_path):
    """In one line; the next attempt asks only for what is missing."""
    serve(server)
    server.plans["/dev.tgz"] = [status(404)] * 2
    message = refused("wmt14_translate/de-en")
    assert (
        "cannot prepare tfds:wmt14_translate/de-en (Failed to get url"
        f" {server.address}/dev.tgz" in message
    )
    assert f"remove what is damaged from {tmp_path}/downloads and try again" in message
    serve(server)
    hub.prepare_tfds("wmt14_translate/de-en")
    assert sorted(load("tfds:wmt14_translate/de-en/test", *CODES)) == whole("test")


def test_an_archive_that_breaks_off_is_named(server, tensorflow, tmp_path):
    """With its path; nothing of it counts as prepared."""
    serve(server)
    server.serve("/dev.tgz", ARCHIVES["dev.tgz"][:-100])
    message = refused("wmt14_translate/de-en")
    assert f"(Error while extracting {tmp_path}/downloads/" in message
    with pytest.raises(InputError, match="is not prepared"):
        load("tfds:wmt14_translate/de-en/train", *CODES)


def test_an_archive_of_another_checksum_is_refused(server, tmp_path, monkeypatch):
    """Not what TFDS knows of that address: told with the address."""
    pytest.importorskip("tensorflow_datasets")
    # it is not needed to come so far
    monkeypatch.setattr(hub, "find_spec", lambda name: object())
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    # so that the published addresses lead here
    monkeypatch.setenv("http_proxy", server.address)
    address = "http://www.statmt.org/wmt13/training-parallel-europarl-v7.tgz"
    server.files[address], server.plans[address] = (
        ARCHIVES["training-parallel-europarl-v7.tgz"],
        [],
    )
    message = refused("wmt14_translate/de-en")
    assert message.startswith(
        f"cannot prepare tfds:wmt14_translate/de-en (Artifact {address}"
    )
    assert "wrong checksum" in message
