"""WMT becomes parallel text: tasks, archives, and runs that are interrupted."""

import gzip
import hashlib
import importlib.util
import json
import os
import random
import re
import warnings
from glob import glob
from pathlib import Path

import pytest
from archive_server import status, tar_gz

from jaxformer.data import wmt
from jaxformer.data.download import Patience, RemoteFile
from jaxformer.data.wmt import (
    DIRECTIONS,
    Release,
    Task,
    find_task,
    prepare_wmt,
    read_segments,
)
from jaxformer.errors import InputError
from jaxformer.files import LOCK

PATIENCE = Patience(timeout=0.5, attempts=2, wait=0.001)
COUNTS = {"europarl-v7": 700, "giga": 40, "newstest2013": 12, "newstest2014": 15}
SPLIT = {"europarl-v7": "train", "giga": "train", "newstest2013": "valid"}
LANGUAGES = ("en", "de")
TASKS = [find_task(name) for name in DIRECTIONS]


def text(lines):
    return "".join(f"{line}\n" for line in lines).encode()


def sgml(lines):
    segments = enumerate(lines, start=1)
    return text(f'<seg id="{number}">{line}</seg>' for number, line in segments)


def lines_of(name, language):
    draw = random.Random(f"{name}.{language}").randbytes
    return [f"{language} {number} {draw(20).hex()}" for number in range(COUNTS[name])]


def release(server, name, suffix=".sgm", write=sgml, sides=None):
    """Serve an archive with other members too, and describe it."""
    members = {side: f"{name}/{name}.{side}{suffix}" for side in LANGUAGES}
    sides = sides or {side: write(lines_of(name, side)) for side in LANGUAGES}
    packed = {members[side]: sides[side] for side in LANGUAGES[::-1]}
    content = tar_gz({"README": b"\xff", **packed, "last": b""})
    file = f"{name}.tgz"
    if suffix == ".gz":
        content, file = gzip.decompress(content), f"{name}.tar"
    address = server.serve(f"/{file}", content)
    checksum = f"sha256:{hashlib.sha256(content).hexdigest()}"
    return Release(name, RemoteFile(file, (address,), checksum, len(content)), members)


@pytest.fixture
def task(server):
    """A task with every form of archive: plain text, gzipped text, SGML."""
    train = [
        release(server, "europarl-v7", "", text),
        release(server, "giga", ".gz", lambda lines: gzip.compress(text(lines))),
    ]
    valid, test = (release(server, name) for name in ("newstest2013", "newstest2014"))
    splits = {"train": train, "valid": [valid], "test": [test]}
    return Task("toy.en-de", LANGUAGES, splits)


def prepare(task, directory, **options):
    return prepare_wmt(task, directory, patience=PATIENCE, **options)


def refuse(message, task, directory, **options):
    with pytest.raises(InputError, match=message):
        prepare(task, directory, **options)


def check_texts(directory):
    for name in COUNTS:
        for side in LANGUAGES:
            path = directory / f"{SPLIT.get(name, 'test')}.{name}.{side}"
            assert path.read_bytes() == text(lines_of(name, side))
    assert not list(directory.rglob("*.part"))


def names_of(releases):
    return [release.name for release in releases]


def test_tasks_and_files_have_unique_names():
    """Archives of several tasks may be in one folder; patterns pair the files of a
    split. WMT 2014 has three corpora for German and two more for French.
    """
    assert [task.name for task in TASKS] == list(DIRECTIONS)
    files = {}
    for task in TASKS:
        for releases in task.splits.values():
            assert len(set(names_of(releases))) == len(releases)
            for name, file, members in releases:
                assert "." not in name
                assert set(members) == set(task.languages)
                assert files.setdefault(file.name, file) == file
                assert re.fullmatch("sha256:\\w{64}|md5:\\w{32}", file.checksum)
                assert file.addresses[0].startswith("https://")
    german, french = (find_task(f"wmt14.en-{code}").splits for code in ("de", "fr"))
    three = ["europarl-v7", "commoncrawl", "news-commentary-v9"]
    assert names_of(german["train"]) == three
    assert names_of(french["train"]) == [*three, "un", "giga-fren"]
    assert names_of(german["valid"] + german["test"]) == [
        "newstest2013",
        "newstest2014",
    ]


def test_an_unknown_task_names_the_nearest():
    message = r"there are wmt13\.en-de, wmt13\.de-en.*mtdata.*did you mean wmt1\d\.en-"
    with pytest.raises(InputError, match=message):
        find_task("wmt14.en-cs")


def without_protocol(address):
    return re.sub(r"^https?://(www\.)?", "", address)


