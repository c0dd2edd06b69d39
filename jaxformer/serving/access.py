"""Whose requests are answered, and how many: API keys and rates."""

from __future__ import annotations

import hashlib
import ipaddress
import math
import re
import secrets
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from limits import RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter

from jaxformer.data.files import open_lines
from jaxformer.errors import InputError
from jaxformer.serving.errors import ServingError

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_LINE = re.compile(rf"({_NAME.pattern}):([0-9a-fA-F]{{64}})")


def load_keys(path: str | Path) -> dict[str, str]:
    """Read a file of lines ``name:digest``, see :func:`make_key`; a client may have
    several keys. Empty lines and lines that begin with ``#`` are passed over.

    Returns:
        The names of clients by the digests of their keys.

    Raises:
        InputError: the file cannot be read, has no key, or a line of another form.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(map(str.strip, open_lines([path], empty=True)), 1):
        if match := _LINE.fullmatch(line):
            found[match[2].lower()] = match[1]
        elif line and not line.startswith("#"):  # it may be a key: it is not shown
            raise InputError(
                f"{path}, line {number} must be a name of letters and digits, a colon,"
                " and the SHA-256 digest of a key in hexadecimal"
            )
    if not found:
        raise InputError(f"{path} has no keys: add one")
    return found


def make_key(name: str) -> tuple[str, str]:
    """Return a new key of a client, and its line of the file of keys.

    The key is random, so a fast digest protects it.

    Raises:
        InputError: the name has other characters than letters, digits, ``_``, ``.`` and
            ``-``, or more than 64.
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            "the name of a key must be 1 to 64 letters, digits, _, . or -, not"
            f" {name[:80]!r}"
        )
    key = secrets.token_urlsafe(32)
    return key, f"{name}:{_digest(key)}"


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


class Access:
    """The keys and rates of a server.

    Attributes:
        keys: names of clients by the digests of keys; None: everybody may ask.
    """

    def __init__(self, keys: Mapping[str, str] | None, per_minute: int) -> None:
        """Take the keys, and the sentences a minute of a client; 0: any number."""
        self.keys = keys
        self._limiter = SlidingWindowCounterRateLimiter(MemoryStorage())
        self._rate = RateLimitItemPerMinute(per_minute) if per_minute else None

    def identify(self, given: Iterable[object], address: str) -> str:
        """Return the identity of a client: its key, or else its network.

        Args:
            given: what may be its key.
            address: of the client.

        Raises:
            ServingError: 403, no key is given, or none that is known.
        """
        if self.keys is None:
            return f"address {_network(address)}"
        asked = [_digest(each) for each in given if isinstance(each, str) and each]
        for each in asked:
            if each in self.keys:
                return f"key {self.keys[each]}"
        raise ServingError(
            403,
            "key",
            "the API key is missing or not known: send Authorization: Bearer KEY, or"
            " ask the operator of the server for one",
        )

    async def spend(self, client: str, sentences: int, spent: int = 0) -> None:
        """Count sentences, of which some are spent already, against a client's rate.

        A request that is larger than a minute's allowance counts as one minute's.

        Raises:
            ServingError: 429, too few are left.
        """
        if self._rate is None:
            return
        most = self._rate.amount
        cost = min(sentences, most) - spent
        if cost > 0 and not await self._limiter.hit(self._rate, client, cost=cost):
            reset, _ = await self._limiter.get_window_stats(self._rate, client)
            raise ServingError(
                429,
                "rate",
                f"at most {most:,} sentences a minute, and this request has"
                f" {sentences:,}: wait",
                limit=most,
                given=sentences,
                retry_after=max(1, math.ceil(reset - time.time())),
            )


def _network(address: str) -> str:
    """Return an address, or the network of 64 bits of one of IPv6: one client."""
    address = address.removeprefix("::ffff:").partition("%")[0]
    try:
        network = ipaddress.IPv6Network(f"{address}/64", strict=False)
    except ValueError:  # of IPv4, or a socket of the file system
        return address
    return str(network)
