"""What is in a bucket survives what goes wrong at its writer."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import jax.numpy as jnp
import pytest
from fake_bucket import URL, FakeBucket, nothing, refused
from fsspec.asyn import AsyncFileSystem

from jaxformer import bucket
from jaxformer.bucket import locks, mirror
from jaxformer.bucket.objects import Objects
from jaxformer.checkpoints.manager import CheckpointManager
from jaxformer.checkpoints.saved import SavedCheckpoints

PATH = URL.removeprefix("fake:/")


def test_a_writer_whose_successor_has_ended():
    """It finds no lock, writes nothing more, and does not hold the run again."""
    mine = bucket.open_directory(URL)
    lock = f"{PATH}/.lock"
    with bucket.hold(mine, "taken"):
        FakeBucket().rm_file(lock)
        (mine / "metrics.jsonl").write_text("")
        assert refused(lambda: bucket.push(mine)).startswith(f"{URL}/.lock was removed")
        time.sleep(3 * locks.BEAT)
    assert FakeBucket.objects() == {}


def test_a_lock_that_is_taken_over_within_a_push():
    """Nothing is written after it: the new owner may have begun the checkpoint again,
    and it stays marked as unfinished.
    """
    mine = bucket.open_directory(URL)
    begun = f"{PATH}/checkpoints/4/a"

    def take(verb, path):
        if verb == "write" and path == begun:
            FakeBucket.break_by(nothing)
            FakeBucket().pipe_file(f"{PATH}/.lock", b'{"token": "theirs"}')

    with bucket.hold(mine, "taken"):
        folder = mine / "checkpoints" / "4"
        folder.mkdir(parents=True)
        for name in ("a", "b", mirror.SEAL):
            (folder / name).write_text("{}")
        FakeBucket.break_by(take)
        assert "has taken over" in refused(lambda: bucket.push(mine))
    names = {path.removeprefix(f"{PATH}/checkpoints/") for path in FakeBucket.objects()}
    assert names == {f"{PATH}/.lock", "4/.unfinished", "4/a"}


def put_checkpoint(size):
    """Write a run with one checkpoint into the bucket; return its large object."""
    large = f"{PATH}/checkpoints/4/params/d/0"
    for path in (f"{PATH}/config.json", f"{PATH}/checkpoints/4/{mirror.SEAL}"):
        FakeBucket().pipe_file(path, b"{}")
    FakeBucket().pipe_file(large, bytes(size))
    return large


def test_a_download_that_breaks_off(monkeypatch):
    """What has arrived is no change of the checkpoint, and a push leaves it alone."""
    size = 2 * mirror._LARGE
    path = put_checkpoint(size)

    def break_off(self, rpath, lpath):
        Path(lpath).write_bytes(b"1")
        raise OSError("reset")

    monkeypatch.setattr(FakeBucket, "get_file", break_off)
    mine = bucket.open_directory(URL)
    with bucket.hold(mine, "taken"):
        assert "reset" in refused(lambda: bucket.fetch(mine / "checkpoints" / "4"))
        bucket.push(mine)
    assert FakeBucket.objects()[path] == bytes(size)


def test_a_write_whose_answer_is_lost(monkeypatch):
    """Its object is removed with its checkpoint, and shows no half of it."""
    put_checkpoint(10)
    before = FakeBucket.objects()
    mine = bucket.open_directory(URL)
    shutil.copytree(mine / "checkpoints" / "4", mine / "checkpoints" / "8")
    write = FakeBucket.put_file

    def lose(self, lpath, rpath):
        write(self, lpath, rpath)
        raise OSError("no answer")

    with bucket.hold(mine, "taken"), monkeypatch.context() as patch:
        patch.setattr(FakeBucket, "put_file", lose)
        assert "no answer" in refused(lambda: bucket.push(mine))
        assert len(FakeBucket.objects()) == len(before) + 3  # with lock and mark
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


@pytest.mark.parametrize("folder", ["tensorboard", "wandb", "profile", "bad_batches"])
def test_a_file_that_is_not_read_again_may_be_removed(folder):
    """Its object stays, and later pushes write what has changed."""
    put_checkpoint(10)
    mine = bucket.open_directory(URL)
    file = mine / folder / "file"
    file.parent.mkdir()
    file.write_text("1")
    bucket.push(mine)
    file.unlink()
    for text in ("1", "2"):
        (mine / "metrics.jsonl").write_text(text)
        bucket.push(mine)
        assert FakeBucket.objects()[f"{PATH}/metrics.jsonl"] == text.encode()
        assert FakeBucket.objects()[f"{PATH}/{folder}/file"] == b"1"


def test_a_mirror_that_is_closed_within_a_push(monkeypatch):
    """Its checkpoints stay in the bucket, also if its records were seen before."""
    put_checkpoint(10)
    before = FakeBucket.objects()
    bucket.open_directory(URL)
    (local,) = bucket._mirrors
    state = mirror._state

    def close_after(path):
        found = state(path)
        if path.name == "config.json":
            local.close()
        return found

    monkeypatch.setattr(mirror, "_state", close_after)
    refused(local.push)
    assert FakeBucket.objects() == before


def test_a_folder_that_is_removed_while_a_push_looks(monkeypatch):
    """It is left out."""
    mine = bucket.open_directory(URL)
    (mine / "profile").mkdir()
    (mine / "profile" / "trace").write_text("")
    (mine / "config.json").write_text("{}")
    state = mirror._state

    def remove(path):
        if path.name == "trace":
            shutil.rmtree(path.parent)
        return state(path)

    monkeypatch.setattr(mirror, "_state", remove)
    bucket.push(mine)
    assert FakeBucket.objects() == {f"{PATH}/config.json": b"{}"}


def test_names_that_look_like_patterns():
    """They are names."""
    for name in ("note[s].txt", ".notes.txt", "notes.txt", "*.txt"):
        FakeBucket().pipe_file(f"{PATH}/{name}", name.encode())
    mine = bucket.open_directory(URL)
    found = {path.name: path.read_text() for path in mine.iterdir()}
    assert found == {name: name for name in ("note[s].txt", "notes.txt", "*.txt")}


class AsyncBucket(AsyncFileSystem):
    """Reads the objects of ``fake://`` by coroutines, as gcsfs and s3fs do."""

    async def _find(self, path, **_):
        return FakeBucket().find(path, detail=True)

    async def _info(self, path, **_):
        return FakeBucket().info(path)

    async def _cat_file(self, path, start=None, end=None, **_):
        return FakeBucket().cat_file(path, start, end)


def test_names_that_look_like_patterns_to_asynchronous_file_systems(monkeypatch):
    """They are names there too. Objects that do not exist are left out."""
    names = ["note[s].txt", "notes.txt", "[*].txt"]
    for name in names:
        FakeBucket().pipe_file(f"{PATH}/{name}", name.encode())
    objects = Objects(URL)
    monkeypatch.setattr(objects, "_files", AsyncBucket())
    found = objects.read([*names, "gone*.txt", "gone.txt"])
    assert found == {name: name.encode() for name in names}


def test_the_last_good_checkpoint_is_one_in_the_bucket():
    """Also where the mirror has removed it already."""

    def fail(verb, path):
        if verb == "write" and "checkpoints/8/" in path:
            raise OSError("no answer")

    run = bucket.open_directory(URL)
    manager = CheckpointManager(run / "checkpoints", keep_latest=1, keep_best=0)
    FakeBucket.break_by(fail)
    for step in (4, 8):
        state = {"step": jnp.int32(step)}
        manager.save(step, {"table": jnp.ones(3)}, state, {"step": step}, None)
    assert refused(manager.wait).endswith("; the last good checkpoint is step 4")
    assert SavedCheckpoints(run / "checkpoints").steps == [8]
    manager.close()
