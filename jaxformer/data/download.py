"""Download a published file: verified by its checksum and resumed where it broke off.

What has arrived is kept in ``NAME.part``. It gets its final name once its checksum is
the published one. So a file with its final name is whole, and the next run continues
after the last byte of the partial one (HTTP ranges).
"""

from __future__ import annotations

import hashlib
import http.client
import os
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from jaxformer.errors import InputError

Report = Callable[[str], None]
"""Gets lines of progress."""

_CHUNK = 1 << 16
# Timeout, too early, too many requests, and errors of the server.
_TEMPORARY = frozenset({408, 425, 429, *range(500, 600)})
_LASTING = (socket.gaierror, FileNotFoundError, http.client.InvalidURL)


class RemoteFile(NamedTuple):
    """A published file.

    Attributes:
        name: its name on this machine.
        addresses: where it is, in the order of attempts; all give the same bytes.
        checksum: algorithm and hexadecimal digest, such as ``sha256:...``.
        size: in bytes, where it was published.
    """

    name: str
    addresses: tuple[str, ...]
    checksum: str
    size: int | None = None

    def with_mirrors(self, mirrors: Iterable[str]) -> RemoteFile:
        """Return the file with copies in these folders, which are tried first."""
        copies = (f"{mirror.rstrip('/')}/{self.name}" for mirror in mirrors)
        return self._replace(addresses=(*copies, *self.addresses))


class Patience(NamedTuple):
    """How long a server is waited for, and how often it is asked again.

    Attributes:
        timeout: seconds without a byte after which a connection has failed.
        attempts: failures in a row, without a new byte, after which an address is
            given up.
        wait: seconds before the second attempt; they double with each failure, up to
            60.
    """

    timeout: float = 60.0
    attempts: int = 5
    wait: float = 1.0


PATIENCE = Patience()


