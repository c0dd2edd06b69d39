"""A folder has one holder at a time; a file is written whole or not at all."""

import contextlib
import errno
import fcntl
import os
import subprocess
import sys

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


def test_a_folder_has_one_holder_at_a_time(tmp_path):
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


def test_a_file_that_is_not_finished_leaves_the_old_one(tmp_path):
    path = tmp_path / "record"
    write_whole(path, "old")
    with contextlib.suppress(KeyboardInterrupt), open_whole(path) as file:
        file.write(b"new")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_in_the_place_of_a_file_is_replaced_and_not_followed(tmp_path):
    outside, path = tmp_path / "outside", tmp_path / "record"
    outside.write_text("of somebody else")
    path.symlink_to(outside)
    write_whole(path, "ours")
    assert (outside.read_text(), path.read_text(), path.is_symlink()) == (
        "of somebody else",
        "ours",
        False,
    )


def test_a_new_file_keeps_the_permissions_of_the_old_one(tmp_path):
    path = tmp_path / "record"
    path.write_text("old")
    path.chmod(0o640)
    write_whole(path, "new")
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_write_that_fails_keeps_the_old_file_and_names_it(tmp_path, monkeypatch):
    path = tmp_path / "record"
    write_whole(path, "old")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        InputError,
        match=r"cannot write .*record: No space left on device; free some space",
    ):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param(b"[" * 100_000, "nested too deep", id="open"),
        pytest.param(b"[" * 100_000 + b"]" * 100_000, "nested too deep", id="deep"),
        pytest.param(b"1" * 400, "a number of 400 digits", id="long"),
        pytest.param(b"1" * 5_000, "a number of 5,000 digits", id="longer"),
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
    """A byte order mark is passed over, and NaN is read as earlier versions wrote
    it.
    """
    assert parse_json(b'\xef\xbb\xbf{"a": [1, -2, 0.5, null, "\xc3\xa4"]}') == {
        "a": [1, -2, 0.5, None, "ä"]
    }
    assert parse_json("9" * 300) == 10**300 - 1
    assert repr(parse_json("NaN")) == "nan"


def test_a_step_is_a_number_of_64_bits():
    """Only a JSON object with a step from 0 is a record of a step."""
    assert parse_step(b'{"step": 7}') == {"step": 7}
    for line in (
        "",
        "5",
        "{}",
        '{"step": "7"}',
        '{"step": true}',
        '{"step": -1}',
        '{"step": 9223372036854775808}',
    ):
        assert parse_step(line) is None


def test_numbers_that_are_not_finite_become_null():
    """At any depth; everything else stays."""
    value = {
        "a": [float("nan"), 1.5, {"b": float("-inf")}],
        "c": "nan",
        "d": 3,
        "e": None,
        "f": (float("inf"),),
    }
    assert finite(value) == {
        "a": [None, 1.5, {"b": None}],
        "c": "nan",
        "d": 3,
        "e": None,
        "f": [None],
    }
