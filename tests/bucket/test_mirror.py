"""The mirror of a run directory in a bucket, and the commands that use it."""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from fake_bucket import URL, FakeBucket, nothing, refused, upload
from interop.test_imported_run import folder

import runs
from jaxformer import bucket
from jaxformer.bucket import locks, mirror
from jaxformer.checkpoints.manager import CheckpointManager
from jaxformer.checkpoints.saved import SavedCheckpoints
from jaxformer.files import check_writable

PATH = URL.removeprefix("fake:/")
WORKDIR = f"--workdir={URL}"


def test_what_is_no_bucket(monkeypatch, tmp_path):
    """A local directory stays itself. A kind of bucket that nobody knows is refused,
    and so is one whose package is missing, with the extra that brings it, and a bucket
    without a directory, which may hold much else.
    """
    assert bucket.open_directory(tmp_path) == tmp_path
    assert str(bucket.open_directory("runs/quickstart")) == "runs/quickstart"
    for path in (tmp_path, tmp_path / "checkpoints" / "4"):
        bucket.push(path)
        bucket.fetch(path)
        assert bucket.list_saved(path) is None
        assert not bucket.is_mirror(path)
    for name in ("gcsfs", "s3fs"):
        monkeypatch.setitem(sys.modules, name, None)
    for scheme, extra in (("gs", "gcs"), ("s3", "s3")):
        line = refused(lambda scheme=scheme: bucket.open_directory(f"{scheme}://b/run"))
        assert line == (
            f"{scheme}://b/run needs the package of fsspec for {scheme}://, which is"
            f" not installed: pip install 'jaxformer[{extra}]'"
        )
    monkeypatch.setitem(sys.modules, "adlfs", None)
    assert refused(lambda: bucket.open_directory("abfs://b/run")) == (
        "abfs://b/run needs the package of fsspec for abfs://, which is not installed:"
        " Install adlfs to access Azure Datalake Gen2 and Azure Blob Storage"
    )
    assert refused(lambda: bucket.open_directory("nowhere://b/run")) == (
        "nowhere://b/run is not the URL of a directory in a bucket, such as"
        " gs://bucket/run: Protocol not known: nowhere"
    )
    for name in (
        *("gs://", "fake://bucket", "fake://bucket/", "fake:///run"),
        "fake://bucket/../run",
    ):
        line = refused(lambda name=name: bucket.open_directory(name))
        assert "not the URL of a directory in a bucket, such as" in line
    assert refused(lambda: bucket.open_directory(Path("gs://bucket/run"))) == (
        "gs:/bucket/run is a path on this machine: write a bucket with two slashes, as"
        " in gs://bucket/run (in Python as a string: a Path keeps only one)"
    )


@pytest.mark.parametrize("package", ["gcsfs", "s3fs"])
def test_what_a_package_logs_is_not_printed(package, monkeypatch, capsys):
    """Its tracebacks would come before the one line of the error."""
    monkeypatch.setattr(logging.root, "handlers", [])
    logging.getLogger(package).error("no network")
    assert capsys.readouterr().err == ""
    logging.getLogger("another").error("heard")
    assert "heard" in capsys.readouterr().err


def test_a_bucket_that_cannot_be_read():
    """One line names it, and what to do about permissions."""

    def fail(error):
        def fault(verb, path):
            raise error

        FakeBucket.break_by(fault)
        return refused(lambda: bucket.open_directory(URL))

    assert fail(PermissionError("Forbidden: 403")) == (
        f"cannot list {URL}: Forbidden: 403; let this machine's account read and write"
        " the bucket"
    )
    assert fail(OSError("timed out\nat 12:00")) == f"cannot list {URL}: timed out"


def large():
    """Return the large objects with arrays that were read."""
    sizes = {path: len(content) for path, content in FakeBucket.objects().items()}
    return [
        path
        for path in FakeBucket.reads
        if "/d/" in path and sizes.get(path, 0) > mirror._LARGE
    ]


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
    assert not large()
    text = "\n".join(runs.sentences(3)).encode()
    found, expected = (
        runs.call("translate", each, stdin=text)
        for each in (WORKDIR, f"--workdir={run}")
    )
    assert found.code == 0
    assert found.out == expected.out
    assert large()
    assert all(path.startswith(f"{PATH}/checkpoints/10/params/") for path in large())
    both = runs.call("translate", WORKDIR, f"--ensemble={URL}@latest", stdin=text)
    assert both.code == 0
    assert FakeBucket.writes == []
    assert runs.call("translate", "--workdir=fake://bucket/other").error == (
        "fake://bucket/other/config.json does not exist; --workdir must name the"
        " directory of a run"
    )
    wrong = runs.call("translate", WORKDIR, "--output=gs://bucket/x")
    assert "only the directory of a run can be" in wrong.error


