"""Middleware that every request passes: its id, its limits, and headers of safety."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jaxformer.serving.access import Keys, Rates
from jaxformer.serving.call import CALL, Call
from jaxformer.serving.config import ServingConfig
from jaxformer.serving.errors import ServingError

_DISCONNECT: Message = {"type": "http.disconnect"}
_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

# Added where an answer has no header of that name.
_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
# Tells a page of another origin that it may ask.
_PREFLIGHT = Response(
    status_code=204,
    headers={
        "access-control-allow-headers": "Authorization, Content-Type, X-Request-ID",
        "access-control-allow-methods": "GET, POST",
        "access-control-max-age": "86400",
        "content-length": "0",
    },
)


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
    if host.strip("[]") in _LOOPBACK:
        return _LOOPBACK | names
    return frozenset(names)


Finished = Callable[[Call], None]


class Guard:
    """The outermost layer of the application.

    It names each request (``X-Request-ID``), refuses foreign hosts (421) and long
    bodies (413), answers preflight requests, adds headers of safety and CORS, and turns
    what escapes the application into an error 500. Once a request has ended, it calls
    ``finished``.

    Attributes:
        in_flight: requests that are being answered.
    """

    def __init__(
        self,
        app: ASGIApp,
        config: ServingConfig,
        *,
        refuse: Callable[[Scope, ServingError], ASGIApp],
        keys: Keys | None = None,
        hosts: Collection[str] = (),
        origins: Collection[str] = (),
        finished: Sequence[Finished] = (),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Wrap an application.

        Args:
            app: may see ``http.disconnect`` in place of a body that was refused.
            config: of the limits.
            refuse: returns the answer that states an error, such as a Response.
            keys: of clients; None: none is needed.
            hosts: see :func:`allowed_hosts`.
            origins: whose pages may read answers, such as ``https://example.org``, or
                ``*``.
            finished: called with each call that has ended.
            now: a clock, in seconds.
        """
        self._app, self.config, self.refuse = app, config, refuse
        self._keys, self._hosts, self._finished = keys, hosts, finished
        self._origins, self._now = origins, now
        self._rates = Rates(config.rate, now) if config.rate else None
        self.in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = self._now()
        headers = Headers(scope=scope)
        call = self._begin(scope, headers)
        exchange = _Exchange(self, call, scope, receive, send, headers)
        token = CALL.set(call)
        self.in_flight += 1
        try:
            await self._answer(exchange, headers)
        finally:
            CALL.reset(token)
            self.in_flight -= 1
            if not exchange.is_complete:
                call.status = 499 if call.fault is None else 500
            call.seconds = self._now() - begun
            call.route = getattr(scope.get("route"), "path", call.route)
            for finished in self._finished:
                finished(call)

    def _begin(self, scope: Scope, headers: Mapping[str, str]) -> Call:
        client = scope.get("client")
        return Call(
            id=headers.get("x-request-id") or secrets.token_hex(8),
            method=scope["method"] if scope["method"] in _METHODS else "other",
            address=client[0] if client else "",
            authorization=headers.get("authorization", ""),
            keys=self._keys,
            rates=self._rates,
        )

    async def _answer(self, exchange: _Exchange, headers: Mapping[str, str]) -> None:
        """Call the application unless the head of the request forbids it."""
        try:
            self._check(headers)
            is_preflight = self._is_preflight(exchange.scope, headers)
            app = _PREFLIGHT if is_preflight else self._app
            await app(exchange.scope, exchange.receive, exchange.send)
        except ServingError as error:
            await exchange.refuse(error)
        except Exception as error:
            if not (exchange.is_refused or exchange.is_gone):
                await exchange.fail(error)

    def _check(self, headers: Mapping[str, str]) -> None:
        """Check the head of a request."""
        host = _host_name(headers.get("host", ""))
        if self._hosts and host and host not in self._hosts:
            raise ServingError(
                421,
                "host",
                "the server does not answer to this name: call it by another, or let"
                " its operator allow this one (--allowed_host)",
                field="Host",
            )
        if int(headers.get("content-length", "0")) > self.config.max_body:
            raise _too_large(self.config)

    def _is_preflight(self, scope: Scope, headers: Mapping[str, str]) -> bool:
        return (
            scope["method"] == "OPTIONS"
            and bool(self._origins)
            and "origin" in headers
            and "access-control-request-method" in headers
        )

    def cors(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Return the headers that let a page of another origin read an answer."""
        if not self._origins:
            return {}
        exposed = {"access-control-expose-headers": "Retry-After, X-Request-ID"}
        if "*" in self._origins:
            return {"access-control-allow-origin": "*", **exposed}
        origin = headers.get("origin", "")
        if origin in self._origins:
            exposed["access-control-allow-origin"] = origin
            return {"vary": "Origin", **exposed}
        return {"vary": "Origin"}


class _Exchange:
    """A request and its answer on their way through the guard."""

    def __init__(
        self,
        guard: Guard,
        call: Call,
        scope: Scope,
        receive: Receive,
        send: Send,
        headers: Mapping[str, str],
    ) -> None:
        self.scope = scope
        self._guard, self._call, self._receive, self._send = guard, call, receive, send
        self._headers = {"x-request-id": call.id, **guard.cors(headers)}
        self._closes = _closes(scope, headers)
        self._size = 0
        self._is_read = False
        self.is_started = self.is_complete = self.is_refused = self.is_gone = False

    async def receive(self) -> Message:
        """Return the next part of the body within its limits, or the disconnection."""
        if self.is_refused or self.is_gone:
            return _DISCONNECT
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.is_gone = True
            return message
        self._size += len(message.get("body", b""))
        self._is_read = not message.get("more_body", False)
        if self._size > self._guard.config.max_body:
            await self.refuse(_too_large(self._guard.config))
            return _DISCONNECT
        return message

    async def send(self, message: Message) -> None:
        """Send a part of the answer, unless the request was refused meanwhile."""
        if not self.is_refused:
            await self._emit(message)

    async def refuse(self, error: ServingError) -> None:
        """Answer with an error, if none has begun; the application's is lost."""
        if self.is_started or self.is_refused:
            return
        self.is_refused = True
        self._call.refused(error)
        response = self._guard.refuse(self.scope, error)
        await response(self.scope, self.receive, self._emit)

    async def fail(self, fault: Exception) -> None:
        """Answer that the server failed. An answer that has begun is cut off."""
        error = internal_error(self._call.id, fault)
        self._call.refused(error)
        await self.refuse(error)

    async def _emit(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.is_started = True
            if self._closes:
                await self._drop_body()
            self._call.status = message["status"]
            message = {**message, "headers": self._complete_headers(message)}
        await self._send(message)
        if message["type"] == "http.response.body":
            self.is_complete = not message.get("more_body", False)

    async def _drop_body(self) -> None:
        """Read the rest of the body.

        A connection that is closed with unread bytes is reset, and the client, such as
        a proxy, may lose the answer.
        """
        while not (self._is_read or self.is_gone):
            message = await self._receive()
            self.is_gone = message["type"] == "http.disconnect"
            self._is_read = not message.get("more_body", False)

    def _complete_headers(self, message: Message) -> list[tuple[bytes, bytes]]:
        headers = MutableHeaders(raw=list(message.get("headers", ())))
        for name, value in (_HEADERS | self._headers).items():
            headers.setdefault(name, value)
        return headers.raw


def internal_error(id: str, fault: Exception) -> ServingError:
    """Return the error of a request on which the server failed.

    Args:
        id: of the request.
        fault: which its message does not show.
    """
    error = ServingError(
        500, "internal", f"the server failed: report the id {id} to its operator"
    )
    error.__cause__ = fault
    return error


def _closes(scope: Scope, headers: Mapping[str, str]) -> bool:
    """Whether the connection of a request is closed after the answer."""
    is_old = scope.get("http_version") == "1.0"
    tokens = headers.get("connection", "").lower().split(",")
    return is_old or "close" in map(str.strip, tokens)


def _host_name(host: str) -> str:
    """Return a host without its port and brackets."""
    name = host.lower().strip()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0].rstrip(".")


def _too_large(config: ServingConfig) -> ServingError:
    return ServingError(
        413,
        "body_too_large",
        f"the body has more than {config.max_body:,} bytes: send it in several"
        " requests",
        limit=config.max_body,
    )