def test_training_archives_are_those_of_tensorflow_datasets():
    """Addresses, sizes and digests are those of its records; each task has its corpora
    and their members.
    """
    package = importlib.util.find_spec("tensorflow_datasets")
    if package is None or package.origin is None:
        pytest.skip("tensorflow-datasets is not installed")
    records = {}
    folder = Path(package.origin).parent / "url_checksums"
    for path in folder.glob("wmt1*_translate.txt"):
        for line in path.read_text().splitlines():
            address, size, digest, *_ = line.split("\t")
            records[without_protocol(address)] = (int(size), f"sha256:{digest}")
    assert records
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tensorflow_datasets.translate import wmt as theirs_wmt
    for task in TASKS:
        ours = {}
        for _, file, members in task.splits["train"]:
            for address in map(without_protocol, file.addresses):
                assert records[address] == (file.size, file.checksum)
                ours[address] = set(members.values())
        year, other = task.name[3:5], (set(task.languages) - {"en"}).pop()
        name = f"tensorflow_datasets.translate.wmt{year}"
        builder = getattr(importlib.import_module(name), f"Wmt{year}Translate")
        subsets = map(theirs_wmt.DATASET_MAP.get, builder._subsets.fget(None)["train"])
        assert ours == {
            without_protocol(subset.get_url(other)[0]): set(subset.get_path(other))
            for subset in subsets
            if other in subset.sources
            and subset.target == "en"
            and not subset.get_manual_dl_files(other)
        }


def test_test_sets_are_those_that_sacrebleu_scores():
    """Address, digest and members of each direction, so that scores compare."""
    datasets = pytest.importorskip("sacrebleu.dataset").DATASETS
    for task in TASKS:
        for name, file, members in (*task.splits["valid"], *task.splits["test"]):
            year = name.removeprefix("newstest20")
            theirs = datasets["wmt14/full" if year == "14" else f"wmt{year}"]
            addresses = [file.addresses[0], *theirs.data]
            assert len(set(map(without_protocol, addresses))) == 1
            assert [f"md5:{md5}" for md5 in theirs.md5] == [file.checksum]
            ours = [members[language] for language in task.languages]
            assert ours == theirs.langpairs["-".join(task.languages)]


def snapshot(directory):
    files = (
        path for path in directory.rglob("*") if path.is_file() and path.name != LOCK
    )
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def test_a_task_becomes_parallel_text(server, task, tmp_path):
    """Each corpus has a pair of files that patterns match, also in a folder whose name
    has special characters, and a record. A second run asks for nothing and writes
    nothing, with or without the archives.
    """
    lines, folder = [], tmp_path / "a[1]*"
    names = prepare(task, folder, report=lines.append)
    check_texts(folder)
    for split, count in {"train": 2, "valid": 1, "test": 1}.items():
        patterns = names[split].removeprefix("text:").split(",")
        for pattern, side in zip(patterns, LANGUAGES, strict=True):
            found = sorted(map(str, folder.glob(f"{split}.*.{side}")))
            assert sorted(glob(pattern)) == found
            assert len(found) == count
    record = json.loads((folder / wmt.MANIFEST).read_text())
    assert record["task"] == "toy.en-de"
    corpora = record["corpora"]
    assert {key.partition(".")[2]: corpora[key]["pairs"] for key in corpora} == COUNTS
    entry, file = corpora["train.europarl-v7"], task.splits["train"][0].file
    assert (entry["address"], entry["checksum"]) == (file.addresses[0], file.checksum)
    assert "train.europarl-v7: 700 pairs" in lines
    before = snapshot(folder)
    assert prepare(task, folder) == names
    assert snapshot(folder) == before
    for path in (folder / wmt.ARCHIVES).iterdir():
        path.unlink()
    assert prepare(task, folder) == names
    assert len(server.requests) == 4


@pytest.mark.parametrize("moment", [0, 3, 10])
def test_a_run_killed_at_any_moment_continues(
    server, task, tmp_path, monkeypatch, moment
):
    """Files with a final name are whole; the next run fetches only what is missing, and
    begins where an archive failed.
    """
    calls, replace = [], os.replace

    def stopping(*paths):
        calls.append(paths)
        if len(calls) > moment:
            raise KeyboardInterrupt
        replace(*paths)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", stopping)
        with pytest.raises(KeyboardInterrupt):
            prepare(task, tmp_path)
    for path in tmp_path.glob("*.*.??"):
        _, name, language = path.name.split(".")
        assert path.read_bytes() == text(lines_of(name, language))
    server.plans["/newstest2014.tgz"] = [status(404)]
    refuse(r"cannot fetch newstest2014\.tgz: http://127.*tgz: HTTP 404", task, tmp_path)
    prepare(task, tmp_path)
    check_texts(tmp_path)
    assert len(server.requests) == 5


