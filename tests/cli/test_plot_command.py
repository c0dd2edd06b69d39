"""``plot``: the curves of one run, and of several over each other."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """Return the directory of a run that has recorded something; the command reads no
    more of it.
    """
    directory = tmp_path / "run"
    directory.mkdir()
    entries = [
        {"step": step, "train/nll": 9.0 / step, "train/learning_rate": 0.001 * step}
        for step in range(1, 50)
    ]
    lines = [
        json.dumps(entry)
        for entry in [*entries, {"step": 40, "valid/nll": 1.5, "valid/bleu": 7.5}]
    ]
    (directory / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))
    return directory


def assert_drawn(directory: Path, *names: str) -> None:
    assert (directory / "curves.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    page = (directory / "curves.html").read_text("utf-8")
    assert f'"runs":{json.dumps(list(names), separators=(",", ":"))}' in page


def test_one_run(call, trained):
    """Picture and page lie in the run, and where they are said to lie."""
    outcome = call("plot", f"--workdir={trained}")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.lines == [
        str(trained / "plot" / name) for name in ("curves.png", "curves.html")
    ]
    assert_drawn(trained / "plot", "run")


def test_several_runs(call, trained, tmp_path):
    """Runs over each other, by the names of their directories, in a folder of the
    user's.
    """
    other = shutil.copytree(trained, tmp_path / "other")
    where = tmp_path / "some" / "folder"
    outcome = call(
        "plot", f"--workdir={trained}", f"--workdir={other}", f"--output={where}"
    )
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.lines == [
        str(where / name) for name in ("curves.png", "curves.html")
    ]
    assert_drawn(where, "run", "other")
    assert not (trained / "plot").exists()


def test_no_run(call, trained, tmp_path):
    """A directory without a record is named in one line, and nothing is drawn."""
    error = call("plot", f"--workdir={trained}", f"--workdir={tmp_path / 'none'}").error
    assert f"there is no file {tmp_path / 'none' / 'metrics.jsonl'}" in error
    assert not (trained / "plot").exists()
    assert (
        "named twice"
        in call("plot", f"--workdir={trained}", f"--workdir={trained}").error
    )
    assert call("plot").code == 2
