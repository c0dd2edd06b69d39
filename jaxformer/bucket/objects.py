"""The objects of a directory in a bucket, asked for by fsspec."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from jaxformer.errors import InputError, first_line, require

_EXTRAS = {"gs": "gcs", "gcs": "gcs", "s3": "s3"}

for _name in ("gcsfs", "s3fs"):
    # They log tracebacks of what the error says, which Python prints where nobody else
    # handles logs.
    logging.getLogger(_name).addHandler(logging.NullHandler())

_EXAMPLE = "the URL of a directory in a bucket, such as gs://bucket/run"

_REFUSED = ("forbidden", "denied", "unauthorized", "credentials", "401", "403")
"""Words of an error that is one of permission."""


class Objects:
    """The objects below a URL, by their names relative to it.

    Attributes:
        url: of the directory.
    """

    def __init__(self, url: str) -> None:
        """Find the file system of a URL; nothing is asked yet.

        Raises:
            InputError: there is no such kind of bucket, or its package is not
                installed.
        """
        self.url = url
        self._files, base = _connect(url)
        self._start = base.rstrip("/") + "/"

    def sizes(self) -> dict[str, int]:
        """Return the size of every object by name.

        Raises:
            InputError: the bucket cannot be listed.
        """
        with self._asking("list"):
            self._files.invalidate_cache()
            try:
                found = self._files.find(self._start.rstrip("/"), detail=True)
            except FileNotFoundError:
                return {}
        return {
            path.removeprefix(self._start): entry["size"]
            for path, entry in found.items()
            if path.startswith(self._start)
        }

    def read(self, names: Collection[str]) -> dict[str, bytes]:
        """Read objects, several at once; those that do not exist are left out.

        Raises:
            InputError: the bucket cannot be read.
        """
        names, contents = list(names), {}
        with self._asking("read"):
            # Unlike cat, this takes a name with * ? [ literally. None: from end to end.
            paths = [self._start + name for name in names]
            found = self._files.cat_ranges(paths, None, None) if paths else []
            for name, content in zip(names, found, strict=True):
                if isinstance(content, BaseException):
                    if not isinstance(content, FileNotFoundError):
                        raise content
                else:
                    contents[name] = content
        return contents

    def download(self, name: str, path: Path) -> None:
        """Copy an object into a local file.

        Raises:
            InputError: it does not exist, or the bucket cannot be read.
        """
        with self._asking("read", name):
            try:
                self._files.get_file(self._start + name, str(path))
            except FileNotFoundError:
                raise InputError(
                    f"{self.url}/{name} was removed while it was read: training keeps"
                    " only the latest and the best; run the command again"
                ) from None

    def write(self, name: str, content: bytes) -> None:
        """Write an object, whole or not at all.

        Raises:
            InputError: the bucket cannot be written.
        """
        with self._asking("write", name):
            self._files.pipe_file(self._start + name, content)

    def upload(self, name: str, path: Path) -> None:
        """Copy a local file into an object.

        Raises:
            InputError: the bucket cannot be written.
        """
        with self._asking("write", name):
            self._files.put_file(str(path), self._start + name)

    def remove(self, name: str) -> None:
        """Remove an object; it may be gone.

        Raises:
            InputError: the bucket cannot be written.
        """
        with self._asking("remove", name), contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self._start + name)

    @contextlib.contextmanager
    def _asking(self, verb: str, name: str = "") -> Iterator[None]:
        """Word what goes wrong while the bucket is asked."""
        try:
            yield
        except InputError:
            raise
        except Exception as error:
            where = f"{self.url}/{name}".rstrip("/")
            raise InputError(
                f"cannot {verb} {where}: {first_line(error)}{_cure(error)}"
            ) from error


def _connect(url: str) -> tuple[Any, str]:
    """Return the file system of a URL and its path there."""
    scheme, _, rest = url.partition("://")
    parts = [part for part in rest.split("/") if part]
    # A bucket itself may hold much that is not of the run.
    if len(parts) < 2 or ".." in parts:
        raise InputError(f"{url} is not {_EXAMPLE}: name one")
    connect = require("fsspec.core", "train").url_to_fs
    try:
        return connect(url)
    except ImportError as error:
        extra = _EXTRAS.get(scheme)
        cure = f"pip install 'jaxformer[{extra}]'" if extra else first_line(error)
        raise InputError(
            f"{url} needs the package of fsspec for {scheme}://, which is not"
            f" installed: {cure}"
        ) from None
    except Exception as error:
        raise InputError(f"{url} is not {_EXAMPLE}: {first_line(error)}") from error


def _cure(error: Exception) -> str:
    """Return what helps against an error of a bucket, where that is known."""
    words = f"{type(error).__name__} {error}".lower()
    if isinstance(error, FileNotFoundError):
        return "; make the bucket, or name another"
    if isinstance(error, PermissionError) or any(word in words for word in _REFUSED):
        return "; let this machine's account read and write the bucket"
    return ""