def test_mirrors_come_first(server, task, tmp_path):
    """An address or a folder serves what it has, and the published address the rest.
    Archives that were copied into the folder are used.
    """
    copies = tmp_path / "copies"
    copies.mkdir()
    (copies / "newstest2013.tgz").write_bytes(server.files["/newstest2013.tgz"])
    server.serve("/copies/giga.tar", server.files["/giga.tar"])
    mirror = f"{server.address}/copies"
    archives = tmp_path / "wmt" / wmt.ARCHIVES
    archives.mkdir(parents=True)
    (archives / "newstest2014.tgz").write_bytes(server.files["/newstest2014.tgz"])
    prepare(task, tmp_path / "wmt", mirrors=[f"file://{copies}", f"{mirror}/"])
    check_texts(tmp_path / "wmt")
    assert [path for path, _ in server.requests] == [
        "/copies/europarl-v7.tgz",
        "/europarl-v7.tgz",
        "/copies/giga.tar",
    ]


def test_a_directory_serves_one_task_and_one_process(task, tmp_path):
    """Other files are neither overwritten nor read."""
    for name in ("train.giga.en", "train.extra.en"):
        (tmp_path / name).write_text("mine\n")
        refuse(rf"{name} is not a file of toy\.en-de.*: move or", task, tmp_path)
        assert (tmp_path / name).read_text() == "mine\n"
        (tmp_path / name).unlink()
    refusals = []

    def prepare_again(line):
        refuse("another process prepares", task, tmp_path)
        refusals.append(line)

    prepare(task, tmp_path, report=prepare_again)
    assert refusals
    check_texts(tmp_path)
    other = task._replace(name="toy.de-en")
    refuse(
        r"holds toy\.en-de: choose another directory for toy\.de-en", other, tmp_path
    )


def test_what_cannot_serve_is_refused_first(server, task, tmp_path):
    (tmp_path / "file").write_text("")
    refuse("has a comma", task, tmp_path / "a,b")
    refuse("file.*(Not a directory|File exists)", task, tmp_path / "file")
    for mirror in ("nowhere", "file:///nowhere", "sftp://mirror.example"):
        message = f"the mirror {mirror} is not a folder"
        refuse(message, task, tmp_path / "x", mirrors=[mirror])
    (tmp_path / wmt.MANIFEST).write_text("null")
    refuse(r"other files \(published.json\): choose another", task, tmp_path)
    assert not server.requests
    assert not (tmp_path / "x").exists()


def test_line_ends_are_unified(server, tmp_path):
    r"""Only ``\n`` splits; a byte order mark, ``\r\n`` and a missing last end change
    nothing.
    """
    line = "one\u2028two\x0bthree\x85four\rfive"
    sides = {"en": f"\ufeff{line}\r\n\r\n last".encode(), "de": b"1\n\n3\n"}
    split = [release(server, "europarl-v7", "", sides=sides)]
    prepare(Task("toy", LANGUAGES, {"train": split}), tmp_path)
    english, german = (tmp_path / f"train.europarl-v7.{side}" for side in LANGUAGES)
    assert english.read_bytes() == f"{line}\n\n last\n".encode()
    assert german.read_bytes() == sides["de"]


@pytest.mark.parametrize(
    ("suffix", "german", "message"),
    [
        ("", b"1\n2\n", r"\.de has 2 and .*\.en has 3 lines"),
        (".sgm", b'<seg id="1">a</seg><seg id="4">b</seg><seg id="3">c</seg>', "same"),
    ],
)
def test_sides_that_do_not_match_are_refused(server, tmp_path, suffix, german, message):
    """Other lines, or other segments of a test set; no text gets its name. A missing
    member is named.
    """
    english = (sgml if suffix else text)(["a", "b", "c"])
    wrong = release(server, "news", suffix, sides={"en": english, "de": german})
    refuse(message, Task("toy", LANGUAGES, {"train": [wrong]}), tmp_path)
    assert not list(tmp_path.glob("train.*.??"))
    without = wrong._replace(members={"en": "news/x.en", "de": "news"})
    message = r"tgz has no member news, news/x"
    refuse(message, Task("toy", LANGUAGES, {"train": [without]}), tmp_path)


def test_segments_of_a_test_set():
    """In order, entities decoded once, whatever way the tags are written."""
    content = (
        '\ufeff<refset setid="n" srclang="any" trglang="de">\r\n<DOC sysid="ref"'
        ' docid="a">\r\n<hl>\n<seg id="1">R&amp;D &quot;x&quot; &lt;b&gt; caf&eacute;'
        " &#233; &#xE9;</seg></hl>\n<p><SEG id='2'> Procter & Gamble, AT&T; &amp;lt;"
        ' &unknown; &#0000; &copy \n of two lines </SEG><seg  n="0" id = 3 >„ü“ a < b >'
        ' c</seg ></p>\n<seg id="4"></seg>\n<seg'
        ' id="5">a\u00a0b\u2028c</seg></DOC></refset>'
    )
    assert read_segments(content) == [
        ("1", 'R&D "x" <b> café é é'),
        ("2", "Procter & Gamble, AT&T; &lt; &unknown; &#0000; &copy of two lines"),
        ("3", "„ü“ a < b > c"),
        ("4", ""),
        ("5", "a\u00a0b\u2028c"),
    ]
