import hashlib
import io
import json
import os
import random
import urllib.error
import urllib.request
from dataclasses import replace

import pytest
from archive_server import break_off, status, tar_gz

from jaxformer.data import published
from jaxformer.data.archives import Files
from jaxformer.data.download import Patience, RemoteFile
from jaxformer.data.published import prepare, prepare_published
from jaxformer.data.releases import Release, Task, find_task
from jaxformer.errors import InputError
from jaxformer.files import LOCK

PATIENCE = Patience(timeout=0.5, attempts=2, wait=0.001)
COUNTS = {"europarl-v7": 700, "commoncrawl": 40, "newstest2013": 12, "newstest2014": 15}


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


def release(server, name, suffix, write):
    form = Files(
        {language: f"{name}/{name}.{language}{suffix}" for language in ("en", "de")}
    )
    content = tar_gz(
        {
            member: write(draw_lines(name, language))
            for language, member in form.members.items()
        }
    )
    address = server.serve(f"/{name}.tgz", content)
    file = RemoteFile(
        f"{name}.tgz",
        (address,),
        f"sha256:{hashlib.sha256(content).hexdigest()}",
        len(content),
    )
    return Release(name, file, form)


@pytest.fixture
def task(server):
    train = tuple(
        release(server, name, "", text) for name in ("europarl-v7", "commoncrawl")
    )
    tests = [
        release(server, name, ".sgm", sgml) for name in ("newstest2013", "newstest2014")
    ]
    return Task("toy.en-de", "en", "de", train, (tests[0],), (tests[1],))


def check_texts(directory):
    for split, names in (
        ("train", ["europarl-v7", "commoncrawl"]),
        ("valid", ["newstest2013"]),
        ("test", ["newstest2014"]),
    ):
        for name in names:
            for language in ("en", "de"):
                assert (directory / f"{split}.{name}.{language}").read_bytes() == text(
                    draw_lines(name, language)
                )


def files(directory):
    """List what lies in a folder, but for the empty file that holds it for one
    process.
    """
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
    names = prepare(task, tmp_path / "wmt", patience=PATIENCE, report=lines.append)
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
    record = json.loads((folder / published.MANIFEST).read_text())
    assert record["task"] == "toy.en-de"
    assert {
        key.partition(".")[2]: entry["pairs"]
        for key, entry in record["corpora"].items()
    } == COUNTS
    entry = record["corpora"]["train.europarl-v7"]
    assert (entry["address"], entry["checksum"]) == (
        task.train[0].file.addresses[0],
        task.train[0].file.checksum,
    )
    digest = hashlib.sha256((folder / "train.europarl-v7.en").read_bytes()).hexdigest()
    assert entry["sha256"]["train.europarl-v7.en"] == digest
    assert "train.europarl-v7: 700 pairs" in lines


def test_what_is_whole_is_left_alone(server, task, tmp_path):
    """A second run asks for nothing and writes nothing, with or without the
    archives.
    """
    first = prepare(task, tmp_path, patience=PATIENCE)
    before, asked = snapshot(tmp_path), len(server.requests)
    assert prepare(task, tmp_path, patience=PATIENCE) == first
    assert snapshot(tmp_path) == before
    for path in (tmp_path / published.ARCHIVES).iterdir():
        path.unlink()
    assert prepare(task, tmp_path, patience=PATIENCE) == first
    assert len(server.requests) == asked == 4


@pytest.mark.parametrize("moment", range(14))
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
            prepare(task, tmp_path, patience=PATIENCE)
    for path in tmp_path.glob("*.*.??"):
        _, name, language = path.name.split(".")
        assert path.read_bytes() == text(draw_lines(name, language))
    prepare(task, tmp_path, patience=PATIENCE)
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
        prepare(task, tmp_path, patience=PATIENCE)
    assert (tmp_path / "train.commoncrawl.de").exists()
    prepare(task, tmp_path, patience=PATIENCE)
    check_texts(tmp_path)
    assert [path for path, _ in server.requests].count("/europarl-v7.tgz") == 1


def test_an_archive_brought_by_other_means(server, task, tmp_path):
    """It is verified and used."""
    (tmp_path / published.ARCHIVES).mkdir()
    for path, content in server.files.items():
        (tmp_path / published.ARCHIVES / path[1:]).write_bytes(content)
    prepare(task, tmp_path, patience=PATIENCE)
    check_texts(tmp_path)
    assert not server.requests


