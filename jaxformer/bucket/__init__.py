"""A run directory in a bucket, such as ``gs://bucket/run``.

A process works on a mirror: a temporary local folder. It begins with what the bucket
holds, and :func:`push` writes what has changed since. A bucket writes an object whole
or not at all, and has no renames, appends and locks. Three rules replace them:

1. Within a push the records come first, then new checkpoints, then the removal of old
   ones. While the objects of a checkpoint are written or removed it has one more,
   ``.unfinished``, and is not read.
2. A mirror removes only objects that it has read or written.
3. The writer of a run holds the object ``.lock``, which it renews. A second writer
   waits to see whether the first still does.

Large files of checkpoints are downloaded when they are read. Until then the mirror has
an empty (sparse) file of their size.
"""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from jaxformer.errors import InputError

if TYPE_CHECKING:
    from jaxformer.bucket.mirror import Mirror

SEAL = "checksums.json"
"""The file of a checkpoint that is written last, on a disk and in a bucket."""

_COLLAPSED = ("gs:",), ("gcs:",), ("s3:",)
"""First parts of a path that was a URL."""

_mirrors: list[Mirror] = []


class DirectoryURL(str):
    """The URL of a run directory that is not opened yet."""


def open_directory(name: str | Path) -> Path:
    """Return the local folder of a run directory.

    Args:
        name: a local directory, or the URL of one in a bucket. The folder is then the
            mirror, a new one at each call.

    Raises:
        InputError: there is no such kind of bucket, its package is not installed, or
            the bucket cannot be read; or a URL was made a ``Path``, which keeps only
            one of its slashes.
    """
    if isinstance(name, Path) or "://" not in name:
        if Path(name).parts[:1] in _COLLAPSED:
            raise InputError(
                f"{name} is a path on this machine: write a bucket with two slashes,"
                " as in gs://bucket/run (in Python as a string: a Path keeps only one)"
            )
        return Path(name)
    url = name.rstrip("/")
    # Only for a bucket: a run on a disk needs none of it.
    from jaxformer.bucket.mirror import Mirror

    _mirrors.append(Mirror.open(url))
    return _mirrors[-1].root


def is_mirror(path: Path) -> bool:
    """Return whether a path is in the mirror of a bucket."""
    return _find(path) is not None


def reword(text: str) -> str:
    """Replace the names of mirrors in a message by those of their buckets."""
    for mirror in _mirrors:
        text = text.replace(str(mirror.root), mirror.objects.url)
    return text


def push(path: Path) -> None:
    """Write what has changed in a run directory to its bucket; nothing on a local disk.

    Args:
        path: the directory, or a path in it.

    Raises:
        InputError: the bucket cannot be written, or another process has taken it over.
    """
    mirror = _find(path)
    if mirror is not None:
        mirror.push()


def list_saved(directory: Path) -> list[str] | None:
    """Return the names of the checkpoints in a folder of a bucket; None for a folder
    on a local disk.
    """
    mirror = _find(directory)
    return None if mirror is None else mirror.list_saved(mirror.name(directory))


def fetch(path: Path, names: Collection[str] = ("",)) -> None:
    """Download the large files of a checkpoint that the mirror does not have yet.

    Args:
        path: the folder of the checkpoint.
        names: files and folders in it.

    Raises:
        InputError: the bucket cannot be read, or a file is gone.
    """
    mirror = _find(path)
    if mirror is not None:
        mirror.fetch([mirror.name(path / name) for name in names])


def refresh(path: Path) -> None:
    """Download a small file again, which another process may have written.

    Raises:
        InputError: the bucket cannot be read.
    """
    mirror = _find(path)
    if mirror is not None:
        mirror.refresh(mirror.name(path))


def check_writable(path: Path) -> None:
    """Check that the bucket of a directory can be written.

    Raises:
        InputError: it cannot.
    """
    mirror = _find(path)
    if mirror is not None:
        mirror.objects.write(".writable", b"")
        mirror.objects.remove(".writable")


@contextlib.contextmanager
def hold(path: Path, refusal: str) -> Iterator[None]:
    """Hold a folder of a bucket against other writers within the block.

    A best effort: a lock that is not renewed for three beats is taken over, and its
    owner finds out at its next push.

    Args:
        path: the run directory, or its folder of averages.
        refusal: the error of the second process, with the cure.

    Raises:
        InputError: ``refusal``, where another process renews the lock; or the bucket
            has changed since the mirror was made.
    """
    mirror = _find(path)
    if mirror is None:
        yield
        return
    with mirror.hold(mirror.name(path), refusal):
        yield


def close() -> None:
    """Remove all mirrors of this process."""
    while _mirrors:
        _mirrors.pop().close()


atexit.register(close)


def _find(path: Path) -> Mirror | None:
    """Return the mirror that a path is in."""
    for mirror in _mirrors:
        if path == mirror.root or mirror.root in path.parents:
            return mirror
    return None
