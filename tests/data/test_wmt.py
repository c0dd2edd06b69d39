"""WMT becomes parallel text: the tasks, their archives, and runs that are interrupted."""

import gzip
import hashlib
import importlib.util
import io
import json
import os
import random
import re
import tarfile
import urllib.error
import urllib.request
import warnings
from pathlib import Path

import pytest
from archive_server import break_off, status

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
SUFFIXES = {"europarl-v7": "", "giga": ".gz"}
LANGUAGES = ("en", "de")


def draw_lines(name, language):
    draw = random.Random(f"{name}.{language}")
    return [
        f"{language} {number} {draw.randbytes(draw.randrange(9, 40)).hex()}"
        for number in range(COUNTS[name])
    ]


def text(lines):
    return "".join(f"{line}\n" for line in lines).encode()


def sgml(lines):
    return "".join(
        f'<seg id="{number}">{line}</seg>\n'
        for number, line in enumerate(lines, start=1)
    ).encode()


def pack(members, compressed=True):
    """Pack files by name as corpora are published, among others."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz" if compressed else "w") as tar:
        for name, data in {"README": b"\xff", **members, "last": b""}.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return content.getvalue()


def release(server, name, suffix=".sgm", write=sgml, sides=None):
    """Serve an archive, and describe it."""
    members = {side: f"{name}/{name}.{side}{suffix}" for side in LANGUAGES}
    sides = sides or {side: write(draw_lines(name, side)) for side in LANGUAGES}
    compressed = suffix != ".gz"
    content = pack({members[side]: sides[side] for side in LANGUAGES[::-1]}, compressed)
    file = f"{name}.{'tgz' if compressed else 'tar'}"
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


def check_texts(directory):
    for split, names in (
        ("train", ["europarl-v7", "giga"]),
        ("valid", ["newstest2013"]),
        ("test", ["newstest2014"]),
    ):
        for name in names:
            for language in LANGUAGES:
                assert (directory / f"{split}.{name}.{language}").read_bytes() == text(
                    draw_lines(name, language)
                )


TASKS = [find_task(name) for name in DIRECTIONS]


def test_the_papers_tasks():
    """WMT 2014 with its three corpora for German and two more for French,
    newstest2013 and newstest2014.
    """
    german, french = find_task("wmt14.en-de"), find_task("wmt14.en-fr")
    three = ["europarl-v7", "commoncrawl", "news-commentary-v9"]
    assert [release.name for release in german.splits["train"]] == three
    assert [release.name for release in french.splits["train"]] == [
        *three,
        "un",
        "giga-fren",
    ]
    for task in (german, french):
        assert [task.splits[split][0].name for split in ("valid", "test")] == [
            "newstest2013",
            "newstest2014",
        ]
    assert german.languages == ("en", "de")


def test_tasks_and_files_have_names_of_their_own():
    """Archives of several tasks may be in one folder; patterns pair the files of a
    split.
    """
    assert [task.name for task in TASKS] == list(DIRECTIONS)
    files = {}
    for task in TASKS:
        for releases in task.splits.values():
            names = [release.name for release in releases]
            assert len(set(names)) == len(names)
            for name, file, members in releases:
                assert "." not in name
                assert set(members) == set(task.languages)
                assert files.setdefault(file.name, file) == file
                assert re.fullmatch(
                    r"(sha256:[0-9a-f]{64}|md5:[0-9a-f]{32})", file.checksum
                )
                assert file.addresses[0].startswith("https://")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wmt14.ende", r"did you mean wmt14\.en-de"),
        ("wmt14.en-cs", r"did you mean .*wmt14\.en-"),
        ("wmt19.en-de", "mtdata or OpusTools"),
        ("iwslt", r"There are wmt13\.en-de, wmt13\.de-en"),
    ],
)
def test_an_unknown_task_names_the_nearest(name, message):
    """And what fetches other text."""
    with pytest.raises(InputError, match=message) as error:
        find_task(name)
    assert "\n" not in str(error.value)


def without_protocol(address):
    return address.removeprefix("https://").removeprefix("http://").removeprefix("www.")


def test_training_archives_are_those_of_tensorflow_datasets():
    """Addresses, sizes and digests as in its records."""
    package = importlib.util.find_spec("tensorflow_datasets")
    if package is None or package.origin is None:
        pytest.skip("tensorflow-datasets is not installed")
    records = {}
    for path in (Path(package.origin).parent / "url_checksums").glob(
        "wmt1*_translate.txt"
    ):
        for line in path.read_text().splitlines():
            address, size, digest, *_ = line.split("\t")
            records[without_protocol(address)] = (int(size), f"sha256:{digest}")
    assert records
    for file in [each.file for task in TASKS for each in task.splits["train"]]:
        for address in file.addresses:
            assert records[without_protocol(address)] == (file.size, file.checksum)


def test_training_members_are_those_of_tensorflow_datasets():
    """The same corpora for each task, under the same names in the same archives."""
    pytest.importorskip("tensorflow_datasets")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tensorflow_datasets.translate import wmt as theirs_wmt
        from tensorflow_datasets.translate import (
            wmt13,
            wmt14,
            wmt15,
            wmt16,
            wmt17,
            wmt18,
        )
    builders = dict(
        zip(range(13, 19), (wmt13, wmt14, wmt15, wmt16, wmt17, wmt18), strict=True)
    )
    for task in TASKS:
        year, other = (
            int(task.name[3:5]),
            (set(task.name[6:].split("-")) - {"en"}).pop(),
        )
        module = builders[year]
        names = getattr(module, f"Wmt{year}Translate")._subsets.fget(None)["train"]
        theirs = {}
        for name in names:
            subset = theirs_wmt.DATASET_MAP[name]
            if (
                other in subset.sources
                and subset.target == "en"
                and not subset.get_manual_dl_files(other)
            ):
                theirs[without_protocol(subset.get_url(other)[0])] = set(
                    subset.get_path(other)
                )
        ours = {
            without_protocol(release.file.addresses[0]): set(release.members.values())
            for release in task.splits["train"]
        }
        assert ours == theirs


def test_test_sets_are_those_that_sacrebleu_scores():
    """Address, digest and members of each direction, so that scores compare."""
    datasets = pytest.importorskip("sacrebleu.dataset").DATASETS
    for task in TASKS:
        pair = "-".join(task.languages)
        for release in (*task.splits["valid"], *task.splits["test"]):
            year = release.name.removeprefix("newstest20")
            theirs = datasets["wmt14/full" if year == "14" else f"wmt{year}"]
            assert [without_protocol(address) for address in theirs.data] == [
                without_protocol(release.file.addresses[0])
            ]
            assert [f"md5:{md5}" for md5 in theirs.md5] == [release.file.checksum]
            members = [release.members[language] for language in task.languages]
            assert members == theirs.langpairs[pair]


def files(directory):
    """List the files of a folder without its lock."""
    return [
        path for path in directory.rglob("*") if path.is_file() and path.name != LOCK
    ]


def snapshot(directory):
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files(directory)
    }


def test_a_task_becomes_parallel_text(server, task, tmp_path):
    """One pair of files a corpus, named so that patterns pair them, and a record of
    what came from where.
    """
    lines = []
    names = prepare(task, tmp_path / "wmt", report=lines.append)
    folder = tmp_path / "wmt"
    assert names == {
        "train": f"text:{folder}/train.*.en,{folder}/train.*.de",
        "valid": f"text:{folder}/valid.newstest2013.en,{folder}/valid.newstest2013.de",
        "test": f"text:{folder}/test.newstest2014.en,{folder}/test.newstest2014.de",
    }
    check_texts(folder)
    paired = [
        sorted(path.name for path in folder.glob(f"train.*.{language}"))
        for language in ("en", "de")
    ]
    assert [name.removesuffix(".en") for name in paired[0]] == [
        name.removesuffix(".de") for name in paired[1]
    ]
    assert not list(folder.rglob("*.part"))
    record = json.loads((folder / wmt.MANIFEST).read_text())
    assert record["task"] == "toy.en-de"
    assert {
        key.partition(".")[2]: entry["pairs"]
        for key, entry in record["corpora"].items()
    } == COUNTS
    entry = record["corpora"]["train.europarl-v7"]
    assert (entry["address"], entry["checksum"]) == (
        task.splits["train"][0].file.addresses[0],
        task.splits["train"][0].file.checksum,
    )
    assert "train.europarl-v7: 700 pairs" in lines


def test_what_is_whole_is_left_alone(server, task, tmp_path):
    """A second run asks for nothing and writes nothing, with or without the
    archives.
    """
    first = prepare(task, tmp_path)
    before, asked = snapshot(tmp_path), len(server.requests)
    assert prepare(task, tmp_path) == first
    assert snapshot(tmp_path) == before
    for path in (tmp_path / wmt.ARCHIVES).iterdir():
        path.unlink()
    assert prepare(task, tmp_path) == first
    assert len(server.requests) == asked == 4


@pytest.mark.parametrize("moment", range(0, 16, 3))
def test_a_run_killed_at_any_moment_goes_on(
    server, task, tmp_path, monkeypatch, moment
):
    """Whatever bears a final name is whole, and the next run fetches only what is
    missing.
    """
    calls = 0

    def stopping(function):
        def call(*arguments):
            nonlocal calls
            calls += 1
            if calls > moment:
                raise KeyboardInterrupt
            return function(*arguments)

        return call

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", stopping(os.replace))
        with pytest.raises(KeyboardInterrupt):
            prepare(task, tmp_path)
    for path in tmp_path.glob("*.*.??"):
        _, name, language = path.name.split(".")
        assert path.read_bytes() == text(draw_lines(name, language))
    prepare(task, tmp_path)
    check_texts(tmp_path)
    assert not list(tmp_path.rglob("*.part"))
    assert len(server.requests) == 4  # not one archive was asked for twice


def test_an_archive_that_fails_leaves_the_others(server, task, tmp_path):
    """The next run begins where this one stopped."""
    server.plans["/newstest2013.tgz"] = [status(404)]
    with pytest.raises(
        InputError,
        match=(
            r"cannot fetch newstest2013\.tgz: http://127.*/newstest2013\.tgz: HTTP 404"
        ),
    ):
        prepare(task, tmp_path)
    assert (tmp_path / "train.giga.de").exists()
    prepare(task, tmp_path)
    check_texts(tmp_path)
    assert [path for path, _ in server.requests].count("/europarl-v7.tgz") == 1


def test_an_archive_brought_by_other_means(server, task, tmp_path):
    """It is verified and used."""
    (tmp_path / wmt.ARCHIVES).mkdir()
    for path, content in server.files.items():
        (tmp_path / wmt.ARCHIVES / path[1:]).write_bytes(content)
    prepare(task, tmp_path)
    check_texts(tmp_path)
    assert not server.requests


def test_mirrors_come_first(server, task, tmp_path):
    """A mirror serves what it has, and the published address the rest."""
    content = server.files["/giga.tar"]
    mirror = server.serve(
        "/copies/giga.tar", content, break_off(len(content) // 2)
    ).rsplit("/", 1)[0]
    prepare(task, tmp_path, mirrors=[f"{mirror}/"])
    check_texts(tmp_path)
    paths = [path for path, _ in server.requests]
    assert paths[:2] == ["/copies/europarl-v7.tgz", "/europarl-v7.tgz"]
    assert "/copies/giga.tar" in paths
    assert "/giga.tar" not in paths


def test_a_wrong_archive_is_never_unpacked(server, task, tmp_path):
    """One line, and no text of it."""
    content = bytearray(server.files["/europarl-v7.tgz"])
    content[100] ^= 1
    server.serve("/europarl-v7.tgz", bytes(content))
    with pytest.raises(
        InputError,
        match=(
            r"/europarl-v7\.tgz: wrong file: expected sha256 [0-9a-f]+, found [0-9a-f]+"
        ),
    ):
        prepare(task, tmp_path)
    assert files(tmp_path) == []


def test_files_of_somebody_else_are_neither_overwritten_nor_read(
    server, task, tmp_path
):
    own = tmp_path / "train.giga.en"
    own.write_text("mine\n")
    with pytest.raises(
        InputError,
        match=r"train\.giga\.en is not a file of toy\.en-de.*: move or remove it",
    ):
        prepare(task, tmp_path)
    assert own.read_text() == "mine\n"
    own.rename(tmp_path / "train.extra.en")
    with pytest.raises(
        InputError,
        match=r"train\.extra\.en is not a file of toy\.en-de.*: move or remove it",
    ):
        prepare(task, tmp_path)


def test_a_directory_serves_one_task(server, task, tmp_path):
    prepare(task, tmp_path)
    with pytest.raises(
        InputError, match=r"holds toy\.en-de: choose another directory for toy\.de-en"
    ):
        prepare(task._replace(name="toy.de-en"), tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        "null",
        '{"task": "toy.en-de"}',
        '{"task": "toy.en-de", "corpora": {"a": 1}}',
        "\xff",
    ],
)
def test_a_foreign_record_is_refused(task, tmp_path, content):
    (tmp_path / wmt.MANIFEST).write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError, match="is not the manifest of a published task"):
        prepare(task, tmp_path)


def test_two_processes_do_not_write_one_directory(server, task, tmp_path):
    """The second is refused while the first runs."""
    refusals = []

    def prepare_again(line):
        with pytest.raises(InputError, match="another process prepares") as error:
            prepare(task, tmp_path)
        refusals.append(error)

    prepare(task, tmp_path, report=prepare_again)
    assert refusals
    check_texts(tmp_path)


@pytest.mark.parametrize("form", ["{0}", "file://{0}"])
def test_a_mirror_may_be_a_folder(server, task, tmp_path, monkeypatch, form):
    """Its archives are copied, and verified like all others; what it lacks comes
    from the published address.
    """
    prepare(task, tmp_path / "first")
    mirror = (tmp_path / "first" / "archives").rename(tmp_path / "copies")
    archives = sorted(path.name for path in mirror.iterdir())
    (mirror / archives[0]).unlink()
    before = len(server.requests)
    prepare(task, tmp_path / "second", mirrors=[form.format(mirror)])
    check_texts(tmp_path / "second")
    assert len(server.requests) == before + 1


@pytest.mark.parametrize(
    "mirror", ["nowhere", "file:///nowhere", "sftp://mirror.example/a"]
)
def test_a_mirror_that_is_none(server, task, tmp_path, mirror):
    """It is refused before anything is fetched or made."""
    with pytest.raises(InputError, match=f"the mirror {mirror} is not a folder"):
        prepare(task, tmp_path / "new", mirrors=[mirror])
    assert not server.requests
    assert not (tmp_path / "new").exists()


def test_directories_that_cannot_serve(task, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="has a comma"):
        prepare(task, tmp_path / "a,b")
    with pytest.raises(InputError, match=r"file.*(Not a directory|File exists)"):
        prepare(task, tmp_path / "file")


def test_signs_of_patterns_in_a_directory(server, task, tmp_path):
    """The name of the data set matches the files all the same."""
    folder = tmp_path / "a[1]*"
    pattern = prepare(task, folder)["train"].removeprefix("text:").split(",")[0]
    assert [path.name for path in map(type(folder), wmt.glob.glob(pattern))] != []


def test_a_real_task_by_name(tmp_path, monkeypatch):
    """The published addresses are asked in their order after the mirrors, each named
    when it fails.
    """
    asked = []

    def refuse(request, timeout):
        asked.append(request.full_url)
        raise urllib.error.HTTPError(
            request.full_url, 404, "Not Found", request.headers, io.BytesIO()
        )

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    with pytest.raises(InputError) as error:
        prepare_wmt(
            find_task("wmt14.en-de"), tmp_path, mirrors=["https://mirror.example"]
        )
    addresses = find_task("wmt14.en-de").splits["train"][0].file.addresses
    assert asked == [
        "https://mirror.example/training-parallel-europarl-v7.tgz",
        *addresses,
    ]
    for address in asked:
        assert f"{address}: HTTP 404 Not Found; " in str(error.value)


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
        (".sgm", b'<seg id="1">a</seg><seg id="3">b</seg>', "must have the same lines"),
        (".sgm", b'<seg id="1">a</seg><seg id="4">b</seg><seg id="3">c</seg>', "same"),
    ],
)
def test_sides_that_do_not_match_are_refused(server, tmp_path, suffix, german, message):
    """Other lines, or other segments of a test set; no text gets its name."""
    english = (sgml if suffix else text)(["a", "b", "c"])
    wrong = release(server, "news", suffix, sides={"en": english, "de": german})
    with pytest.raises(InputError, match=message):
        prepare(Task("toy", LANGUAGES, {"train": [wrong]}), tmp_path)
    assert not list(tmp_path.glob("train.*.??"))


def test_a_missing_member_is_named(server, task, tmp_path):
    """A folder or a link of its name is no text."""
    first = task.splits["train"][0]
    other = first._replace(members={"en": "europarl-v7/x.en", "de": "europarl-v7"})
    with pytest.raises(
        InputError, match=r"tgz has no member europarl-v7, europarl-v7/x"
    ):
        prepare(task._replace(splits={"train": [other]}), tmp_path)


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
