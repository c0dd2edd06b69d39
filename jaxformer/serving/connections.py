"""Connections with limits, where uvicorn waits without end."""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

from jaxformer.serving.config import ServingConfig
from jaxformer.serving.errors import ServingError

_MOST_REFUSED = 128
"""Connections that are answered 503; more are closed, to save descriptors."""


class Limited(H11Protocol):
    """The protocol of uvicorn with limits to the number of connections, to the time in
    which the head of a request arrives, and to that in which nobody reads an answer.

    A connection whose client the server waits for is closed when a new one needs room.

    Attributes:
        limits: of the server.
    """

    limits: ClassVar[ServingConfig]
    _timer: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _since = 0.0  # the time at which the server began to wait for the client
    _is_refused = False

    def connection_made(self, transport: Any) -> None:
        """Admit the connection, or prepare to refuse it."""
        super().connection_made(transport)
        # Writing pauses as soon as the client does not read.
        self.transport.set_write_buffer_limits(0)
        self._since = self.loop.time()
        own = [each for each in self.connections if isinstance(each, Limited)]
        refused = sum(each._is_refused for each in own)
        if len(own) - refused > self.limits.connections:
            self._is_refused = not self._drop_slow()
        if self._is_refused and refused >= _MOST_REFUSED:
            self.transport.abort()
        else:
            self._wait(1.0 if self._is_refused else self.limits.body_timeout)

    def _drop_slow(self) -> bool:
        """Close the connection that has waited longest for its client, if any."""
        slow = [
            each
            for each in self.connections
            if isinstance(each, Limited) and each is not self and each._is_slow
        ]
        if slow:
            slowest = min(slow, key=lambda each: each._since)
            slowest._stop_unread()
            slowest.transport.abort()
        return bool(slow)

    @property
    def _is_slow(self) -> bool:
        """Whether the server waits for the client: for a request, or its reading."""
        if self._unread is not None:  # also of the last answer of a connection
            return True
        if self._is_refused or self.transport.is_closing():
            return False
        cycle = self.cycle
        return not cycle or cycle.more_body or cycle.response_complete

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop()
        self._stop_unread()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        if self._is_refused:
            most = self.limits.connections
            message = f"the server has {most:,} connections: try again later"
            self._refuse(503, "connections", message)
            return
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop()
        elif self._timer is None and not self.transport.is_closing():
            self._wait(self.limits.body_timeout)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._since = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Wait ``timeout`` seconds for the client to read a part of the answer."""
        super().pause_writing()
        self._since = self.loop.time()
        self._wait_for_reader()

    def resume_writing(self) -> None:
        """Continue to write: the client has read everything."""
        self._stop_unread()
        super().resume_writing()

    def _wait_for_reader(self, before: int | None = None) -> None:
        unread = self.transport.get_write_buffer_size()
        if unread == before:
            self.transport.abort()
            return
        self._unread = self.loop.call_later(
            self.limits.timeout, self._wait_for_reader, unread
        )

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP."""
        self._refuse(400, "bad_request", "this is no HTTP request")

    def _refuse(self, status: int, code: str, message: str) -> None:
        error = ServingError(status, code, message).to_json()
        body = json.dumps({"error": error}).encode()
        phrase = HTTPStatus(status).phrase
        head = (
            f"HTTP/1.1 {status} {phrase}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n"
            + "Retry-After: 1\r\n"
            * (status == 503)
        )
        self.transport.write(head.encode() + b"\r\n" + body)
        self.transport.close()

    def _wait(self, seconds: float) -> None:
        self._timer = self.loop.call_later(seconds, self.transport.close)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
