"""The WMT data sets of TFDS, made by TFDS's own code from archives of the published
form.

Everything is TFDS's but the text in the archives, the addresses, and the two functions
of TensorFlow that open a file and turn a name into text, with which TFDS unpacks.
"""

import gzip
import io
import sys
import types
import zipfile
from xml.sax.saxutils import escape

import pytest
from archive_server import status, tar_gz
from pairs import CODES

from jaxformer.data import hub, load
from jaxformer.errors import InputError

COUNTS = {
    "europarl": 40,
    "commoncrawl": 23,
    "news": 17,
    "paracrawl": 31,
    "titles": 12,
    "rapid": 9,
    "dev": 7,
    "test": 5,
}
EMPTY = 3  # the number of the pair that lacks a side


def pairs(corpus):
    """Make what an archive holds: with characters that other tools take for ends of
    lines, and a pair with one side.
    """
    made = [
        (f"{corpus} {n} für\u2028Äpfel & <Birnen>", f"{corpus} {n} for\x85apples")
        for n in range(COUNTS[corpus])
    ]
    made[EMPTY] = (made[EMPTY][0], "")
    return made


def whole(*corpora):
    """Return what a reader must find: all, but the pairs that lack a side."""
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


def tsv(corpus):
    return gzip.compress(
        "".join(f"{german}\t{english}\n" for german, english in pairs(corpus)).encode()
    )


def tmx(corpus):
    units = "".join(
        "<tu>"
        + "".join(
            f'<tuv xml:lang="{code}"><seg>{escape(side)}</seg></tuv>'
            for code, side in sides
        )
        + "</tu>\n"
        for sides in (zip(CODES, pair, strict=True) for pair in pairs(corpus))
    )
    return gzip.compress(
        f'<?xml version="1.0"?>\n<tmx version="1.4"><body>\n{units}</body></tmx>\n'.encode()
    )


def packed(members):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return content.getvalue()


def both(name, corpus, write=text):
    """Name the two files of a corpus within its archive."""
    return {name.format(code): write(corpus, code) for code in CODES}


def newstest(year, corpus):
    sides = {"src.de": "de", "ref.en": "en"}
    return {
        f"dev/newstest{year}-deen-{name}.sgm": sgm(corpus, code)
        for name, code in sides.items()
    }


COMMON_CRAWL = {
    "training-parallel-commoncrawl.tgz": tar_gz(
        both("commoncrawl.de-en.{}", "commoncrawl")
    )
}
ARCHIVES = {
    14: (
        COMMON_CRAWL
        | {
            "training-parallel-europarl-v7.tgz": tar_gz(
                both("training/europarl-v7.de-en.{}", "europarl")
            ),
            "training-parallel-nc-v9.tgz": tar_gz(
                both("training/news-commentary-v9.de-en.{}", "news")
            ),
            "dev.tgz": tar_gz(
                both("dev/newstest2013.{}", "dev") | newstest(2014, "test")
            ),
        }
    ),
    19: (
        COMMON_CRAWL
        | {
            "europarl-v9.de-en.tsv.gz": tsv("europarl"),
            "en-de.bicleaner07.tmx.gz": tmx("paracrawl"),
            "news-commentary-v14.de-en.tsv.gz": tsv("news"),
            "wikititles-v1.de-en.tsv.gz": tsv("titles"),
            "rapid2019.de-en.zip": packed(both("rapid2019.de-en.{}", "rapid")),
            "dev.tgz": tar_gz(newstest(2018, "dev")),
        }
    ),
}
SPLITS = {
    14: {
        "train": ("europarl", "commoncrawl", "news"),
        "validation": ("dev",),
        "test": ("test",),
    },
    19: {
        "train": ("europarl", "commoncrawl", "news", "paracrawl", "titles", "rapid"),
        "validation": ("dev",),
    },
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


def serve(server, year):
    for name, content in ARCHIVES[year].items():
        server.serve(f"/{name}", content)


def refused(name):
    with pytest.raises(InputError) as error:
        hub.prepare_tfds(name)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("year", [14, 19])
def test_archives_of_wmt_become_pairs(server, tensorflow, tmp_path, year):
    """From the raw archives (tar, gzip, zip; text, SGML, TSV, TMX) every pair with
    two sides comes, once; none else.
    """
    serve(server, year)
    folder = hub.prepare_tfds(f"wmt{year}_translate/de-en")
    assert folder == tmp_path / f"wmt{year}_translate" / "de-en" / "1.0.0"
    assert sorted({path for path, _ in server.requests}) == sorted(
        f"/{name}" for name in ARCHIVES[year]
    )
    for split, corpora in SPLITS[year].items():
        forward = list(load(f"tfds:wmt{year}_translate/de-en/{split}", "de", "en"))
        assert sorted(forward) == whole(*corpora)
        assert list(load(f"tfds:wmt{year}_translate/de-en/{split}", "en", "de")) == [
            pair[::-1] for pair in forward
        ]


def test_what_is_prepared_needs_neither_tensorflow_nor_network(
    server, tensorflow, monkeypatch
):
    serve(server, 14)
    folder = hub.prepare_tfds("wmt14_translate/de-en")
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    monkeypatch.setattr(hub, "find_spec", lambda name: None)
    server.requests.clear()
    assert hub.prepare_tfds("wmt14_translate/de-en") == folder
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    assert not server.requests


def test_without_tensorflow_no_archive_of_wmt_is_fetched(
    server, wmt, no_tensorflow, tmp_path, caplog
):
    """The lack is told before gigabytes have come, with the two ways out."""
    serve(server, 14)
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
    serve(server, 14)
    server.plans["/dev.tgz"] = [status(404)] * 2
    message = refused("wmt14_translate/de-en")
    assert (
        "cannot prepare tfds:wmt14_translate/de-en (Failed to get url"
        f" {server.address}/dev.tgz" in message
    )
    assert f"remove what is damaged from {tmp_path}/downloads and try again" in message
    serve(server, 14)
    hub.prepare_tfds("wmt14_translate/de-en")
    assert sorted(load("tfds:wmt14_translate/de-en/test", *CODES)) == whole("test")


def test_an_archive_that_breaks_off_is_named(server, tensorflow, tmp_path):
    """With its path; nothing of it counts as prepared."""
    serve(server, 14)
    server.serve("/dev.tgz", ARCHIVES[14]["dev.tgz"][:-100])
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
        ARCHIVES[14]["training-parallel-europarl-v7.tgz"],
        [],
    )
    message = refused("wmt14_translate/de-en")
    assert message.startswith(
        f"cannot prepare tfds:wmt14_translate/de-en (Artifact {address}"
    )
    assert "wrong checksum" in message
