"""A run directory in a bucket, such as ``gs://bucket/run``.

A process works on a mirror: a temporary local folder. It begins with what the bucket
holds, and :func:`push` writes what has changed since. The arrays of checkpoints are
downloaded when they are read. A checkpoint of a bucket counts only with its checksums,
which are written last and removed first. Only one process may train or average in a
bucket's run at a time: nothing refuses a second.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from jaxformer.errors import InputError, first_line, require

SEAL = "checksums.json"
"""The file of a checkpoint that is written last, on a disk and in a bucket."""

_COLLAPSED = ("gs:",), ("gcs:",), ("s3:",)
"""First parts of a path that was a URL."""

_NEVER_READ = ("tensorboard", "wandb", "profile", "bad_batches")
"""Folders that are written and not read."""

_State: TypeAlias = tuple[int, int, int]

_mirrors: list[_Mirror] = []


class DirectoryURL(str):
    """The URL of a run directory that is not opened yet."""


def open_directory(name: str | Path) -> Path:
    """Return the local folder of a run directory.

    Args:
        name: a local directory, or the URL of one in a bucket. The folder is then the
            mirror, a new one at each call.

    Raises:
        InputError: the bucket cannot be read, or the package for it is not installed;
            or a URL was made a ``Path``, which keeps only one of its slashes.
    """
    if isinstance(name, Path) or "://" not in name:
        if Path(name).parts[:1] in _COLLAPSED:
            raise InputError(
                f"{name} is a path on this machine: write a bucket with two slashes,"
                " as in gs://bucket/run (in Python as a string: a Path keeps only one)"
            )
        return Path(name)
    mirror = _Mirror(name.rstrip("/"))
    _mirrors.append(mirror)
    mirror.pull()
    return mirror.root


def is_mirror(path: Path) -> bool:
    """Return whether a path is in the mirror of a bucket."""
    return _find(path) is not None


def reword(text: str) -> str:
    """Replace the names of mirrors in a message by those of their buckets."""
    for mirror in _mirrors:
        text = text.replace(str(mirror.root), mirror.url)
    return text


def push(path: Path) -> None:
    """Write what has changed in a run directory to its bucket; nothing on a local disk.

    Args:
        path: the directory, or a path in it.

    Raises:
        InputError: the bucket cannot be written.
    """
    if (mirror := _find(path)) is not None:
        mirror.push()


def list_saved(directory: Path) -> list[str] | None:
    """Return the names of the checkpoints in a folder of a bucket; None for a folder
    on a local disk.
    """
    mirror = _find(directory)
    if mirror is None:
        return None
    saved = [PurePosixPath(name).parent for name in mirror.same if name.endswith(SEAL)]
    return [path.name for path in saved if path.parent.name == directory.name]


def fetch(path: Path, names: Collection[str] = ("",)) -> None:
    """Download the arrays of a checkpoint that the mirror does not have yet.

    Args:
        path: the folder of the checkpoint.
        names: files and folders in it.

    Raises:
        InputError: the bucket cannot be read, or a file is gone.
    """
    if (mirror := _find(path)) is not None:
        mirror.fetch([path / name for name in names])


def refresh(path: Path) -> None:
    """Read a small file again, which another process may have written.

    Raises:
        InputError: the bucket cannot be read.
    """
    if (mirror := _find(path)) is not None:
        mirror.refresh(path)


def close() -> None:
    """Remove all mirrors of this process."""
    while _mirrors:
        _mirrors.pop().close()


atexit.register(close)


def _find(path: Path) -> _Mirror | None:
    """Return the mirror that a path is in."""
    for mirror in _mirrors:
        if path == mirror.root or mirror.root in path.parents:
            return mirror
    return None


class _Mirror:
    """A local folder and the objects of the bucket that it stands for.

    A file's name is its path relative to the run directory.

    Attributes:
        url: of the run directory.
        root: its local folder.
        same: the state of each local file that equals its object, by name.
        absent: names of the objects that are not downloaded.
        torn: names of the objects of checkpoints that are not whole.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        if len([part for part in url.partition("://")[2].split("/") if part]) < 2:
            raise InputError(
                f"{url} is not the URL of a directory in a bucket: name one, such as"
                " gs://bucket/run"
            )
        with self._asking("open"):
            self._files, base = require("fsspec.core", "train").url_to_fs(url)
        self._base = base.rstrip("/")
        folder = Path(tempfile.mkdtemp(prefix="jaxformer-")).resolve()
        self.root = folder / PurePosixPath(url).name
        self.root.mkdir()
        self.same: dict[str, _State] = {}
        self.absent, self.torn = set[str](), set[str]()
        self._turn, self._process = threading.Lock(), os.getpid()

    def close(self) -> None:
        """Remove the temporary folder, unless a forked process has it."""
        if self._process == os.getpid():
            # The name goes first: a push must not take this for removed checkpoints.
            with contextlib.suppress(OSError):
                self.root.rename(self.root.parent / ".closed")
            shutil.rmtree(self.root.parent, ignore_errors=True)

    def pull(self) -> None:
        """Read what the bucket holds."""
        with self._asking("read"):
            self._files.invalidate_cache()
            try:
                paths = self._files.find(self._base)
            except FileNotFoundError:
                paths = []
            names = [path.removeprefix(f"{self._base}/") for path in paths]
            wanted = []
            for name in filter(_is_ours, names):
                checkpoint = _checkpoint(name)
                if checkpoint and f"{checkpoint}/{SEAL}" not in names:
                    self.torn.add(name)
                elif checkpoint and "/d/" in name:
                    self.absent.add(name)
                elif name.split("/")[0] not in _NEVER_READ:
                    wanted.append(name)
            # Unlike cat, this takes names as they are. None: from end to end.
            remote = [f"{self._base}/{name}" for name in wanted]
            found = self._files.cat_ranges(remote, None, None) if remote else []
            contents = dict(zip(wanted, found, strict=True))
            # Training may remove a checkpoint meanwhile.
            gone = [
                name
                for name, content in contents.items()
                if isinstance(content, FileNotFoundError)
            ]
            lost = _checkpoints(gone)
            self.absent = {
                name for name in self.absent if _checkpoint(name) not in lost
            }
            for name, content in contents.items():
                if name not in gone and _checkpoint(name) not in lost:
                    if isinstance(content, Exception):
                        raise content
                    path = self.root / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content)
                    self.same[name] = _state(path)

    def fetch(self, paths: Collection[Path]) -> None:
        """Download files, and those in folders, that are not there yet."""
        wanted = [
            name
            for name in sorted(self.absent)
            if any((self.root / name).is_relative_to(path) for path in paths)
        ]
        with self._turn, self._asking("read"):
            for name in wanted:
                path = self.root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                self._files.get_file(f"{self._base}/{name}", str(path))
                self.same[name] = _state(path)
                self.absent.discard(name)

    def refresh(self, path: Path) -> None:
        """Read a small file again; nothing where there is no such object."""
        name = path.relative_to(self.root).as_posix()
        with self._turn, self._asking("read"), contextlib.suppress(FileNotFoundError):
            path.write_bytes(self._files.cat_file(f"{self._base}/{name}"))
            self.same[name] = _state(path)

    def push(self) -> None:
        """Write records, then new checkpoints; then remove old ones.

        Raises:
            InputError: the bucket cannot be written, or records were removed from the
                local folder.
        """
        with self._turn, self._asking("write"):
            found = self._scan()
            changed = {name for name in found if self.same.get(name) != found[name]}
            gone = {
                name
                for name in self.same.keys() - found.keys()
                if name.split("/")[0] not in _NEVER_READ
            }
            lost = None in map(_checkpoint, gone) and _checkpoints(self.same)
            if lost or not self.root.is_dir():
                raise InputError(
                    f"files of {self.url} were removed from its local copy in"
                    f" {self.root.parent}, and nothing more is written: run the command"
                    " again, with TMPDIR in a folder that is not cleaned meanwhile"
                )
            new = _checkpoints(changed)
            for name in sorted(changed):
                if _checkpoint(name) is None:
                    self._write(name, found[name])
            for checkpoint in sorted(new):
                self._remove(self._of(checkpoint) - found.keys())
                self._remove({f"{checkpoint}/{SEAL}"})
                of_new = {name for name in changed if _checkpoint(name) == checkpoint}
                for name in sorted(of_new, key=lambda name: name.endswith(SEAL)):
                    self._write(name, found[name])
            for checkpoint in _checkpoints(gone) - new:
                # One of which a file is gone is being removed.
                self._remove(self._of(checkpoint))
            self._remove({name for name in gone if _checkpoint(name) is None})

    def _of(self, checkpoint: str) -> set[str]:
        """Return the objects of a checkpoint."""
        known = {*self.same, *self.absent, *self.torn}
        return {name for name in known if _checkpoint(name) == checkpoint}

    def _scan(self) -> dict[str, _State]:
        """Return the state of each local file that belongs into the bucket."""
        found = {}
        for folder, _, files in os.walk(self.root):
            for path in (Path(folder, file) for file in files):
                name = path.relative_to(self.root).as_posix()
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    if _is_ours(name) and name not in self.absent:
                        found[name] = _state(path)
        whole = {_checkpoint(name) for name in found if name.endswith(f"/{SEAL}")}
        return {
            name: state
            for name, state in found.items()
            if _checkpoint(name) in {*whole, None}
        }

    def _write(self, name: str, state: _State) -> None:
        path, target = self.root / name, f"{self._base}/{name}"
        if _checkpoint(name):
            self.same[name] = -1, -1, -1  # it may be there although the write fails
            self._files.put_file(str(path), target)
        else:
            self._files.pipe_file(target, path.read_bytes())  # it may grow meanwhile
        self.same[name] = state

    def _remove(self, names: Collection[str]) -> None:
        """Remove objects, checksums first."""
        for name in sorted(names, key=lambda name: not name.endswith(SEAL)):
            with contextlib.suppress(FileNotFoundError):
                self._files.rm_file(f"{self._base}/{name}")
            self.same.pop(name, None)
            self.absent.discard(name)
            self.torn.discard(name)

    @contextlib.contextmanager
    def _asking(self, verb: str) -> Iterator[None]:
        try:
            yield
        except InputError:
            raise
        except Exception as error:
            message = f"cannot {verb} {self.url}: {first_line(error)}"
            raise InputError(message) from error


def _is_ours(name: str) -> bool:
    """Return whether a file is one of a run: nothing temporary, nothing outside the
    directory, and no folder.
    """
    parts = name.split("/")
    return not {"", ".", ".."} & {*parts} and not parts[-1].startswith(".")


def _checkpoint(name: str) -> str | None:
    """Return the folder of the checkpoint that a file belongs to; None: to none."""
    parts = name.split("/")
    inside = parts[0] in ("checkpoints", "averages") and len(parts) > 2
    return "/".join(parts[:2]) if inside else None


def _checkpoints(names: Iterable[str]) -> set[str]:
    """Return the folders of the checkpoints that some files belong to."""
    return {folder for name in names if (folder := _checkpoint(name)) is not None}


def _state(path: Path) -> _State:
    """Return what changes when a file does."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino
