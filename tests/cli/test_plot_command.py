"""``plot``: the curves of one run, and of several over each other."""

from __future__ import annotations

import json
import shutil

import pytest
from cli.text import write


@pytest.fixture
def trained(tmp_path):
    """Return the directory of a run that has recorded something."""
    entries = [
        {"step": step, "train/nll": 9.0 / step, "train/learning_rate": 0.001 * step}
        for step in range(1, 50)
    ]
    entries.append({"step": 40, "valid/nll": 1.5, "valid/bleu": 7.5})
    (tmp_path / "run").mkdir()
    write(tmp_path / "run" / "metrics.jsonl", map(json.dumps, entries))
    return tmp_path / "run"


def test_runs(call, trained, tmp_path):
    """Picture and page are in the run, or in a folder of the user's, with the names of
    the runs.
    """
    other, where = shutil.copytree(trained, tmp_path / "other"), tmp_path / "a" / "b"
    given, both = (f"--workdir={trained}",), (f"--workdir={other}", f"--output={where}")
    for more, folder, names in (
        ((), trained / "plot", '"run"'),
        (both, where, '"run","other"'),
    ):
        outcome = call("plot", *given, *more)
        assert (outcome.code, outcome.err) == (0, "")
        picture, page = folder / "curves.png", folder / "curves.html"
        assert outcome.lines == [str(picture), str(page)]
        assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
        assert f'"runs":[{names}]' in page.read_text("utf-8")


def test_no_run(call, trained, tmp_path):
    """A directory without a record is named in one line, and nothing is drawn."""
    given = f"--workdir={trained}"
    error = call("plot", given, f"--workdir={tmp_path / 'none'}").error
    assert f"there is no file {tmp_path / 'none' / 'metrics.jsonl'}" in error
    assert not (trained / "plot").exists()