def test_mirrors_come_first(server, task, tmp_path):
    """A mirror serves what it has, and the published address the rest."""
    content = server.files["/commoncrawl.tgz"]
    mirror = server.serve(
        "/copies/commoncrawl.tgz", content, break_off(len(content) // 2)
    ).rsplit("/", 1)[0]
    prepare(task, tmp_path, mirrors=[f"{mirror}/"], patience=PATIENCE)
    check_texts(tmp_path)
    paths = [path for path, _ in server.requests]
    assert paths[:2] == ["/copies/europarl-v7.tgz", "/europarl-v7.tgz"]
    assert "/copies/commoncrawl.tgz" in paths
    assert "/commoncrawl.tgz" not in paths


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
        prepare(task, tmp_path, patience=PATIENCE)
    assert files(tmp_path) == []


def test_files_of_somebody_else_are_neither_overwritten_nor_read(
    server, task, tmp_path
):
    own = tmp_path / "train.commoncrawl.en"
    own.write_text("mine\n")
    with pytest.raises(
        InputError,
        match=r"train\.commoncrawl\.en is not what toy\.en-de gives: move or remove it",
    ):
        prepare(task, tmp_path, patience=PATIENCE)
    assert own.read_text() == "mine\n"
    own.rename(tmp_path / "train.extra.en")
    with pytest.raises(
        InputError,
        match=r"train\.extra\.en is no file of toy\.en-de but would be read with it",
    ):
        prepare(task, tmp_path, patience=PATIENCE)


def test_a_text_that_was_changed_is_refused(server, task, tmp_path):
    """Neither trusted as published nor overwritten."""
    prepare(task, tmp_path, patience=PATIENCE)
    changed = tmp_path / "test.newstest2014.de"
    changed.write_bytes(changed.read_bytes()[:-10])
    with pytest.raises(
        InputError, match=r"test\.newstest2014\.de is not what toy\.en-de gives"
    ):
        prepare(task, tmp_path, patience=PATIENCE)
    changed.unlink()
    prepare(task, tmp_path, patience=PATIENCE)
    check_texts(tmp_path)


def test_another_archive_behind_the_same_name_is_noticed(server, task, tmp_path):
    prepare(task, tmp_path, patience=PATIENCE)
    first = task.train[0]
    other = replace(first, file=replace(first.file, checksum="sha256:" + "0" * 64))
    with pytest.raises(InputError, match="move or remove it"):
        prepare(
            replace(task, train=(other, task.train[1])), tmp_path, patience=PATIENCE
        )


def test_a_directory_serves_one_task(server, task, tmp_path):
    prepare(task, tmp_path, patience=PATIENCE)
    with pytest.raises(
        InputError, match=r"holds toy\.en-de: choose another directory for toy\.de-en"
    ):
        prepare(replace(task, name="toy.de-en"), tmp_path, patience=PATIENCE)


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
    (tmp_path / published.MANIFEST).write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError, match="is no manifest of a published task"):
        prepare(task, tmp_path, patience=PATIENCE)


def test_two_processes_do_not_write_one_directory(server, task, tmp_path):
    """The second is refused while the first runs."""
    refusals = []

    def prepare_again(line):
        with pytest.raises(InputError, match="another process prepares") as error:
            prepare(task, tmp_path, patience=PATIENCE)
        refusals.append(error)

    prepare(task, tmp_path, patience=PATIENCE, report=prepare_again)
    assert refusals
    check_texts(tmp_path)


@pytest.mark.parametrize("form", ["{0}", "file://{0}"])
def test_a_mirror_may_be_a_folder(server, task, tmp_path, monkeypatch, form):
    """Its archives are copied, and verified like all others; what it lacks comes
    from the published address.
    """
    prepare(task, tmp_path / "first", patience=PATIENCE)
    mirror = (tmp_path / "first" / "archives").rename(tmp_path / "copies")
    archives = sorted(path.name for path in mirror.iterdir())
    (mirror / archives[0]).unlink()
    before = len(server.requests)
    prepare(task, tmp_path / "second", mirrors=[form.format(mirror)], patience=PATIENCE)
    check_texts(tmp_path / "second")
    assert len(server.requests) == before + 1


@pytest.mark.parametrize(
    "mirror", ["nowhere", "file:///nowhere", "sftp://mirror.example/a"]
)
def test_a_mirror_that_is_none(server, task, tmp_path, mirror):
    """It is refused before anything is asked or made."""
    with pytest.raises(InputError, match=f"the mirror {mirror} is no folder"):
        prepare(task, tmp_path / "new", mirrors=[mirror], patience=PATIENCE)
    assert not server.requests
    assert not (tmp_path / "new").exists()


def test_directories_that_cannot_serve(task, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="has a comma"):
        prepare(task, tmp_path / "a,b", patience=PATIENCE)
    with pytest.raises(InputError, match=r"file.*(Not a directory|File exists)"):
        prepare(task, tmp_path / "file", patience=PATIENCE)


def test_signs_of_patterns_in_a_directory(server, task, tmp_path):
    """The name of the data set matches the files all the same."""
    folder = tmp_path / "a[1]*"
    pattern = (
        prepare(task, folder, patience=PATIENCE)["train"]
        .removeprefix("text:")
        .split(",")[0]
    )
    assert [path.name for path in map(type(folder), published.glob.glob(pattern))] != []


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
        prepare_published("wmt14.en-de", tmp_path, mirrors=["https://mirror.example"])
    addresses = find_task("wmt14.en-de").train[0].file.addresses
    assert asked == [
        "https://mirror.example/training-parallel-europarl-v7.tgz",
        *addresses,
    ]
    assert f"{' and '.join(asked)}: HTTP 404 Not Found; run again" in str(error.value)
    with pytest.raises(InputError, match=r"did you mean wmt14\.en-de"):
        prepare_published("wmt14.ende", tmp_path)
