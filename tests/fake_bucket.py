"""A bucket in memory: it notes what is written, can be replayed up to any write, and
refuses what a test says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from jaxformer import bucket
from jaxformer.errors import InputError

URL = "fake://bucket/run"

Write = tuple[str, bytes | None]
"""A path, and what was written there; None: it was removed."""


Fault = Callable[[str, str], None]
"""Is called before each request with its verb (list, read, write) and path; may raise.
"""


def nothing(verb: str, path: str) -> None:
    """Raise nothing."""


class FakeBucket(MemoryFileSystem):
    """Objects of ``fake://``, of all buckets together.

    Attributes:
        writes: every write, in order.
        reads: the path of every object that was read.
        fault: what goes wrong.
    """

    protocol = "fake"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    writes: ClassVar[list[Write]] = []
    reads: ClassVar[list[str]] = []
    fault: Fault = staticmethod(nothing)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace("fake://", "memory://"))

    @classmethod
    def reset(cls, writes: Sequence[Write] = ()) -> None:
        """Empty it, and replay some writes; nothing goes wrong."""
        cls.store.clear()
        cls.pseudo_dirs[:] = [""]
        cls.fault = staticmethod(nothing)
        empty = cls()
        for path, content in writes:
            if content is None:
                empty.rm_file(path)
            else:
                empty.pipe_file(path, content)
        cls.writes.clear()
        cls.reads.clear()

    @classmethod
    def break_by(cls, fault: Fault) -> None:
        """Let something go wrong."""
        cls.fault = staticmethod(fault)

    @classmethod
    def objects(cls) -> dict[str, bytes]:
        """Return the content of every object."""
        return {path: file.getvalue() for path, file in cls.store.items()}

    def find(self, path, *args, **options):
        self.fault("list", path)
        return super().find(path, *args, **options)

    def cat_file(self, path, *args, **options):
        self.fault("read", path)
        self.reads.append(path)
        return super().cat_file(path, *args, **options)

    def get_file(self, rpath, lpath, *args, **options):
        Path(lpath).write_bytes(self.cat_file(rpath))

    def pipe_file(self, path, value, *args, **options):
        self.fault("write", path)
        super().pipe_file(path, value, *args, **options)
        self.writes.append((path, value))

    def put_file(self, lpath, rpath, *args, **options):
        self.pipe_file(rpath, Path(lpath).read_bytes())

    def rm_file(self, path):
        self.fault("write", path)
        super().rm_file(path)
        self.writes.append((path, None))


fsspec.register_implementation("fake", FakeBucket, clobber=True)


def refused(action: Callable[[], object]) -> str:
    """Return the one line by which something is refused."""
    with pytest.raises(InputError) as caught:
        action()
    assert "\n" not in str(caught.value)
    return bucket.reword(str(caught.value))


def upload(folder: Path) -> None:
    """Copy a folder into the bucket, as one does by other tools."""
    for path in folder.rglob("*"):
        if path.is_file() and path.name != ".lock":
            name = path.relative_to(folder).as_posix()
            FakeBucket().pipe_file(f"{URL}/{name}", path.read_bytes())
