"""A folder has one holder at a time, whatever processes there are and however they end."""

import errno
import fcntl
import subprocess
import sys
from contextlib import contextmanager

import pytest

from jaxformer.errors import InputError
from jaxformer.locks import LOCK, hold

HOLDER = """
import sys
from pathlib import Path
from jaxformer.locks import hold
lock = hold(Path(sys.argv[1]), "taken")
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def another_holder(directory):
    """Let a second process ask for a folder, and give the process once it has answered; it ends by a kill."""
    command = [sys.executable, "-c", HOLDER, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            yield process.stdout.readline().strip(), process.stderr
        finally:
            process.kill()


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path):
    """The refusal is the caller's own line; a killed holder holds nothing."""
    with another_holder(tmp_path) as (answer, _):
        assert answer == b"held"
        with pytest.raises(InputError, match=r"^wait, or go elsewhere$"):
            hold(tmp_path, "wait, or go elsewhere")
    hold(tmp_path, "taken").close()


def test_what_this_process_holds_is_refused_to_others(tmp_path):
    """Also to itself; what is closed is free, and another folder was free all along."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with hold(tmp_path / "a", "taken"):
        with another_holder(tmp_path / "a") as (answer, error):
            assert answer == b""
            assert error.read().strip().endswith(b"InputError: taken")
        with pytest.raises(InputError, match="taken"):
            hold(tmp_path / "a", "taken")
        with another_holder(tmp_path / "b") as (answer, _):
            assert answer == b"held"
    with another_holder(tmp_path / "a") as (answer, _):
        assert answer == b"held"


def test_a_file_system_without_locks_refuses_nobody(monkeypatch, tmp_path):
    """As some networks have them; whoever works there does so at their own risk."""

    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with hold(tmp_path, "taken"), hold(tmp_path, "taken"):
        assert [path.name for path in tmp_path.iterdir()] == [LOCK]


def test_a_folder_that_is_missing_is_not_made(tmp_path):
    with pytest.raises(FileNotFoundError):
        hold(tmp_path / "missing", "taken")
