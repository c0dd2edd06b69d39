"""Files from the net: whole, verified and resumed, or one line that names the address
that failed.

What has come so far lies beside the file as ``NAME.part``. It gets its final name only
once its size and its checksum are those that were published, so whatever bears the
final name is whole. An interrupted transfer goes on from the last byte that came (HTTP
ranges), in the same run and in the next one.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import socket
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from jaxformer.errors import InputError

Report = Callable[[str], None]

_CHUNK = 1 << 16
# The server asks for patience (timeout, too early, too many requests), or something
# behind it failed for now.
_PASSING = frozenset({408, 425, 429, *range(500, 600)})
_RANGE_NOT_SATISFIABLE = 416


@dataclass(frozen=True)
class RemoteFile:
    """A file that is published somewhere, and how to know it when it comes.

    Attributes:
        name: what it is called here.
        addresses: where it is, in the order in which they are tried; all give the same
            bytes.
        checksum: algorithm and hexadecimal digest, ``sha256:...`` or whatever
            :mod:`hashlib` knows.
        size: in bytes, where it was published.
    """

    name: str
    addresses: tuple[str, ...]
    checksum: str
    size: int | None = None


@dataclass(frozen=True)
class Patience:
    """How long a server is waited for, and how often it is asked again.

    Attributes:
        timeout: seconds without a single byte after which a connection counts as dead.
        attempts: failures in a row, with no new byte between them, after which an
            address is given up.
        wait: seconds before the second attempt; each further failure in a row doubles
            them.
        longest_wait: seconds that the doubling does not exceed.
    """

    timeout: float = 60.0
    attempts: int = 5
    wait: float = 1.0
    longest_wait: float = 60.0


class _GiveUpError(Exception):
    """An address does not have the file: the next one is tried."""


class _TryAgainError(Exception):
    """An address may yet give the file, or the rest of it."""


def fetch(
    file: RemoteFile,
    directory: Path,
    *,
    patience: Patience | None = None,
    report: Report = lambda line: None,
) -> Path:
    """Bring a published file into ``directory``, or find it there, and give its path.

    A file that is already there is verified and never changed: whoever cannot reach the
    addresses puts it there by other means.

    Args:
        file: what to fetch.
        directory: where to; it exists.
        patience: how long and how often to try.
        report: gets one line for each thing worth telling.

    Raises:
        InputError: every address failed (each is named with its failure), the file that
            is there is another one, or the disk refuses.
    """
    path, part = directory / file.name, directory / f"{file.name}.part"
    patience = Patience() if patience is None else patience
    with on_disk(directory):
        if path.exists():
            _check_present(path, file)
            return path
    failures: dict[str, list[str]] = {}
    for address in file.addresses:
        report(f"fetching {file.name} from {address}{_size(file.size)}")
        try:
            _fetch_from(address, file, part, patience, report)
        except _GiveUpError as failure:
            failures.setdefault(str(failure), []).append(address)
            report(f"{address}: {failure}")
            continue
        with on_disk(path):
            os.replace(part, path)
        report(f"{file.name} is whole: {file.checksum}")
        return path
    told = "; ".join(
        f"{' and '.join(addresses)}: {failure}"
        for failure, addresses in failures.items()
    )
    raise InputError(
        f"cannot fetch {file.name}: {told}; run again to go on, or bring the file by"
        f" other means to {path}"
    )


def digest(path: Path, algorithm: str = "sha256") -> str:
    """Hash the content of a file, as hexadecimal digits."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, algorithm).hexdigest()


@contextmanager
def on_disk(path: Path) -> Iterator[None]:
    """Turn what the disk refuses (it is full, or not ours to write) into one line.

    Raises:
        InputError: for any OSError within, with ``path`` and the cure.
    """
    try:
        yield
    except OSError as error:
        raise InputError(
            f"cannot write {path}: {error.strerror}; make room or choose another"
            " directory, and run again"
        ) from None


def _check_present(path: Path, file: RemoteFile) -> None:
    fault = _fault(path, file)
    if fault:
        raise InputError(
            f"{path} is not the published file: {fault}; remove it, and it is fetched"
            " again"
        )


def _fault(path: Path, file: RemoteFile) -> str:
    """Say in what a file differs from the published one; nothing if it is the one."""
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        return f"expected {file.size:,} bytes, found {size:,}"
    algorithm, _, expected = file.checksum.partition(":")
    found = digest(path, algorithm)
    return (
        "" if found == expected else f"expected {algorithm} {expected}, found {found}"
    )


def _fetch_from(
    address: str, file: RemoteFile, part: Path, patience: Patience, report: Report
) -> None:
    """Try one address until ``part`` is the whole, verified file.

    Raises:
        _GiveUpError: the address has no such file, has another one, or failed too often
            in a row.
    """
    if file.size is not None and _length(part) > file.size:
        _discard(part)  # of another file
    farthest = _length(part)
    failures = 0
    while True:
        try:
            resumed = _transfer(address, file, part, patience.timeout, report)
            _verify(file, part, resumed)
            return
        except _TryAgainError as failure:
            # Only bytes that were never there before count as progress: a server that
            # ignores ranges and breaks off each time would else be asked forever.
            failures = 1 if _length(part) > farthest else failures + 1
            farthest = max(farthest, _length(part))
            if failures >= patience.attempts:
                raise _GiveUpError(
                    f"{failure} ({failures} failures in a row)"
                ) from None
            wait = min(patience.wait * 2 ** (failures - 1), patience.longest_wait)
            report(f"{address}: {failure}; trying again in {wait:g} s")
            time.sleep(wait)


