"""Batches of bad steps are kept, a few of them, and training continues even where they
cannot be.
"""

import jax
import numpy as np
import pytest

from jaxformer.training.bad_steps import save_bad_batch

BATCH = {
    "source": np.arange(6, dtype=np.int32).reshape(2, 3),
    "target": np.ones((2, 4), np.int32),
}


def names(directory):
    return {path.name for path in (directory / "bad_batches").iterdir()}


def test_the_first_ten_batches_are_kept(tmp_path):
    """Every array comes back. A step that a resumed run repeats is no further file."""
    kept = [save_bad_batch(tmp_path, step, BATCH) for step in [*range(1, 20), 4]]
    files = [tmp_path / "bad_batches" / f"step-{step}.npz" for step in range(1, 11)]
    assert kept == [*files, *[None] * 9, files[3]]
    assert names(tmp_path) == {file.name for file in files}
    with np.load(files[3], allow_pickle=False) as found:
        assert {name: found[name].tolist() for name in found} == {
            name: rows.tolist() for name, rows in BATCH.items()
        }


def test_each_host_keeps_its_own(tmp_path, monkeypatch):
    """With several hosts each has other rows: the names tell them apart, and each
    has its own ten.
    """
    monkeypatch.setattr(jax, "process_count", lambda: 12)
    for host, steps in ((1, range(12)), (11, [0])):
        monkeypatch.setattr(jax, "process_index", lambda host=host: host)
        for step in steps:
            save_bad_batch(tmp_path, step, BATCH)
    of_host_1 = {f"step-{step}.host-1.npz" for step in range(10)}
    assert names(tmp_path) == {*of_host_1, "step-0.host-11.npz"}


@pytest.mark.parametrize("fault", ["folder", "file"])
def test_a_batch_that_cannot_be_written(tmp_path, monkeypatch, fault):
    """No space and no permission stop no training, and leave nothing half written."""

    def full(file, **_):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    if fault == "folder":
        (tmp_path / "bad_batches").write_text("in the way")
    assert save_bad_batch(tmp_path, 1, BATCH) is None
    assert fault == "folder" or names(tmp_path) == set()
