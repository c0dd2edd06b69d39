"""Where results and progress go: files are replaced as a whole, or not at all."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import runs
from jaxformer.cli.output import (
    open_input,
    open_output,
    read_input,
)


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
    """They get a free name. Without lines no file is made."""
    for name in ("out", "out.part"):
        (tmp_path / name).write_text("other\n")
    with contextlib.suppress(KeyboardInterrupt), open_output(tmp_path / "out") as write:
        write("new")
        raise KeyboardInterrupt
    part = tmp_path / "out.part2"
    said = f"the first 1 lines are in {part}; out is not written\n"
    assert capsys.readouterr().err == said
    assert part.read_text() == "new\n"
    assert (tmp_path / "out.part").read_text() == "other\n"
    with contextlib.suppress(KeyboardInterrupt), open_output(tmp_path / "none"):
        raise KeyboardInterrupt
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("name", ["/dev/stdout", "-"])
def test_a_command_appends_to_its_standard_output(name, tmp_path):
    """Whatever names it; ``-`` is standard input or output."""
    with (tmp_path / "file").open("ab") as file:
        file.write(b"first\n")
        file.flush()
        line = [sys.executable, "-m", "jaxformer.cli.main", "reproduce", "4"]
        how = {"cwd": runs.ROOT, "env": runs.environment(), "check": True}
        subprocess.run([*line, f"--output={name}"], stdout=file, **how)
    first, *rest = (tmp_path / "file").read_text().splitlines()
    assert first == "first"
    assert len(rest) > 5
    assert not Path(runs.ROOT, "-").exists()


def test_a_pipe_has_the_lines_of_a_file(tmp_path, monkeypatch):
    """However it is cut into blocks; and one that stands still is noticed."""
    content = "\ufeffa\r\n\n b\u2028\ufeff\nlast".encode() + b"x" * 100_000
    (tmp_path / "text").write_bytes(content)
    for size in (1, 3, 50_000):
        out, into = os.pipe()
        monkeypatch.setattr(sys, "stdin", os.fdopen(out))

        def write(into=into, size=size):
            for place in range(0, 30, size):
                os.write(into, content[place : min(place + size, 30)])
            os.write(into, content[30:])
            os.close(into)

        thread = threading.Thread(target=write)
        thread.start()
        assert list(read_input(None)) == list(read_input(tmp_path / "text"))
        thread.join()
        sys.stdin.close()


@pytest.mark.parametrize("text", ["a\n\x04", "\x04", "a\nb\x04\x04"])
@pytest.mark.parametrize("waits", [True, False])
def test_a_terminal_ends_the_input_once(text, waits, monkeypatch):
    """One end of file ends it, also when it comes while a pause is awaited."""
    terminal, typed = os.openpty()
    monkeypatch.setattr(sys, "stdin", os.fdopen(typed))
    lines, pause = open_input(None)
    found = []

    def read():
        for line in lines:
            found.append(line)
            if waits:
                pause()

    os.write(terminal, text.encode())
    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(5)
    ended = not thread.is_alive()
    if not ended:
        os.write(terminal, b"\x04" * 3)
        thread.join(5)
    assert ended
    assert found == text.replace("\x04", "").splitlines()
    sys.stdin.close()
    os.close(terminal)
