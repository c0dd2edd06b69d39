"""A run in a bucket is the run on a disk, also after it was killed at any write."""

from __future__ import annotations

import jax
import pytest
from fake_bucket import URL, FakeBucket, nothing
from training.little import (
    assert_same_run,
    cached_make_engine,
    little_config,
    read_checkpoint,
    read_records,
    score,
    steps_of,
)

from jaxformer import bucket
from jaxformer.checkpoints.folder import verify
from jaxformer.checkpoints.saved import SavedCheckpoints
from jaxformer.errors import InputError
from jaxformer.training import train as training
from jaxformer.training.loop import Outcome

DONE = Outcome(12, finished=True, signal=None)
PATH = URL.removeprefix("fake:/")


@pytest.fixture(autouse=True)
def _bucket(monkeypatch):
    monkeypatch.setattr(training, "make_engine", cached_make_engine)
    FakeBucket.reset()
    yield
    bucket.close()
    FakeBucket.reset()


@pytest.fixture
def train(corpus):
    """Return a function that trains the little run in the bucket."""

    def run(changes=None):
        return training.train(little_config(corpus, changes), URL, score)

    return run


@pytest.fixture(scope="module")
def writes(corpus):
    """Return what the little run writes into a bucket."""
    FakeBucket.reset()
    with pytest.MonkeyPatch.context() as patch, jax.numpy_dtype_promotion("standard"):
        patch.setattr(training, "make_engine", cached_make_engine)
        assert training.train(little_config(corpus), URL, score) == DONE
    return [*FakeBucket.writes]


def test_a_run_in_a_bucket(train, straight):
    """It leaves the same parameters and records as one on a disk, and the same files;
    the same command again has nothing to do.
    """
    assert train() == DONE
    found = {path.removeprefix(f"{PATH}/") for path in FakeBucket.objects()}
    expected = {
        path.relative_to(straight).as_posix()
        for path in straight.rglob("*")
        if path.is_file() and path.name != ".lock"
    }

    def named(names):
        # names of events and of arrays are random
        return {name for name in names if "tfevents" not in name and "/d/" not in name}

    assert named(found) == named(expected)
    assert sum("tfevents" in name for name in found) == 1
    assert_same_run(bucket.open_directory(URL), straight)
    assert train() == DONE
    assert_same_run(bucket.open_directory(URL), straight)


def test_what_is_in_the_bucket_after_every_write(writes, straight):
    """Wherever a process is killed, every checkpoint that can be seen is whole, none
    that was there is lost before a later one is, and the record reaches as far.
    """
    latest, seen = 0, []
    for count in range(len(writes) + 1):
        FakeBucket.reset(writes[:count])
        run = bucket.open_directory(URL)
        checkpoints = SavedCheckpoints(run / "checkpoints")
        steps = checkpoints.steps
        assert max([0, *steps]) >= latest
        for step in steps:
            verify(checkpoints.path(step), ["params", "training"])
        if max([0, *steps]) > latest:
            latest = steps[-1]
            expected = read_checkpoint(straight, latest) if latest == 12 else None
            found = read_checkpoint(run, latest)
            if expected is not None:
                assert str(found) == str(expected)
            seen.append(latest)
        if latest:
            lines = read_records(run)
            whole = [x for x in read_records(straight) if x["step"] <= latest]
            assert lines[: len(whole)] == whole
        bucket.close()
    assert seen == [4, 6, 8, 12]


def fail_at(part, count):
    """Return a fault: from the first write to such a path on, so many requests fail."""
    begun, left = [False], [count]

    def fault(verb, path):
        begun[0] = begun[0] or (verb == "write" and part in path)
        if begun[0] and left[0] > 0:
            left[0] -= 1
            raise OSError("no answer")

    return fault


def test_a_bucket_that_vanishes(train, straight):
    """One line says what is still there, and with the bucket back the same command
    continues from it.
    """
    FakeBucket.break_by(fail_at("checkpoints/8/", 10**9))
    with pytest.raises(InputError) as caught:
        train()
    FakeBucket.break_by(nothing)
    line = bucket.reword(str(caught.value))
    assert line == (
        f"could not save a checkpoint in {URL}/checkpoints: cannot write {URL}: no"
        " answer; the last good checkpoint is step 6"
    )
    assert steps_of(bucket.open_directory(URL)) == [4, 6]
    assert train() == DONE
    assert_same_run(bucket.open_directory(URL), straight)


def test_a_bucket_without_permission(train):
    """One line, before anything is computed, and nothing is written."""

    def refuse(verb, path):
        if verb == "write":
            raise PermissionError("Forbidden")

    FakeBucket.break_by(refuse)
    with pytest.raises(InputError) as caught:
        train()
    assert str(caught.value) == f"cannot write {URL}: Forbidden"
    assert FakeBucket.objects() == {}