def _verify(file: RemoteFile, part: Path, resumed: bool) -> None:
    with on_disk(part):
        fault = _fault(part, file)
        if not fault:
            return
        part.unlink()
    # its beginning came from an earlier run or another address: the fault may be there
    if resumed:
        raise _TryAgainError(
            f"wrong file: {fault}; removed, to be fetched from its beginning"
        )
    raise _GiveUpError(f"wrong file: {fault}; removed")


def _transfer(
    address: str, file: RemoteFile, part: Path, timeout: float, report: Report
) -> bool:
    """Bring the bytes that ``part`` lacks; say whether some of them were there before.

    Raises:
        _TryAgainError: the connection failed, stalled or broke off; what came is kept.
        _GiveUpError: the answer is no part of this file; what was there is kept.
    """
    start = _length(part)
    if start and start == file.size:
        return True  # an earlier run ended before the last byte was verified
    response = _open(address, start, timeout)
    if response is None:
        if file.size is not None:
            raise _GiveUpError(
                f"wrong file: expected {file.size:,} bytes, it has no more than"
                f" {start:,}"
            )
        return True  # of a file of unknown size all bytes are there
    with response:
        resumed = response.status == 206
        if resumed and not (response.headers["Content-Range"] or "").startswith(
            f"bytes {start}-"
        ):
            _discard(part)
            raise _TryAgainError(
                f"asked for bytes from {start:,}, answered"
                f" {response.headers['Content-Range']}"
            )
        start = start if resumed else 0
        length = response.headers["Content-Length"]
        end = start + int(length) if length and length.isdecimal() else file.size
        if file.size is not None and end != file.size:
            raise _GiveUpError(
                f"wrong file: expected {file.size:,} bytes, offered {end:,}"
            )
        if resumed:
            report(f"going on with {file.name} after {start:,} bytes")
        with on_disk(part), part.open("ab" if resumed else "wb") as output:
            received = start
            for chunk in _chunks(response):
                output.write(chunk)
                _progress(file, received, received + len(chunk), report)
                received += len(chunk)
                if file.size is not None and received > file.size:
                    break  # no Content-Length, and no end: the verification refuses it
            output.flush()
            os.fsync(output.fileno())
    if end is not None and received < end:
        raise _TryAgainError(f"broke off after {received:,} of {end:,} bytes")
    return resumed


def _open(address: str, start: int, timeout: float) -> http.client.HTTPResponse | None:
    """Ask for the bytes from ``start`` on; none is the answer where there are no
    more.
    """
    headers = {"User-Agent": "jaxformer", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        return urllib.request.urlopen(
            urllib.request.Request(address, headers=headers), timeout=timeout
        )
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == _RANGE_NOT_SATISFIABLE and start:
            return None
        kind = _TryAgainError if error.code in _PASSING else _GiveUpError
        raise kind(f"HTTP {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        # A certificate that does not hold is no passing failure, and never a reason to
        # do without one; nor is a host that nobody knows, which is how a machine
        # without a network sees all of them.
        if isinstance(error.reason, ssl.SSLCertVerificationError | FileNotFoundError):
            raise _GiveUpError(str(error.reason)) from None
        if isinstance(error.reason, socket.gaierror):
            host = urllib.parse.urlsplit(address).hostname
            raise _GiveUpError(
                f"no host {host} ({error.reason.strerror}): check the network"
            ) from None
        raise _TryAgainError(str(error.reason)) from None
    except ValueError as error:  # http.client.InvalidURL too
        raise _GiveUpError(f"no address of a file: {error}") from None
    except (OSError, http.client.HTTPException) as error:
        raise _TryAgainError(_words(error)) from None


def _chunks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """Read what a server sends as it comes, so that nothing that came is lost when
    it stops.
    """
    while True:
        try:
            chunk = response.read1(_CHUNK)
        except (OSError, http.client.HTTPException) as error:
            raise _TryAgainError(_words(error)) from None
        if not chunk:
            return
        yield chunk


def _words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "stalled"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _progress(file: RemoteFile, before: int, after: int, report: Report) -> None:
    """Report each tenth of a file of known size."""
    if file.size and before * 10 // file.size < after * 10 // file.size < 10:
        report(
            f"{file.name}: {after * 10 // file.size * 10} % of"
            f" {file.size / 1e6:,.1f} MB"
        )


def _length(path: Path) -> int:
    with on_disk(path):
        return path.stat().st_size if path.exists() else 0


def _discard(part: Path) -> None:
    with on_disk(part):
        part.unlink(missing_ok=True)


def _size(size: int | None) -> str:
    return "" if size is None else f" ({size / 1e6:,.1f} MB)"
