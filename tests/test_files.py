"""A folder has one holder at a time; a file is written whole or not at all."""

import contextlib
import errno
import fcntl
import json
import math
import os
import subprocess
import sys
from unittest import mock

import pytest

from jaxformer.errors import InputError
from jaxformer.files import (
    LOCK,
    finite,
    hold,
    open_whole,
    parse_json,
    parse_step,
    write_whole,
)

HOLDER = """
import sys
from pathlib import Path
from jaxformer.errors import InputError
from jaxformer.files import hold
held = []
for line in sys.stdin:
    try:
        held.append(hold(Path(line.strip()), "taken"))
        print("held", flush=True)
    except InputError as error:
        print(error, flush=True)
"""


def test_a_folder_has_one_holder_at_a_time(tmp_path, monkeypatch):
    """What this process holds is refused to another process and to itself, and the
    other way around. What is closed is free, and so is what a killed process held.
    """
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:

        def ask(folder):
            other.stdin.write(f"{folder}\n")
            other.stdin.flush()
            return other.stdout.readline().strip()

        try:
            with hold(first, "taken"):
                assert ask(first) == "taken"
                with pytest.raises(InputError, match="taken"):
                    hold(first, "taken")
                assert ask(second) == "held"
            assert ask(first) == "held"
            with pytest.raises(InputError, match=r"^wait, or go elsewhere$"):
                hold(second, "wait, or go elsewhere")
        finally:
            other.kill()
    hold(first, "taken").close()
    hold(second, "taken").close()
    # A file system without locks refuses nobody.
    error = OSError(errno.ENOLCK, "No locks available")
    monkeypatch.setattr(fcntl, "flock", mock.Mock(side_effect=error))
    with hold(first, "taken"), hold(first, "taken"):
        assert [path.name for path in first.iterdir()] == [LOCK]


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    """An interrupted or failed write leaves the old file and nothing else; a new file
    has the permissions of the old one, and replaces a link without following it.
    """
    path = tmp_path / "record"
    path.write_text("old")
    path.chmod(0o640)
    with contextlib.suppress(KeyboardInterrupt), open_whole(path) as file:
        file.write(b"new")
        raise KeyboardInterrupt
    with monkeypatch.context() as patch:
        full = OSError(errno.ENOSPC, "No space left on device")
        patch.setattr(os, "fsync", mock.Mock(side_effect=full))
        fault = r"cannot write .*record: No space left on device; free some space"
        with pytest.raises(InputError, match=fault):
            write_whole(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    write_whole(path, "new")
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o640
    (tmp_path / "link").symlink_to(path)
    write_whole(tmp_path / "link", "ours")
    assert not (tmp_path / "link").is_symlink()
    assert path.read_text() == "new"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param(b"[" * 100_000, "recursion", id="open"),
        pytest.param(b"1" * 5000, "digits", id="long"),
        (b'"\xff"', "utf-8"),
        (b"{", "line 1 column 2"),
        ("{", "column 2"),
        (b"", "Expecting value"),
    ],
)
def test_json_that_cannot_be_read_is_one_line(text, reason):
    """Every fault of JSON is an error that names the reason, never another
    exception.
    """
    with pytest.raises(InputError, match=reason) as caught:
        parse_json(text)
    assert "\n" not in str(caught.value)


def test_json_without_a_fault_is_read():
    """With a byte order mark, and with NaN, as earlier versions wrote it."""
    value = {"a": [1, -2, 0.5, None, "ä"]}
    assert parse_json(b"\xef\xbb\xbf" + json.dumps(value).encode()) == value
    assert parse_json("9" * 300) == 10**300 - 1
    assert repr(parse_json("NaN")) == "nan"


def test_a_record_of_a_step_has_a_step_of_64_bits():
    assert parse_step(b'{"step": 7}') == {"step": 7}
    for line in ("", "5", "{}", '{"step": "7"}', '{"step": true}', '{"step": -1}'):
        assert parse_step(line) is None
    assert parse_step('{"step": 9223372036854775808}') is None


def test_numbers_that_are_not_finite_become_null():
    """At any depth; everything else stays."""
    value = {"a": [math.nan, 1.5, {"b": -math.inf}], "c": "nan", "f": (math.inf, 3)}
    assert finite(value) == {"a": [None, 1.5, {"b": None}], "c": "nan", "f": [None, 3]}
