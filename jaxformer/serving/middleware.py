"""What surrounds every request: its id, the limit of its body, a client that leaves,
the names that the server is called by, and headers of safety. It is pure ASGI, as
Starlette's own class hides a client that leaves.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Collection

from starlette.datastructures import URL, Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jaxformer.serving.errors import ServingError
from jaxformer.serving.service import Service
from jaxformer.serving.telemetry import Exchange

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
# Added where an answer has no header of that name.
_SAFE = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src"
    " 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action"
    " 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def allowed_hosts(host: str, more: Collection[str] = ()) -> frozenset[str]:
    """Return the names that requests may call a server by; empty: any.

    On a loopback address only these are allowed, so that no page of the Web reaches
    the server by a name that its owner points there (DNS rebinding).

    Args:
        host: address that the server listens on.
        more: names that are allowed too; ``*``: any.
    """
    if "*" in more:
        return frozenset()
    names = {name.lower().strip("[]") for name in more}
    return frozenset(names | (_LOOPBACK if host.strip("[]") in _LOOPBACK else set()))


class RequestMiddleware:
    """Reads the body, cancels the work of a client that leaves, and notes the end."""

    def __init__(
        self,
        app: ASGIApp,
        service: Service,
        refuse: Callable[[Request, ServingError], Awaitable[ASGIApp]],
    ) -> None:
        """Wrap an application.

        Args:
            app: that answers.
            service: with the limits, and what counts requests.
            refuse: writes an error in the form of a request's protocol.
        """
        self._app, self._config, self._refuse = app, service.config, refuse
        self._hosts = allowed_hosts(service.config.host, service.config.allowed_host)
        self._metrics = service.metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # A route of GET answers HEAD, without the body that the server leaves out.
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        id = Headers(scope=scope).get("x-request-id") or secrets.token_hex(8)
        own = {**scope, "method": method, "root_path": self._config.root_path}
        own["exchange"] = exchange = Exchange(id, own)

        async def reply(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in {**_SAFE, "x-request-id": id}.items():
                    headers.setdefault(name, value)
            elif not message.get("more_body"):
                exchange.is_over = True
            await send(message)

        self._metrics.number("requests_in_flight").inc()
        try:
            body = await self._read(own, receive)
            if body is not None:
                await self._answer(exchange, body, receive, reply)
        except ServingError as error:
            answer = await self._refuse(Request(own), error)
            await answer(own, receive, reply)
        except Exception as error:  # it has been answered with 500
            exchange.fault = error
        finally:
            if not (exchange.is_over or exchange.fault):
                exchange.status = 499
            self._metrics.finished(exchange)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """Return the body; None: the client has gone.

        A body that is too long is read to its end, as a client may lose the answer of a
        connection that is closed before.

        Raises:
            ServingError: 413, it is too long; 421, the server has another name.
        """
        body, size, more, most = bytearray(), 0, True, self._config.max_body
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            more, part = message.get("more_body", False), message.get("body", b"")
            size += len(part)
            body += part if size <= most else b""
        url = URL(scope={**scope, "path": "/", "query_string": b""})
        host = (url.hostname or "localhost").rstrip(".")
        if self._hosts and host not in self._hosts:
            raise ServingError(
                421,
                "host",
                "the server does not answer to this name: call it by another, or let"
                " its operator allow this one (--allowed_host)",
                field="Host",
            )
        if size > most:
            message = f"a body has at most {most:,} bytes: send less at once"
            raise ServingError(413, "body_too_large", message, limit=most)
        return bytes(body)

    async def _answer(
        self, exchange: Exchange, body: bytes, receive: Receive, send: Send
    ) -> None:
        """Call the application with the body; cancel it once the client is gone."""
        given: list[Message] = [{"type": "http.request", "body": body}]
        # The body is read: nothing else can come.
        gone, task = asyncio.ensure_future(receive()), asyncio.current_task()
        assert task is not None

        def leave(own: asyncio.Future[Message]) -> None:
            if not (own.cancelled() or exchange.is_over):
                task.cancel()

        async def replay() -> Message:
            return given.pop() if given else await asyncio.shield(gone)

        gone.add_done_callback(leave)
        try:
            await self._app(exchange.scope, replay, send)
        except asyncio.CancelledError:
            if not gone.done():
                raise
            task.uncancel()
        finally:
            gone.cancel()
