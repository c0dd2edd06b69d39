"""Files that are written whole or not at all, and folders that one process at a time
works in.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import secrets
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from jaxformer.errors import InputError

LOCK = ".lock"
"""The empty file by which a folder is held."""

TEMPORARY = ".tmp"
"""How the name of a file ends that is not yet whole; a process that was killed may
leave one.
"""

_CURES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some of your quota",
    errno.EACCES: "change its permissions, or choose another place",
    errno.EPERM: "change its permissions, or choose another place",
    errno.EROFS: "choose a place that can be written",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}


def describe(error: OSError) -> str:
    """Return the reason of a system error, and its cure where there is one."""
    cure = _CURES.get(error.errno or 0)
    return f"{error.strerror or error}{f'; {cure}' if cure else ''}"


def cannot_write(path: Path | str, error: OSError) -> InputError:
    """Build the one line for a file that the system refuses to write: which file,
    why, and the cure.
    """
    return InputError(f"cannot write {path}: {describe(error)}")


def check_writable(directory: Path) -> None:
    """Check before the work that a folder, which exists, can be written; no name
    appears in it.

    Raises:
        InputError: no file can be made in the folder.
    """
    try:
        tempfile.TemporaryFile(dir=directory).close()
    except OSError as error:
        raise cannot_write(directory, error) from None


def find_descriptor(path: Path) -> int | None:
    """Return the descriptor of this process that a path names, itself or by links, as
    ``/dev/stdout`` and ``/dev/fd/1`` do; None: it names none.
    """
    folders = ("/dev/fd", "/proc/self/fd", "/proc/thread-self/fd")
    own = {os.path.realpath(each) for each in folders}
    for _ in range(40):  # as many links as Linux follows
        parent = os.path.realpath(path.parent)
        if parent in own and path.name.isdecimal():
            return int(path.name)
        if not path.is_symlink():
            break
        path = Path(parent, path.readlink())
    return None


@contextlib.contextmanager
def open_whole(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write that appears under its name only when the block ends without
    an error. A descriptor of this process is written in place.

    The bytes go to a temporary file of a random name in the same folder, so two
    processes never share one. It is synchronised with the disk and then renamed: after
    a kill or on a full disk, the file that was there is unchanged. A symbolic link in
    its place is replaced and never followed. An older file passes on its permissions.

    Raises:
        InputError: the file cannot be written.
    """
    if (descriptor := find_descriptor(path)) is not None:
        with open(os.dup(descriptor), "wb") as file:
            yield file
        return
    temporary = path.with_name(f".{path.name[:40]}.{secrets.token_hex(4)}{TEMPORARY}")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if path.is_file() and not path.is_symlink():
            shutil.copymode(path, temporary)
        temporary.replace(path)
    except OSError as error:
        if error.filename not in (None, str(temporary)):
            raise  # of another file, which the block reads
        raise cannot_write(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file as :func:`open_whole` does; text as UTF-8.

    Raises:
        InputError: the file cannot be written.
    """
    with open_whole(path) as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)


@contextlib.contextmanager
def new_folder(path: Path, *, packed: bool = False) -> Iterator[Path]:
    """Make a folder that appears under its name only when the block ends without an
    error; the block fills a temporary one next to it. Missing parents are made.

    Args:
        path: of the folder.
        packed: whether its content becomes a ZIP file of that name instead.

    Raises:
        InputError: there is something of the name already, or it cannot be written.
    """
    if path.exists() or path.is_symlink():
        kind = "file" if packed else "folder"
        raise InputError(f"{path} exists already: name a {kind} that does not")
    path = path.absolute()
    made = [parent for parent in path.parents if not parent.exists()]
    new = path.with_name(f".{path.name[:40]}.{secrets.token_hex(4)}{TEMPORARY}")
    try:
        new.mkdir(parents=True)
        yield new
        if packed:
            _pack(new, path)
        else:
            new.rename(path)
    except BaseException as error:
        shutil.rmtree(new, ignore_errors=True)
        with contextlib.suppress(OSError):  # another process may use one
            for parent in made:
                parent.rmdir()
        if isinstance(error, OSError):
            raise cannot_write(path, error) from None
        raise


def _pack(folder: Path, path: Path) -> None:
    """Move the content of a folder into a ZIP file, without compression."""
    with open_whole(path) as file, zipfile.ZipFile(file, "w") as archive:
        for each in sorted(folder.rglob("*")):
            archive.write(each, each.relative_to(folder))
    shutil.rmtree(folder)


def parse_json(text: str | bytes) -> Any:
    """Parse JSON: the bytes of a file in UTF-8, or one line as a string.

    Raises:
        InputError: it is not JSON or not UTF-8. The error is the reason only: the
            caller adds the file and the cure.
    """
    try:
        return json.loads(text.decode("utf-8-sig") if isinstance(text, bytes) else text)
    except json.JSONDecodeError as error:
        line = isinstance(text, str)
        raise InputError(
            f"{error.msg}, column {error.colno}" if line else str(error)
        ) from None
    except (ValueError, RecursionError) as error:
        raise InputError(str(error)) from None


def parse_step(line: str | bytes) -> dict[str, Any] | None:
    """Parse a line of ``metrics.jsonl`` or ``samples.jsonl``; None where it is no
    JSON object with a step.
    """
    try:
        record = parse_json(line)
    except InputError:
        return None
    step = record.get("step") if isinstance(record, dict) else None
    return record if type(step) is int and 0 <= step < 2**63 else None


def finite(value: Any) -> Any:
    """Return a value of JSON with null in place of NaN and infinities, for which
    JSON has no number.
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return (
        [finite(item) for item in value] if isinstance(value, list | tuple) else value
    )


def hold(directory: Path, refusal: str) -> TextIO:
    """Hold a folder for this process, or refuse at once where another holds it.

    File systems without locks, as some networks have, hold nothing and refuse nothing.

    Args:
        directory: the folder; it exists.
        refusal: the error of the second process, with the cure.

    Returns:
        An open file. The folder is held until it is closed or the process ends, however
        it ends.

    Raises:
        InputError: ``refusal``, where another process, or this one, holds the folder.
    """
    lock = (directory / LOCK).open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise InputError(refusal) from None
    except OSError:
        pass  # a file system without locks
    return lock


@contextlib.contextmanager
def in_turn(directory: Path) -> Iterator[None]:
    """Wait until no other process changes the small files of a folder, and keep others
    waiting until the block ends.

    The lock is on the folder itself. It is independent of :func:`hold`. File systems
    without locks wait for nothing.
    """
    handle = os.open(directory, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
