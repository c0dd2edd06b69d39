"""The application: all routes of a server, its page, and its errors."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import mimetypes
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jaxformer.errors import InputError
from jaxformer.serving import deepl, libretranslate, native
from jaxformer.serving.access import Keys
from jaxformer.serving.call import current
from jaxformer.serving.errors import ServingError
from jaxformer.serving.fields import answer
from jaxformer.serving.guard import Finished, Guard, internal_error
from jaxformer.serving.openapi import make_document
from jaxformer.serving.service import Service

# What errors look like, by the beginning of the path; others have ours.
_PROTOCOLS: dict[str, Callable[[ServingError], Response]] = {
    "/translate": libretranslate.error,
    "/detect": libretranslate.error,
    "/languages": libretranslate.error,
    "/frontend": libretranslate.error,
    "/v2": deepl.error,
}

_PAGE = Path(__file__).with_name("page")
_PAGES = Path(__file__).parents[1] / "visualization" / "pages"
_SHARED = ("page.css", "page.js", "attention.css", "threads.js")  # with those pages

_PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
        " img-src 'self' data:; base-uri 'none'; form-action 'none';"
        " frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
}


class _File(NamedTuple):
    """A file of the page, in memory."""

    content: bytes
    kind: str
    etag: str


def make_app(
    service: Service,
    *,
    page: bool = True,
    root_path: str = "",
    keys: Keys | None = None,
    hosts: Collection[str] = (),
    origins: Collection[str] = (),
    log: Finished | None = None,
) -> ASGIApp:
    """Build the application.

    Args:
        service: that translates.
        page: whether ``/`` is the page.
        root_path: the path of the server's root behind a proxy, such as ``/mt``, which
            the proxy may keep or remove.
        keys: of clients; None: none is needed.
        hosts: see :func:`~jaxformer.serving.guard.allowed_hosts`.
        origins: whose pages may read answers.
        log: called with each request that has ended.
    """

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with service.running():
            yield

    handlers: dict[Any, Any] = {  # coroutines: functions would wait for a thread
        ServingError: _refuse,
        InputError: _answer_input_error,
        HTTPException: _answer_http_error,
        Exception: _answer_fault,  # raised again, for the guard
    }
    app = Starlette(
        routes=make_routes(service, page=page),
        exception_handlers=handlers,
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    guard = Guard(
        HangUp(_rooted(app, root_path)),
        service.config,
        refuse=lambda scope, error: find_protocol(scope)(error),
        keys=keys,
        hosts=hosts,
        origins=origins,
        finished=[service.metrics.finished, *([log] if log else [])],
    )
    service.count_requests = lambda: guard.in_flight
    return guard


def make_routes(service: Service, *, page: bool = True) -> list[Route]:
    """Return the routes of all protocols, and those of the page."""
    return [
        *(
            operation.route(service)
            for protocol in (libretranslate, deepl, native)
            for operation in protocol.operations(service)
        ),
        *_own_routes(service),
        *(_page_routes() if page else ()),
    ]


class HangUp:
    """Cancels the work for a client that leaves."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap an application."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request until its client leaves."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        messages: asyncio.Queue[Message] = asyncio.Queue(1)  # no more than is read
        work = asyncio.ensure_future(self._app(scope, messages.get, send))
        left = False

        async def listen() -> None:
            nonlocal left
            while not left:
                message = await receive()
                left = message["type"] == "http.disconnect"
                if not left:
                    await messages.put(message)
            work.cancel()

        listening = asyncio.create_task(listen())
        try:
            await work
        except asyncio.CancelledError:
            if not left:
                raise
        finally:
            listening.cancel()


def _rooted(app: ASGIApp, root_path: str) -> ASGIApp:
    async def rooted(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["root_path"] = root_path
        await app(scope, receive, send)

    return rooted


def _own_routes(service: Service) -> list[Route]:
    handlers = {
        "/health": _health,
        "/ready": _ready,
        "/metrics": _metrics,
        "/openapi.json": _openapi,
    }
    return [
        Route(path, functools.partial(handle, service))
        for path, handle in handlers.items()
    ]


async def _health(service: Service, request: Request) -> Response:
    return answer(200, {"status": "ok"})


async def _ready(service: Service, request: Request) -> Response:
    shown = {"status": service.state, "done": service.done, "of": service.programs}
    return answer(200 if service.state == "ready" else 503, shown)


async def _metrics(service: Service, request: Request) -> Response:
    accepted = request.headers.get("accept", "")
    content, kind = service.metrics.render(accepted)
    return Response(content, media_type=kind)


async def _openapi(service: Service, request: Request) -> Response:
    return answer(200, make_document(service, request.scope["root_path"]))


def _page_routes() -> list[Route]:
    found = [*_PAGE.iterdir(), *(_PAGES / name for name in _SHARED)]
    files = {path.name: _read(path) for path in sorted(found) if path.is_file()}

    async def index(request: Request) -> Response:
        return _send_file(request, files["index.html"], "no-store")

    async def static(request: Request) -> Response:
        file = files.get(request.path_params["name"])
        if file is None:
            raise HTTPException(404)
        return _send_file(request, file, "no-cache")

    return [Route("/", index), Route("/static/{name}", static)]


def _read(path: Path) -> _File:
    content = path.read_bytes()
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    if path.suffix == ".js":  # the system's table may have another
        kind = "text/javascript"
    return _File(content, kind, f'"{hashlib.sha256(content).hexdigest()[:16]}"')


def _send_file(request: Request, file: _File, cache: str) -> Response:
    headers = {**_PAGE_HEADERS, "ETag": file.etag, "Cache-Control": cache}
    known = request.headers.get("if-none-match", "")
    if file.etag in [tag.strip().removeprefix("W/") for tag in known.split(",")]:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.kind)


async def _refuse(request: Request, error: ServingError) -> Response:
    """Write an error in the form of the protocol that a path belongs to."""
    current().refused(error)
    return find_protocol(request.scope)(error)


def find_protocol(scope: Mapping[str, Any]) -> Callable[[ServingError], Response]:
    """Return what writes the errors of a request."""
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    for start, write in _PROTOCOLS.items():
        if path == start or path.startswith(f"{start}/"):
            return write
    return native.error


async def _answer_input_error(request: Request, error: InputError) -> Response:
    return await _refuse(request, ServingError(422, "refused", str(error)))


async def _answer_http_error(request: Request, error: HTTPException) -> Response:
    path, method = request.scope["path"][:80], request.method
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        message = f"{path} answers {allowed}, not {method}"
        found = ServingError(405, "method_not_allowed", message)
    else:
        message = f"nothing is at {path}: see /openapi.json"
        found = ServingError(404, "not_found", message)
    response = await _refuse(request, found)
    response.headers.update(error.headers or {})
    return response


async def _answer_fault(request: Request, fault: Exception) -> Response:
    return await _refuse(request, internal_error(current().id, fault))