def test_a_command_in_a_process_of_its_own():
    """It reads a bucket as it reads a disk, and leaves no mirror."""
    run = runs.random_run()
    before = set(Path(tempfile.gettempdir()).glob("jaxformer-????????"))
    done = runs.command("info", f"--workdir=file://{run}")
    assert done.returncode == 0, done.stderr
    assert done.stdout == runs.call("info", f"--workdir={run}").out
    assert set(Path(tempfile.gettempdir()).glob("jaxformer-????????")) <= before


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
    # Another process has written a score since this one began.
    results = f"{PATH}/results.json"
    before = FakeBucket.fault

    def write_meanwhile(verb, path):
        if path.endswith(".writable"):
            FakeBucket.break_by(before)
            FakeBucket().pipe_file(results, json.dumps({"x": {}}).encode())

    FakeBucket.break_by(write_meanwhile)
    done = runs.call("evaluate", WORKDIR, *options)
    assert done.code == 0, done.err
    names = json.loads(FakeBucket.objects()[results])
    assert len(names) == 2
    assert "x" in names
    again = runs.call("evaluate", f"--workdir={run}", *options)
    assert again.code == 0
    (found,) = (each for name, each in names.items() if name != "x")
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


def test_a_bucket_that_cannot_be_written():
    """A command that writes says so before its work."""
    upload(runs.random_run())

    def fault(verb, path):
        if verb == "write":
            raise PermissionError("Forbidden")

    mine = bucket.open_directory(URL)
    FakeBucket.break_by(fault)
    assert refused(lambda: check_writable(mine)).startswith(
        f"cannot write {URL}/.writable: Forbidden; let"
    )


def test_names_that_are_no_files_of_a_run():
    """Names that lead outside, folders, hidden files and what a cut write has left are
    not read; a checkpoint without checksums, of an earlier version, is, and stays.
    """
    objects = FakeBucket()
    for name in (
        *("../outside", "a/../../outside", "a//b", ".hidden", "vocabulary/.x.tmp"),
        *("tensorboard/events", "config.json", "checkpoints/4/old/d/data"),
        *("checkpoints/8/data", "checkpoints/8/.unfinished"),
    ):
        objects.store[f"{PATH}/{name}"] = objects.open("/x", "wb")
        objects.store[f"{PATH}/{name}"].write(b"1")
    mine = bucket.open_directory(URL)

    def files():
        found = {path for path in mine.parent.rglob("*") if path.is_file()}
        return {path.relative_to(mine).as_posix() for path in found}

    assert files() == {"config.json", "checkpoints/4/old/d/data"}
    with bucket.hold(mine, "taken"):
        (mine / "config.json").write_bytes(b"22")
        bucket.push(mine)
    names = FakeBucket.objects()
    assert names[f"{PATH}/config.json"] == b"22"
    assert f"{PATH}/checkpoints/4/old/d/data" in names
    assert f"{PATH}/tensorboard/events" in names
    assert not any("checkpoints/8" in name for name in names)


def test_a_checkpoint_that_is_removed_while_it_is_read():
    """One that is gone when its small files are read is left out; one that is gone
    later is named.
    """
    upload(runs.random_run())
    mine = bucket.open_directory(URL)
    for path in list(FakeBucket.objects()):
        if "checkpoints/10/params" in path:
            FakeBucket().rm_file(path)
    line = refused(lambda: bucket.fetch(mine / "checkpoints" / "10", ["params"]))
    assert line.startswith(f"{URL}/checkpoints/10/params/")
    assert "was removed while it was read" in line

    def remove(verb, path):
        if verb == "read":
            FakeBucket.break_by(nothing)
            for found in list(FakeBucket.objects()):
                if "checkpoints/20" in found:
                    FakeBucket().rm_file(found)

    FakeBucket.break_by(remove)
    assert SavedCheckpoints(bucket.open_directory(URL) / "checkpoints").steps == [10]


def test_locks():
    """A second writer is refused while the first renews its lock, and takes over one
    that nobody renews. A writer whose lock is taken over writes nothing more.
    """
    first, second = bucket.open_directory(URL), bucket.open_directory(URL)
    lock = f"{PATH}/.lock"

    def hold(path):
        with bucket.hold(path, "taken"):
            assert lock in FakeBucket.objects()

    with bucket.hold(first, "taken"):
        assert refused(lambda: hold(second)).startswith("taken (process ")
    assert FakeBucket.objects() == {}
    FakeBucket().pipe_file(lock, b"no JSON")
    begun = time.monotonic()
    hold(second)
    assert time.monotonic() - begun >= 3 * locks.BEAT
    with bucket.hold(first, "taken"):
        record = {"host": "b", "process": 7, "token": "theirs"}
        FakeBucket().pipe_file(lock, json.dumps(record).encode())
        time.sleep(3 * locks.BEAT)
        (first / "metrics.jsonl").write_text("")
        assert refused(lambda: bucket.push(first)) == (
            f"another process (process 7 on b) has taken over {URL}, and this one"
            " writes nothing more: end one of the two"
        )
    assert json.loads(FakeBucket.objects()[lock]) == record
    assert len(FakeBucket.objects()) == 1


def test_a_bucket_that_changes_before_it_is_held():
    """Who has read an older state does not write."""
    mine = bucket.open_directory(URL)
    FakeBucket().pipe_file(f"{PATH}/checkpoints/4/data", b"1")

    def hold():
        with bucket.hold(mine, "taken"):
            pass

    assert refused(hold) == (
        f"{URL}/checkpoints has changed since it was read: run the command again"
    )


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
