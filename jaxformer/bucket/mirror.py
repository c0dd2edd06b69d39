"""The mirror of a run directory in a bucket: a temporary local folder."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import tempfile
import threading
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from jaxformer.bucket import SEAL
from jaxformer.bucket.locks import Locks
from jaxformer.bucket.objects import Objects
from jaxformer.errors import InputError

UNFINISHED = ".unfinished"
"""The object that a checkpoint in a bucket has while its others are written or removed.
"""

_LARGE = 1 << 16
"""Bytes above which a file of a checkpoint is not downloaded before it is read."""

_CHECKPOINTS, _AVERAGES = "checkpoints", "averages"
"""Folders of checkpoints."""

_NEVER_READ = ("tensorboard", "wandb", "profile", "bad_batches")
"""Folders that are written and not read."""

_State: TypeAlias = tuple[int, int, int]

_UNKNOWN: _State = (-1, -1, -1)
"""The state of a file whose object may be anything; no file has it."""


@dataclasses.dataclass
class Mirror:
    """A local folder and the objects of the bucket that it stands for.

    A file's name is its path relative to the run directory.

    Attributes:
        objects: of the bucket.
        root: the run directory, in a temporary folder of its own.
        locks: those that this process holds.
        same: the state of each local file that equals its object, by name.
        absent: names of the files that are not downloaded yet.
        listed: the sizes of the objects as they were read or written here.
        unfinished: checkpoints that this process has begun to write or to remove.
        turn: held by a push.
        process: the one that made it, and not one that was forked.
    """

    objects: Objects
    root: Path
    locks: Locks
    same: dict[str, _State] = dataclasses.field(default_factory=dict)
    absent: set[str] = dataclasses.field(default_factory=set)
    listed: dict[str, int] = dataclasses.field(default_factory=dict)
    unfinished: set[str] = dataclasses.field(default_factory=set)
    turn: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    process: int = dataclasses.field(default_factory=os.getpid)

    @classmethod
    def open(cls, url: str) -> Mirror:
        """Make the mirror of a directory and read what the bucket holds."""
        objects = Objects(url)
        folder = Path(tempfile.mkdtemp(prefix="jaxformer-")).resolve()
        mirror = cls(objects, folder / PurePosixPath(url).name, Locks(objects))
        mirror.root.mkdir()
        try:
            mirror.pull()
        except BaseException:
            mirror.close()
            raise
        return mirror

    def close(self) -> None:
        """Remove the temporary folder."""
        if self.process == os.getpid():
            # The name goes first: a push must not take this for removed checkpoints.
            with contextlib.suppress(OSError):
                self.root.rename(self.root.parent / ".closed")
            shutil.rmtree(self.root.parent, ignore_errors=True)

    def name(self, path: Path) -> str:
        """Return the name of a local path; empty for the run directory."""
        return "" if path == self.root else path.relative_to(self.root).as_posix()

    def list_saved(self, folder: str) -> list[str]:
        """Return the names of the checkpoints of a folder that the bucket holds."""
        saved = map(PurePosixPath, _checkpoints(self.same) - self.unfinished)
        return [path.name for path in saved if path.parent == PurePosixPath(folder)]

    def pull(self) -> None:
        """Read the bucket. The large files of checkpoints become empty ones."""
        self.listed = self.list_objects()
        left_out = _find_unfinished(self.listed)
        wanted = {
            name: size
            for name, size in self.listed.items()
            if name.split("/")[0] not in _NEVER_READ
            and _checkpoint(name) not in left_out
        }
        small = {
            name
            for name, size in wanted.items()
            if size <= _LARGE or _checkpoint(name) is None
        }
        contents = self.objects.read(small)
        gone = small - contents.keys()  # with their checkpoints
        left_out = _checkpoints(gone)
        for name in wanted.keys() - gone:
            if _checkpoint(name) not in left_out:
                self.make(name, contents.get(name))

    def make(self, name: str, content: bytes | None) -> None:
        """Make a local file; without its content it is an empty one of its size.

        Raises:
            InputError: the local disk refuses.
        """
        path = self.root / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                if content is None:
                    file.truncate(self.listed[name])
                else:
                    file.write(content)
        except OSError as error:
            raise InputError(
                f"cannot copy {self.objects.url}/{name} to {path}: {error.strerror};"
                " free some space there, or set TMPDIR"
            ) from error
        if content is None:
            self.absent.add(name)
        self.same[name] = _state(path)

    def fetch(self, names: Collection[str]) -> None:
        """Download files, and those in folders, that are not there yet."""
        within = tuple(f"{name}/" for name in names)
        for name in sorted(self.absent):
            if name in names or name.startswith(within):
                # A push must not see half a file.
                part = self.root.parent / "download"
                self.objects.download(name, part)
                part.replace(self.root / name)
                self.absent.discard(name)
                self.same[name] = _state(self.root / name)

    def refresh(self, name: str) -> None:
        """Read a small object again."""
        for content in self.objects.read([name]).values():
            self.make(name, content)

    def push(self) -> None:
        """Write what has changed, and remove what is gone: records first, then new
        checkpoints, then old ones.
        """
        with self.turn:
            found = self.scan()
            changed = {name for name in found if self.same.get(name) != found[name]}
            gone = self.find_gone(found)
            # A checkpoint of which a file is gone is being removed.
            torn = _checkpoints(gone) - _checkpoints(changed)
            gone |= {name for name in self.same if _checkpoint(name) in torn}
            if not (changed or gone or self.unfinished):
                return
            new = _checkpoints(changed)
            old = (_checkpoints(gone) | self.unfinished) - new
            for checkpoint in [None, *sorted(new), *sorted(old)]:
                with self.changing(checkpoint):
                    for name in sorted(changed):
                        if _checkpoint(name) == checkpoint:
                            self.write(name, found[name])
                    for name in sorted(gone):
                        if _checkpoint(name) == checkpoint:
                            self.remove(name)

    @contextlib.contextmanager
    def changing(self, checkpoint: str | None) -> Iterator[None]:
        """Mark a checkpoint as unfinished until the block has ended."""
        if checkpoint is None:
            yield
            return
        self.locks.check()
        self.unfinished.add(checkpoint)
        self.objects.write(f"{checkpoint}/{UNFINISHED}", b"")
        yield
        self.locks.check()
        self.objects.remove(f"{checkpoint}/{UNFINISHED}")
        self.unfinished.discard(checkpoint)

    def scan(self) -> dict[str, _State]:
        """Return the state of each local file that belongs into the bucket."""
        found = {}
        # A folder or a file may be removed meanwhile. os.walk allows for folders.
        for folder, _, files in os.walk(self.root):
            for path in (Path(folder, file) for file in files):
                name = self.name(path)
                with contextlib.suppress(FileNotFoundError):
                    if _is_ours(name) and path.is_file() and not path.is_symlink():
                        found[name] = _state(path)
        whole = _checkpoints(name for name in found if name.endswith(f"/{SEAL}"))
        whole |= _checkpoints(self.same)
        return {
            name: state
            for name, state in found.items()
            if _checkpoint(name) in {*whole, None}
        }

    def find_gone(self, found: Collection[str]) -> set[str]:
        """Return the names of the objects to remove: those of files that are gone.

        Once there are checkpoints, a run removes no other file. If somebody else has
        removed one that is never read, its object stays.

        Args:
            found: the names of the files that are there.

        Raises:
            InputError: somebody else has removed a file that is read again.
        """
        gone = self.same.keys() - found
        begun = bool(_checkpoints(self.same))
        records = {name for name in gone if begun and _checkpoint(name) is None}
        lost = any(name.split("/")[0] not in _NEVER_READ for name in records)
        if lost or not self.root.is_dir():
            raise InputError(
                f"files of {self.objects.url} were removed from its local copy in"
                f" {self.root.parent}, and nothing more is written: run the command"
                " again, with TMPDIR in a folder that is not cleaned meanwhile"
            )
        return gone - records

    def write(self, name: str, state: _State) -> None:
        """Write a file. A record may grow meanwhile, so that its bytes are read first;
        one that is removed meanwhile is left out.
        """
        self.locks.check()
        path = self.root / name
        with contextlib.suppress(FileNotFoundError):
            content = path.read_bytes() if _checkpoint(name) is None else None
            # An object may be there although its write has failed.
            self.same[name] = _UNKNOWN
            if content is None:
                self.objects.upload(name, path)
            else:
                self.objects.write(name, content)
            self.same[name], self.listed[name] = state, state[0]

    def remove(self, name: str) -> None:
        """Remove an object."""
        self.locks.check()
        self.objects.remove(name)
        self.same.pop(name, None)
        self.listed.pop(name, None)

    def list_objects(self) -> dict[str, int]:
        """Return the sizes of the run's objects by name."""
        return {
            name: size
            for name, size in self.objects.sizes().items()
            if _is_ours(name) or name.endswith(f"/{UNFINISHED}")
        }

    @contextlib.contextmanager
    def hold(self, folder: str, refusal: str) -> Iterator[None]:
        """Hold a folder within the block; see :func:`jaxformer.bucket.hold`."""
        with self.locks.hold(folder, refusal):
            self.clear(folder or _CHECKPOINTS)
            yield

    def clear(self, folder: str) -> None:
        """Refuse a folder that has changed since it was read, and remove unfinished
        checkpoints.

        Raises:
            InputError: it has changed.
        """

        def within(listed: dict[str, int]) -> dict[str, int]:
            start = f"{folder}/"
            return {name: n for name, n in listed.items() if name.startswith(start)}

        found = within(self.list_objects())
        if found != within(self.listed):
            raise InputError(
                f"{self.objects.url}/{folder} has changed since it was read: run the"
                " command again"
            )
        unfinished = _find_unfinished(found)
        # The mark itself comes last.
        for name in sorted(found, key=lambda name: name.endswith(UNFINISHED)):
            if _checkpoint(name) in unfinished:
                self.remove(name)


def _is_ours(name: str) -> bool:
    """Return whether a file is one of a run: nothing temporary, nothing outside the
    directory, and no folder.
    """
    parts = name.split("/")
    return not {"", ".", ".."} & {*parts} and not parts[-1].startswith(".")


def _checkpoint(name: str) -> str | None:
    """Return the folder of the checkpoint that a file belongs to; None: to none."""
    parts = name.split("/")
    inside = parts[0] in (_CHECKPOINTS, _AVERAGES) and len(parts) > 2
    return "/".join(parts[:2]) if inside else None


def _checkpoints(names: Iterable[str]) -> set[str]:
    """Return the folders of the checkpoints that some files belong to."""
    return {folder for name in names if (folder := _checkpoint(name)) is not None}


def _find_unfinished(names: Iterable[str]) -> set[str]:
    """Return the checkpoints that are marked as unfinished."""
    return _checkpoints(name for name in names if name.endswith(f"/{UNFINISHED}"))


def _state(path: Path) -> _State:
    """Return what changes when a file does."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino
