"""Whose requests are answered, and how many: API keys and rates."""

from __future__ import annotations

import functools
import hashlib
import hmac
import ipaddress
import math
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path

from jaxformer.errors import InputError
from jaxformer.serving.config import read_entries
from jaxformer.serving.errors import ServingError

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_LINE = re.compile(rf"({_NAME.pattern}):([0-9a-fA-F]{{64}})")

# Clients whose rates are kept. Beyond these the one that asked the longest time ago is
# forgotten.
_MOST_CLIENTS = 65_536


class Keys:
    """The API keys of clients. Only their digests are kept."""

    def __init__(self, digests: Mapping[str, str]) -> None:
        """Take the SHA-256 digest of each key, in hexadecimal, by the client's name."""
        self._digests = dict(digests)

    @classmethod
    def load(cls, path: str | Path) -> Keys:
        """Read a file of lines ``name:digest``, see :func:`make_key`.

        Raises:
            InputError: see :func:`~jaxformer.serving.config.read_entries`.
        """
        form = (
            "a name of letters and digits, a colon, and the SHA-256 digest of a key in"
            " hexadecimal"
        )
        found = read_entries(path, "keys", _LINE, entry="name", form=form)
        return cls({name: digest.lower() for name, digest in found.items()})

    def find(self, key: str) -> str | None:
        """Return the name of a key, or None if it is unknown.

        The time that this takes tells nothing about the keys.
        """
        digest, found = _digest(key), None
        for name, own in self._digests.items():
            if hmac.compare_digest(own, digest):
                found = name
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


class Rates:
    """A token bucket for each client: what it may ask now, in sentences.

    A bucket holds a minute's sentences and fills steadily. A request may be larger than
    what is left if the bucket is full: then it empties the bucket beyond zero.
    """

    def __init__(
        self, per_minute: int, now: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin with full buckets.

        Args:
            per_minute: sentences, at least 1.
            now: a clock, in seconds.
        """
        self._most, self._now = per_minute, now
        # What was left, and when.
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def spend(
        self, key: str | None, address: str, cost: int, *, owed: bool = False
    ) -> None:
        """Take sentences from the bucket of a key, or else of an address.

        Args:
            key: name of the client's key, if it has one.
            address: of the client.
            cost: sentences.
            owed: whether they are taken even if too few are left.

        Raises:
            ServingError: 429 ``rate``: too few are left, with ``retry_after``.
        """
        client = name_client(key, address)
        now, each = self._now(), 60 / self._most
        left, since = self._left.get(client, (float(self._most), now))
        left = min(left + (now - since) / each, self._most)
        missing = min(cost, self._most) - left
        if missing > 1e-9 and not owed:
            raise ServingError(
                429,
                "rate",
                f"at most {self._most:,} sentences a minute, and this request has"
                f" {cost:,}: wait",
                limit=self._most,
                given=cost,
                retry_after=math.ceil(missing * each),
            )
        self._left[client] = left - cost, now
        self._left.move_to_end(client)
        if len(self._left) > _MOST_CLIENTS:
            self._left.popitem(last=False)


def name_client(key: str | None, address: str) -> str:
    """Return the identity of a client: its key, or else its address.

    Addresses of one IPv6 network of 64 bits are one client.
    """
    return f"address {_network(address)}" if key is None else f"key {key}"


@functools.lru_cache(1024)  # a request asks a few times
def _network(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    mapped = parsed.ipv4_mapped
    if mapped is not None:
        return str(mapped)
    return str(ipaddress.ip_network((int(parsed), 64), strict=False))
