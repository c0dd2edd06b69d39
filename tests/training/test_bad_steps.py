"""Batches of bad steps are kept, a few of them, and training continues even where they
cannot be.
"""

import math

import numpy as np
import pytest

from jaxformer.training.bad_steps import MOST_FILES, describe_bad_step, save_bad_batch


def names(directory):
    return sorted(path.name for path in (directory / "bad_batches").iterdir())


def test_the_batch_comes_back(tmp_path, make_batch):
    """Every array of the batch is in the file, bit for bit."""
    batch = make_batch(1, [3, 9, 5])
    path = save_bad_batch(tmp_path, 17, batch)
    assert path == tmp_path / "bad_batches" / "step-17.npz"
    with np.load(path, allow_pickle=False) as found:
        assert set(found) == set(batch)
        for name, rows in batch.items():
            assert found[name].dtype == rows.dtype
            np.testing.assert_array_equal(found[name], rows)
    assert names(tmp_path) == ["step-17.npz"]


def test_a_few_are_enough(tmp_path, make_batch):
    """The first ten are kept; one that is written again, by a resumed run, is no
    further file.
    """
    batch = make_batch(2, [3])
    kept = [save_bad_batch(tmp_path, step, batch) is not None for step in range(1, 20)]
    assert kept == [True] * MOST_FILES + [False] * (19 - MOST_FILES)
    assert save_bad_batch(tmp_path, 4, batch) is not None
    assert len(names(tmp_path)) == MOST_FILES == 10


def test_each_host_keeps_its_own(tmp_path, make_batch):
    """With several hosts each has other rows: the names tell them apart, and each
    has its own ten.
    """
    for host in range(2):
        for step in range(12):
            save_bad_batch(tmp_path, step, make_batch(host, [3]), host=host, hosts=12)
    save_bad_batch(tmp_path, 0, make_batch(5, [3]), host=11, hosts=12)
    assert len(names(tmp_path)) == 2 * MOST_FILES + 1
    assert {"step-0.host-0.npz", "step-0.host-1.npz", "step-0.host-11.npz"} <= set(
        names(tmp_path)
    )


@pytest.mark.parametrize("fault", ["folder", "file"])
def test_a_batch_that_cannot_be_written(tmp_path, make_batch, monkeypatch, fault):
    """No space and no permission stop no training, and leave nothing half written."""
    if fault == "folder":
        (tmp_path / "bad_batches").write_text("in the way")
        assert save_bad_batch(tmp_path, 1, make_batch(3, [3])) is None
        return

    def full(file, **arrays):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    assert save_bad_batch(tmp_path, 1, make_batch(3, [3])) is None
    assert names(tmp_path) == []


def test_the_line_of_a_bad_step(tmp_path):
    """One line says which step, why, and where its batch is if it is anywhere."""
    assert (
        describe_bad_step(7, math.nan, 2.5, None)
        == "step 7 is skipped: its loss is nan and its gradient norm 2.5"
    )
    line = describe_bad_step(7, 1.25, math.inf, tmp_path / "step-7.npz")
    assert line.endswith(
        "its loss is 1.25 and its gradient norm inf; its batch is kept in"
        f" {tmp_path / 'step-7.npz'}"
    )
    assert "\n" not in line
