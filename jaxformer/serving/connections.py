"""Connections with limits, where uvicorn waits without end."""

from __future__ import annotations

import asyncio
import json
import sys
from http import HTTPStatus
from typing import Any, ClassVar

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from jaxformer.serving.config import ServingConfig
from jaxformer.serving.errors import ServingError

_MOST_REFUSED = 128
"""Connections that are answered 503; more are closed, to save descriptors."""
_MOST_HEAD = 65_536
"""Bytes of a head, and between two parts of a body; the guard allows fewer headers."""
_MOST_AHEAD = 65_536
"""Bytes of the next requests that are read while one is answered."""
_MOST_PARTS = 100
"""Lines and chunks that are parsed before other connections have their turn."""


class Limited(HttpToolsProtocol):
    """The protocol of uvicorn with limits to the number of connections, to the time in
    which the head of a request arrives, to its size, and to the time in which nobody
    reads an answer. The requests of a connection are answered one after the other.

    A connection whose client the server waits for is closed when a new one needs room.

    Attributes:
        limits: of the server.
    """

    limits: ClassVar[ServingConfig]
    _timer: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _since = 0.0  # the time at which the server began to wait for the client
    _is_refused = False
    _is_head = True  # and not a body, nor trailers
    _body_left = 0  # bytes, as Content-Length says, or of a chunk and its end
    _line = b""  # the last one
    _head_size = 0
    _has_turn = False  # whether it will be parsed soon
    _fault = ""  # of a head, which the parser takes for a good one

    def connection_made(self, transport: Any) -> None:
        """Admit the connection, or prepare to refuse it."""
        super().connection_made(transport)
        self._ahead = bytearray()  # what is not parsed yet
        self.flow = _Flow(self.transport, self._ahead)
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
        return not self._is_answering

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
        self._ahead += data
        if not self._has_turn:
            self._parse()
        if len(self._ahead) > _MOST_AHEAD:
            self.flow.pause_reading()

    def _parse(self) -> None:
        """Parse what has arrived, up to the end of a request that is to be answered."""
        self._has_turn = False
        for _ in range(_MOST_PARTS):
            if self._is_answering or self.transport.is_closing():
                break
            part = self._take()
            if not part:
                break
            # Else the parser would leave out the body. No such offer is taken.
            if not (self._is_head and part[:8].lower() == b"upgrade:"):
                super().data_received(part)
            if self._head_size > _MOST_HEAD:
                rule = f"the head of a request has at most {_MOST_HEAD:,} bytes"
                message = f"{rule}: send a shorter address or fewer cookies"
                self._refuse(431, "headers_too_large", message)
        else:
            self._parse_soon()
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop()
            return
        self.flow.resume_reading()
        if self._timer is None and not self.transport.is_closing():
            self._wait(self.limits.body_timeout)

    def _parse_soon(self) -> None:
        self._has_turn = True
        self.loop.call_soon(self._parse)

    def _take(self) -> bytes:
        """Return what the parser, which cannot be stopped, may have: a line, or a part
        of a body whose length is known. Empty: the line has not arrived yet.
        """
        size = self._body_left or self._ahead.find(b"\n") + 1
        if not size:
            size = len(self._ahead)
            is_garbage = self._is_head and self._ahead[:1] <= b" "  # such as TLS
            if size <= _MOST_HEAD and not is_garbage:
                return b""
        part = bytes(self._ahead[:size])
        del self._ahead[:size]
        if self._body_left:
            self._body_left -= len(part)
        else:
            self._line = part
            self._head_size += len(part)
        return part

    @property
    def _is_answering(self) -> bool:
        cycle = self.cycle
        return not (not cycle or cycle.more_body or cycle.response_complete)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header, and no trailer: the application has the headers by then."""
        if self._is_head:
            super().on_header(name, value.strip(b" \t"))

    def on_headers_complete(self) -> None:
        """Begin to answer a request.

        Raises:
            ValueError: its headers are refused.
        """
        self._is_head, self._head_size = False, 0
        parser = self.parser
        assert parser is not None
        headers: dict[bytes, list[bytes]] = {}
        for name, value in self.headers:
            headers.setdefault(name, []).append(value.lower())
        hosts = len(headers.get(b"host", ()))
        if hosts > 1 or (not hosts and parser.get_http_version() == "1.1"):
            self._fault = "Host must be given once"
        elif headers.get(b"transfer-encoding", [b"chunked"]) != [b"chunked"]:
            self._fault = "Transfer-Encoding must be chunked"
        elif parser.should_upgrade():
            self._fault = "the method must not be CONNECT"
        if self._fault:
            raise ValueError(self._fault)
        self._body_left = int(headers.get(b"content-length", [b"0"])[0])
        self._fault = "the target must have a path"  # or this raises an error
        super().on_headers_complete()
        self._fault = ""

    def on_chunk_header(self) -> None:
        """Begin a chunk, or the trailers, which a chunk of no bytes begins."""
        size = int(self._line.partition(b";")[0], 16)
        self._body_left = size + 2 if size else 0

    def on_body(self, body: bytes) -> None:
        """Take a part of a body."""
        self._head_size = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        self._is_head = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request, unless it has come already."""
        self._since = self.loop.time()
        super().on_response_complete()
        if self._ahead and not self._has_turn:  # not within the task of the last one
            self._parse_soon()

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
        """Refuse what is no HTTP, for which the parser raised an error."""
        reason = self._fault or str(sys.exception())
        self._refuse(400, "bad_request", f"this is no HTTP request: {reason}")

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


class _Flow(FlowControl):
    """Reads on only while little of what was read waits to be parsed."""

    def __init__(self, transport: asyncio.Transport, ahead: bytearray) -> None:
        super().__init__(transport)
        self._ahead = ahead

    def resume_reading(self) -> None:
        if len(self._ahead) <= _MOST_AHEAD:
            super().resume_reading()


def limited(config: ServingConfig) -> type[Limited]:
    """Return the protocol of a server with these limits."""
    return type("OfThisServer", (Limited,), {"limits": config})
