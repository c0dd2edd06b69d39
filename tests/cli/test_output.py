"""Where results and progress go: files are replaced as a whole, or not at all."""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import runs
from jaxformer.cli.output import (
    check_output,
    open_input,
    open_output,
    read_input,
    write_output,
)
from jaxformer.errors import InputError
from jaxformer.files import open_whole


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


def descriptor_paths(number, folder):
    """Return paths that name a descriptor, by themselves and by links."""
    first, second = folder / "first", folder / "second"
    first.symlink_to(f"/proc/self/fd/{number}")
    second.symlink_to("first")
    folders = ("/dev/fd", "/proc/self/fd", "/proc/thread-self/fd")
    yield from (Path(each, str(number)) for each in folders)
    yield from (Path(f"/proc/{os.getpid()}/fd/{number}"), first, second)


@pytest.mark.parametrize("flags", [os.O_APPEND, 0])
def test_a_descriptor_of_the_process_is_written_in_place(flags, tmp_path):
    """Text that was in its file stays, and what is written follows it, as what is
    written to standard output does.
    """
    file = tmp_path / "file"
    file.write_text("old\n")
    number = os.open(file, os.O_WRONLY | flags)
    os.lseek(number, 0, os.SEEK_END)
    expected = "old\n"
    for path in descriptor_paths(number, tmp_path):
        check_output(path)
        write_output(path, ["a", "b"])
        with open_whole(path) as whole:  # as pages are
            whole.write(b"page\n")
        expected += "a\nb\npage\n"
        assert file.read_text() == expected, path
    os.close(number)
    assert not file.is_symlink()
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("name", ["/dev/stdout", "-"])
def test_a_command_appends_to_its_standard_output(name, tmp_path):
    """Whatever names it; ``-`` is standard input or output."""
    with (tmp_path / "file").open("ab") as file:
        file.write(b"first\n")
        file.flush()
        line = [sys.executable, "-m", "jaxformer.cli.main", "reproduce", "3"]
        how = {"cwd": runs.ROOT, "env": runs.environment(), "check": True}
        subprocess.run([*line, f"--output={name}"], stdout=file, **how)
    first, *rest = (tmp_path / "file").read_text().splitlines()
    assert first == "first"
    assert len(rest) > 5
    assert not Path(runs.ROOT, "-").exists()


def test_empty_input_has_no_lines(tmp_path, monkeypatch):
    """Neither a file, plain or compressed, nor standard input needs a line."""
    (tmp_path / "text").write_bytes(b"")
    with gzip.open(tmp_path / "text.gz", "wb"):
        pass
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    for path in (tmp_path / "text", tmp_path / "text.gz", None):
        assert list(read_input(path)) == []


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


def test_lines_that_came_wait_for_half_a_second(monkeypatch):
    """Where they come faster, none is late; a line without its end is late too."""
    out, into = os.pipe()
    monkeypatch.setattr(sys, "stdin", os.fdopen(out))
    lines, pause = open_input(None)

    def write(*texts, every=0.0):
        for text in texts:
            time.sleep(every)
            os.write(into, text.encode())

    write("a\nb\nc")
    assert next(lines) == "a"
    assert not pause()  # b is there
    assert next(lines) == "b"
    begun = time.monotonic()
    assert pause()
    assert 0.4 < time.monotonic() - begun < 5
    thread = threading.Thread(target=write, args="d\ne", kwargs={"every": 0.1})
    thread.start()
    assert not pause()
    thread.join()
    assert next(lines) == "cd"
    os.close(into)
    assert not pause()
    assert [*lines] == ["e"]
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
