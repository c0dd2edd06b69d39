"""Batches of bad steps are kept, a few of them, and training continues even where they
cannot be.
"""

import numpy as np
import pytest

from jaxformer.training.bad_steps import save_bad_batch

BATCH = {
    "source": np.arange(6, dtype=np.int32).reshape(2, 3),
    "target": np.ones((2, 4), np.int32),
}


def names(directory):
    return {path.name for path in (directory / "bad_batches").iterdir()}


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
