"""The locks by which a process holds folders of a bucket against other writers."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

from jaxformer.bucket.objects import Objects
from jaxformer.errors import InputError

LOCK = ".lock"
"""The object by which a writer holds a folder."""

BEAT = 10.0
"""Seconds between renewals of a lock. One that is not renewed for three times as long
is free.
"""


@dataclasses.dataclass
class Locks:
    """The locks that this process holds.

    Attributes:
        objects: of the bucket.
        tokens: the token of each lock, by its name.
    """

    objects: Objects
    tokens: dict[str, str] = dataclasses.field(default_factory=dict)

    @contextlib.contextmanager
    def hold(self, folder: str, refusal: str) -> Iterator[None]:
        """Hold a folder within the block, and renew its lock.

        Raises:
            InputError: ``refusal``, where another process renews it.
        """
        name = f"{folder}/{LOCK}".lstrip("/")
        self.take(name, refusal)
        ended = threading.Event()
        renewing = threading.Thread(
            target=self.renew, args=(name, self.tokens[name], ended), daemon=True
        )
        renewing.start()
        try:
            yield
        finally:
            ended.set()
            renewing.join(BEAT)
            # The bucket may have vanished, or another process have taken it.
            with contextlib.suppress(InputError):
                self.check()
                self.objects.remove(name)
            del self.tokens[name]

    def take(self, name: str, refusal: str) -> None:
        """Write a lock once no other process renews it.

        Raises:
            InputError: another process renews it.
        """
        before = self.objects.read([name]).get(name)
        end = time.monotonic() + 3 * BEAT
        while before is not None and time.monotonic() < end:
            time.sleep(BEAT / 4)
            found = self.objects.read([name]).get(name)
            if found is not None and found != before:
                raise InputError(f"{refusal} ({_owner(found)})")
            before = found
        token = secrets.token_hex(8)
        self.objects.write(name, _describe(token))
        self.tokens[name] = token

    def renew(self, name: str, token: str, ended: threading.Event) -> None:
        """Write a lock again and again. A failure shows at the next push."""
        while not ended.wait(BEAT):
            with contextlib.suppress(InputError):
                self.check()
                self.objects.write(name, _describe(token))

    def check(self) -> None:
        """Refuse to write what another process has taken over.

        Raises:
            InputError: another process has a lock, or had it and has ended.
        """
        tokens = dict(self.tokens)
        contents = self.objects.read(tokens)
        for name, token in tokens.items():
            content = contents.get(name)
            if content is None:
                raise InputError(
                    f"{self.objects.url}/{name} was removed, perhaps by another process"
                    " that has ended, and this one writes nothing more: run the command"
                    " again"
                )
            if _parse(content).get("token") != token:
                raise InputError(
                    f"another process ({_owner(content)}) has taken over"
                    f" {self.objects.url}, and this one writes nothing more: end one of"
                    " the two"
                )


def _describe(token: str) -> bytes:
    """Write the content of a lock."""
    record = {
        "host": socket.gethostname(),
        "process": os.getpid(),
        "time": time.time(),
        "token": token,
    }
    return json.dumps(record).encode()


def _parse(content: bytes) -> dict[str, Any]:
    """Read the content of a lock; empty where it is damaged."""
    with contextlib.suppress(ValueError):
        record = json.loads(content)
        return record if isinstance(record, dict) else {}
    return {}


def _owner(content: bytes) -> str:
    """Return who holds a lock."""
    record = _parse(content)
    return f"process {record.get('process')} on {record.get('host')}"
