"""Where results and progress go: files are replaced as a whole, or not at all."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from pathlib import Path

import pytest

from jaxformer.cli.output import open_output, show_progress, write_output
from jaxformer.errors import InputError


def test_a_file_keeps_its_mode_and_its_link(tmp_path):
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("old\n")
    file.chmod(0o640)
    link.symlink_to(file)
    with open_output(link) as write:
        write("new")
        assert file.read_text() == "old\n"
    assert link.is_symlink()
    assert file.read_text() == "new\n"
    assert file.stat().st_mode & 0o777 == 0o640
    assert len(list(tmp_path.iterdir())) == 2


def test_lines_of_an_interrupted_output_replace_nothing(tmp_path, capsys):
    """They get a free name; a link of that name is not followed. Without lines no file
    is made.
    """
    names = ("out", "out.part", "outside")
    for name in names:
        (tmp_path / name).write_text("other\n")
    (tmp_path / "out.part2").symlink_to(tmp_path / "outside")
    with contextlib.suppress(KeyboardInterrupt), open_output(tmp_path / "out") as write:
        write("new")
        raise KeyboardInterrupt
    part = tmp_path / "out.part3"
    said = f"the first 1 lines are in {part}; out is not written\n"
    assert capsys.readouterr().err == said
    assert part.read_text() == "new\n"
    assert [(tmp_path / name).read_text() for name in names] == ["other\n"] * 3
    with contextlib.suppress(KeyboardInterrupt), open_output(tmp_path / "none"):
        raise KeyboardInterrupt
    assert len(list(tmp_path.iterdir())) == 5


def test_a_full_disk_keeps_the_old_file_and_is_named(tmp_path, monkeypatch, capsys):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    (tmp_path / "out").write_text("old\n")
    rule = r"^cannot write .*/out: No space left on device; free some space$"
    with pytest.raises(InputError, match=rule):
        write_output(tmp_path / "out", ["new"])
    assert (tmp_path / "out").read_text() == "old\n"
    assert (tmp_path / "out.part").read_text() == "new\n"


@pytest.mark.parametrize("path", [None, Path("/dev/full")])
def test_a_full_device_is_named(path, monkeypatch):
    """Nothing fails a second time when standard output is closed."""
    rule = f"^cannot write {path or 'standard output'}: No space left on device; free"
    with open("/dev/full", "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with pytest.raises(InputError, match=rule):
            write_output(path, ["new"])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_counts_sentences(monkeypatch, tmp_path):
    """It is shown on a terminal, unless the translations go to the same one."""
    monkeypatch.setenv("TERM", "xterm")
    for path, said in ((tmp_path, "4/4 sentences"), (None, "")):
        shown = Terminal()
        monkeypatch.setattr(sys, "stderr", shown)
        monkeypatch.setattr(sys, "stdout", Terminal())
        with show_progress(4, path) as advance:
            advance(1)
            advance(3)
        assert said in shown.getvalue()
        assert bool(shown.getvalue()) == bool(said)
