"""The mirror of a run directory in a bucket, and the commands that use it."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from fake_bucket import URL, FakeBucket, nothing, refused, upload
from fsspec.asyn import AsyncFileSystem
from interop.test_imported_run import folder

import runs
from jaxformer import bucket
from jaxformer.checkpoints.manager import CheckpointManager
from jaxformer.checkpoints.saved import SavedCheckpoints
from jaxformer.runs import records

PATH = URL.removeprefix("fake:/")
WORKDIR = f"--workdir={URL}"


@pytest.fixture(autouse=True)
def _bucket():
    FakeBucket.reset()
    yield
    bucket.close()
    FakeBucket.reset()


def test_what_is_no_bucket(monkeypatch, tmp_path):
    """A local directory stays itself. One line names the URL and what is missing."""
    assert bucket.open_directory(tmp_path) == tmp_path
    assert str(bucket.open_directory("runs/quickstart")) == "runs/quickstart"
    for path in (tmp_path, tmp_path / "checkpoints" / "4"):
        bucket.push(path)
        bucket.fetch(path)
        assert bucket.list_saved(path) is None
        assert not bucket.is_mirror(path)
    for package, scheme in (("gcsfs", "gs"), ("s3fs", "s3")):
        monkeypatch.setitem(sys.modules, package, None)
        line = refused(lambda scheme=scheme: bucket.open_directory(f"{scheme}://b/run"))
        assert line.startswith(f"cannot open {scheme}://b/run: ")
        assert package in line
    assert refused(lambda: bucket.open_directory("nowhere://b/run")) == (
        "cannot open nowhere://b/run: Protocol not known: nowhere"
    )
    for name in ("gs://", "fake://bucket", "fake://bucket/", "fake:///run"):
        line = refused(lambda name=name: bucket.open_directory(name))
        assert "not the URL of a directory in a bucket" in line
    assert refused(lambda: bucket.open_directory(Path("gs://bucket/run"))) == (
        "gs:/bucket/run is a path on this machine: write a bucket with two slashes, as"
        " in gs://bucket/run (in Python as a string: a Path keeps only one)"
    )


@pytest.mark.parametrize("verb", ["list", "read"])
def test_a_bucket_that_cannot_be_read(verb):
    """One line names it."""
    upload(runs.random_run())

    def fault(found, path):
        if found == verb:
            raise OSError("timed out\nat 12:00")

    FakeBucket.break_by(fault)
    line = refused(lambda: bucket.open_directory(URL))
    assert line == f"cannot read {URL}: timed out"


def arrays():
    """Return the objects with arrays that were read."""
    return [path for path in FakeBucket.reads if "/d/" in path]


def test_the_commands_read_a_bucket():
    """They say what they say of the run on a disk. Only the parameters that are used
    are downloaded, and nothing is written.
    """
    run = runs.random_run()
    upload(run)
    FakeBucket.writes.clear()
    shown = runs.call("info", WORKDIR)
    assert (shown.code, shown.err) == (0, "")
    assert shown.out == runs.call("info", f"--workdir={run}").out
    assert not arrays()
    text = "\n".join(runs.sentences(3)).encode()
    found, expected = (
        runs.call("translate", each, stdin=text)
        for each in (WORKDIR, f"--workdir={run}")
    )
    assert found.code == 0
    assert found.out == expected.out
    assert arrays()
    assert all(path.startswith(f"{PATH}/checkpoints/10/params/") for path in arrays())
    both = runs.call("translate", WORKDIR, f"--ensemble={URL}@latest", stdin=text)
    assert both.code == 0
    assert FakeBucket.writes == []
    assert runs.call("translate", "--workdir=fake://bucket/other").error == (
        "fake://bucket/other/config.json does not exist; --workdir must name the"
        " directory of a run"
    )
    wrong = runs.call("translate", WORKDIR, "--output=gs://bucket/x")
    assert "only the directory of a run can be" in wrong.error


def test_the_commands_write_a_bucket(tmp_path):
    """What they write arrives, and nothing of others is lost."""
    run = runs.copy(runs.random_run(), tmp_path / "run")
    upload(run)
    made = runs.call("average", WORKDIR, "--last=2")
    assert made.code == 0, made.err
    here = runs.call("average", f"--workdir={run}", "--last=2")
    assert made.out == here.out
    source = tmp_path / "source"
    source.write_text("\n".join(runs.sentences(2)) + "\n")
    options = f"--source={source}", f"--reference={source}", "--checkpoint=average"
    results = f"{PATH}/results.json"
    done = runs.call("evaluate", WORKDIR, *options)
    assert done.code == 0, done.err
    names = json.loads(FakeBucket.objects()[results])
    again = runs.call("evaluate", f"--workdir={run}", *options)
    assert again.code == 0
    (found,) = names.values()
    (expected,) = json.loads((run / "results.json").read_text()).values()
    assert found["hypotheses_sha256"] == expected["hypotheses_sha256"]
    assert f"{PATH}/{found['hypotheses']}" in FakeBucket.objects()


def test_a_model_is_imported_into_a_bucket(tmp_path):
    """The run there is that of an import to a disk, whole or not at all."""
    flags = folder(), "--from=en", "--to=de"
    assert runs.call("import", *flags, "--to=xx", WORKDIR).code == 1
    assert FakeBucket.objects() == {}
    made = runs.call("import", *flags, WORKDIR)
    assert made.code == 0, made.err
    assert json.loads(made.out)["workdir"] == URL
    here = tmp_path / "run"
    assert runs.call("import", *flags, f"--workdir={here}").code == 0
    names = {path.relative_to(here).as_posix() for path in here.rglob("*.json")}
    objects = {path.removeprefix(f"{PATH}/") for path in FakeBucket.objects()}
    assert names <= objects
    found, expected = (
        runs.call("translate", each, stdin=b"Two words.\n").lines
        for each in (WORKDIR, f"--workdir={here}")
    )
    assert found == expected
    error = runs.call("import", *flags, WORKDIR).error
    assert error == f"{URL} is not an empty folder: choose another --workdir"


def test_names_that_are_no_files_of_a_run():
    """Names that lead outside, folders, hidden files and checkpoints without checksums
    are not read; a push leaves them.
    """
    objects = FakeBucket()
    for name in (
        *("../outside", "a/../../outside", "a//b", ".hidden", "vocabulary/.x.tmp"),
        *("tensorboard/events", "config.json", "checkpoints/8/data"),
    ):
        objects.store[f"{PATH}/{name}"] = objects.open("/x", "wb")
        objects.store[f"{PATH}/{name}"].write(b"1")
    before = FakeBucket.objects()
    mine = bucket.open_directory(URL)
    found = {path for path in mine.parent.rglob("*") if path.is_file()}
    assert found == {mine / "config.json"}
    (mine / "config.json").write_bytes(b"22")
    bucket.push(mine)
    assert FakeBucket.objects() == {**before, f"{PATH}/config.json": b"22"}


def test_a_checkpoint_that_is_removed_while_it_is_read():
    """One that is gone when its small files are read is left out; one that is gone
    later is refused by a line.
    """
    upload(runs.random_run())
    mine = bucket.open_directory(URL)
    for path in list(FakeBucket.objects()):
        if "checkpoints/10/params" in path:
            FakeBucket().rm_file(path)
    line = refused(lambda: bucket.fetch(mine / "checkpoints" / "10", ["params"]))
    assert line.startswith(f"cannot read {URL}: ")

    def remove(verb, path):
        if verb == "read":
            FakeBucket.break_by(nothing)
            for found in list(FakeBucket.objects()):
                if "checkpoints/20" in found:
                    FakeBucket().rm_file(found)

    FakeBucket.break_by(remove)
    assert SavedCheckpoints(bucket.open_directory(URL) / "checkpoints").steps == [10]


def test_scores_that_are_added_to_a_checkpoint():
    """Wherever the second save of a step is killed, the checkpoint is there."""
    table = {"table": jnp.arange(1000, dtype=jnp.float32)}

    def save(scores):
        run = bucket.open_directory(URL)
        manager = CheckpointManager(run / "checkpoints")
        manager.remove_leftovers()
        manager.save(4, table, {"step": jnp.int32(4)}, {"step": 4}, scores)
        manager.close()
        bucket.push(run)
        bucket.close()
        return [*FakeBucket.writes]

    first = save(None)
    both = save({"bleu": 2.0})
    assert len(both) > len(first)
    seen = set()
    for count in range(len(first), len(both) + 1):
        FakeBucket.reset(both[:count])
        checkpoints = CheckpointManager(bucket.open_directory(URL) / "checkpoints")
        checkpoints.remove_leftovers()
        assert checkpoints.steps == [4]
        found = checkpoints.restore(4, params=table)["params"]["table"]
        np.testing.assert_array_equal(found, table["table"])
        seen.add(checkpoints.best())
        checkpoints.close()
        bucket.close()
    assert seen == {None, 4}


def test_results_of_two_processes_are_all_kept():
    """Each adds to what the bucket holds when it writes, which was not there when the
    process began.
    """
    names = "one", "two", "three"
    FakeBucket().pipe_file(f"{PATH}/config.json", b"{}")
    for count, run in enumerate([bucket.open_directory(URL) for _ in names], 1):
        record = {"dataset": names[count - 1], "text": "x"}
        records.write_result(run, record, [f"text of {count}"])
        found = json.loads(FakeBucket.objects()[f"{PATH}/results.json"])
        assert [*found] == [*names[:count]]
        for entry in found.values():
            assert f"{PATH}/{entry['hypotheses']}" in FakeBucket.objects()


@pytest.mark.parametrize("options", [("--beam_size=1",), ("--checkpoint=latest",)])
def test_a_result_is_printed_where_the_bucket_may_only_be_read(options):
    """One line of ``evaluate`` says that it is not kept, and nothing is written."""
    upload(runs.random_run())
    before = FakeBucket.objects()

    def fault(verb, path):
        if verb == "write":
            raise PermissionError("Forbidden")

    FakeBucket.break_by(fault)
    dataset = "--dataset=synthetic:reverse/valid"
    done = runs.call("evaluate", WORKDIR, dataset, *options)
    assert done.code == 0
    assert json.loads(done.out)["sentences"] == 500
    warning = f"warning: cannot write {URL}: Forbidden; the result is printed and not"
    assert done.err == f"jaxformer: {warning} kept\n"
    assert FakeBucket.objects() == before


def put_checkpoint(size):
    """Write a run with one checkpoint into the bucket; return its large object."""
    large = f"{PATH}/checkpoints/4/params/d/0"
    for path in (f"{PATH}/config.json", f"{PATH}/checkpoints/4/{bucket.SEAL}"):
        FakeBucket().pipe_file(path, b"{}")
    FakeBucket().pipe_file(large, bytes(size))
    return large


def test_a_write_whose_answer_is_lost(monkeypatch):
    """Its object is removed with its checkpoint, and shows no half of it."""
    put_checkpoint(10)
    before = FakeBucket.objects()
    mine = bucket.open_directory(URL)
    bucket.fetch(mine / "checkpoints" / "4")
    shutil.copytree(mine / "checkpoints" / "4", mine / "checkpoints" / "8")
    write = FakeBucket.put_file

    def lose(self, lpath, rpath):
        write(self, lpath, rpath)
        raise OSError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(FakeBucket, "put_file", lose)
        assert "no answer" in refused(lambda: bucket.push(mine))
        assert len(FakeBucket.objects()) == len(before) + 1
        assert SavedCheckpoints(bucket.open_directory(URL) / "checkpoints").steps == [4]
    shutil.rmtree(mine / "checkpoints" / "8")
    bucket.push(mine)
    assert FakeBucket.objects() == before


@pytest.mark.parametrize("removed", ["", "config.json", "closed"])
def test_a_mirror_that_is_removed(removed):
    """Files that a cleaner of temporary folders takes, or the end of the process, are
    not removed from the bucket.
    """
    put_checkpoint(10)
    before = FakeBucket.objects()
    mine = bucket.open_directory(URL)
    (local,) = bucket._mirrors
    if removed == "closed":
        local.close()
    elif removed:
        (mine / removed).unlink()
    else:
        shutil.rmtree(mine)
    assert refused(local.push).startswith(f"files of {URL} were removed from its local")
    assert FakeBucket.objects() == before


class AsyncBucket(AsyncFileSystem):
    """Reads the objects of ``fake://`` by coroutines, as gcsfs and s3fs do."""

    async def _find(self, path, **_):
        return FakeBucket().find(path)

    async def _info(self, path, **_):
        return FakeBucket().info(path)

    async def _cat_file(self, path, start=None, end=None, **_):
        return FakeBucket().cat_file(path, start, end)


def test_names_that_look_like_patterns_to_asynchronous_file_systems(monkeypatch):
    """They are names there too."""
    names = ["note[s].txt", "notes.txt", "[*].txt"]
    for name in names:
        FakeBucket().pipe_file(f"{PATH}/{name}", name.encode())
    found = AsyncBucket(), URL.removeprefix("fake:/")
    monkeypatch.setattr("fsspec.core.url_to_fs", lambda _: found)
    mine = bucket.open_directory(URL)
    assert {path.name: path.read_text() for path in mine.iterdir()} == {
        name: name for name in names
    }