class _TransferError(Exception):
    """A transfer failed; if ``final``, asking the same address again is useless."""

    def __init__(self, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


def fetch(
    file: RemoteFile,
    directory: Path,
    *,
    patience: Patience = PATIENCE,
    report: Report = lambda line: None,
) -> Path:
    """Download a file into ``directory``, which exists, and return its path.

    A file that is already there is verified and used, wherever it came from.

    Args:
        file: the published file.
        directory: where it is saved.
        patience: when an address is given up.
        report: called with each line of progress.

    Raises:
        InputError: every address failed; the file that is there differs from the
            published one; or the disk refuses.
    """
    path, part = directory / file.name, directory / f"{file.name}.part"
    failures = []
    with on_disk(path):
        if path.exists():
            if fault := _fault(path, file):
                raise InputError(
                    f"{path} is not the published file: {fault}; remove it to fetch it"
                    " again"
                )
            return path
        for address in file.addresses:
            size = f" ({file.size / 1e6:,.1f} MB)" if file.size else ""
            report(f"fetching {file.name} from {address}{size}")
            failure = _fetch_from(address, file, part, patience, report)
            if failure is None:
                os.replace(part, path)
                report(f"{file.name} is whole: {file.checksum}")
                return path
            failures.append(f"{address}: {failure}")
            report(failures[-1])
    raise InputError(
        f"cannot fetch {file.name}: {'; '.join(failures)}; run again to continue, or"
        f" copy the file to {path}"
    )


def mirror_address(mirror: str) -> str:
    """Return the address of a mirror, which may be the path of a folder.

    Raises:
        InputError: neither an address of the web nor a folder.
    """
    if mirror.startswith(("http://", "https://")):
        return mirror
    path = mirror
    if mirror.startswith("file://"):
        path = urllib.request.url2pathname(mirror.removeprefix("file://"))
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise InputError(
            f"the mirror {mirror} is not a folder: give https://..., or a folder of"
            " this machine"
        )
    return folder.absolute().as_uri()


def digest(path: Path, algorithm: str = "sha256") -> str:
    """Compute the checksum of a file, as hexadecimal digits."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, algorithm).hexdigest()


@contextmanager
def on_disk(path: Path) -> Iterator[None]:
    """Turn an OSError of the disk into one line with ``path`` and the cure.

    Raises:
        InputError: for any OSError within.
    """
    try:
        yield
    except BrokenPipeError:
        raise  # of who reads the report
    except OSError as error:
        raise InputError(
            f"cannot write {path}: {error.strerror}; make room or choose another"
            " directory, and run again"
        ) from None


def _fetch_from(
    address: str, file: RemoteFile, part: Path, patience: Patience, report: Report
) -> str | None:
    """Download from one address until ``part`` is the file, or return the failure."""
    farthest, failures = _length(part), 0
    while True:
        begun = _length(part)
        try:
            _transfer(address, file, part, patience.timeout, report)
            fault = _fault(part, file)
            if not fault:
                return None
            part.unlink()
            raise _TransferError(f"wrong file: {fault}; removed", final=not begun)
        except _TransferError as error:
            failure = str(error)
            if error.final:
                return failure
        # Only new bytes are progress. Otherwise a server without ranges that always
        # breaks off at the same byte would be asked forever.
        failures = 1 if _length(part) > farthest else failures + 1
        farthest = max(farthest, _length(part))
        if failures >= patience.attempts:
            return f"{failure} ({failures} failures in a row)"
        wait = min(patience.wait * 2 ** (failures - 1), 60.0)
        report(f"{address}: {failure}; trying again in {wait:g} s")
        time.sleep(wait)


def _transfer(
    address: str, file: RemoteFile, part: Path, timeout: float, report: Report
) -> None:
    """Append the missing bytes to ``part``.

    Raises:
        _TransferError: the connection failed or broke off, or offers another file.
    """
    start = _length(part)
    if file.size is None or start > file.size:
        start = 0  # only a file of known size is resumed
    if start and start == file.size:
        return
    with _open(address, start, timeout) as response:
        if response.status == 206:
            answered = response.headers["Content-Range"] or ""
            if not answered.startswith(f"bytes {start}-"):
                part.unlink()
                raise _TransferError(
                    f"asked for bytes from {start:,}, answered {answered}"
                )
            report(f"continuing {file.name} after {start:,} bytes")
        else:
            start = 0
        length = response.headers["Content-Length"]
        end = start + int(length) if length else file.size
        if file.size is not None and end != file.size:
            raise _TransferError(
                f"wrong file: expected {file.size:,} bytes, offered {end:,}", final=True
            )
        received = start
        with part.open("ab" if start else "wb") as output:
            for chunk in _chunks(response):
                output.write(chunk)
                _report_tenths(file, received, received + len(chunk), report)
                received += len(chunk)
                if file.size is not None and received > file.size:
                    break  # the checksum refuses it
            output.flush()
            os.fsync(output.fileno())
    if end is not None and received < end:
        raise _TransferError(f"broke off after {received:,} of {end:,} bytes")


def _open(address: str, start: int, timeout: float) -> http.client.HTTPResponse:
    headers = {"User-Agent": "jaxformer", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        request = urllib.request.Request(address, headers=headers)
        return urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:
            raise _TransferError(
                f"wrong file: it has no more than {start:,} bytes", final=True
            ) from None
        raise _TransferError(
            f"HTTP {error.code} {error.reason}", final=error.code not in _TEMPORARY
        ) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        # A wrong address or certificate is a ValueError.
        final = isinstance(reason, (*_LASTING, ValueError, str))
        raise _TransferError(_words(reason), final=final) from None


def _chunks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """Read what a server sends as it arrives."""
    try:
        while chunk := response.read1(_CHUNK):
            yield chunk
    except (OSError, http.client.HTTPException) as error:
        raise _TransferError(_words(error)) from None


def _words(error: object) -> str:
    if isinstance(error, TimeoutError):
        return "stalled"
    if isinstance(error, socket.gaierror):  # also a machine without a network
        return f"unknown host ({error.strerror}): check the network"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _report_tenths(file: RemoteFile, before: int, after: int, report: Report) -> None:
    if file.size and before * 10 // file.size < after * 10 // file.size < 10:
        tenth = after * 10 // file.size
        report(f"{file.name}: {tenth * 10} % of {file.size / 1e6:,.1f} MB")


def _fault(path: Path, file: RemoteFile) -> str:
    """Return in what a file differs from the published one; empty if in nothing."""
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        return f"expected {file.size:,} bytes, found {size:,}"
    algorithm, _, expected = file.checksum.partition(":")
    found = digest(path, algorithm)
    return (
        "" if found == expected else f"expected {algorithm} {expected}, found {found}"
    )


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
