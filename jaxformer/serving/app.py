"""The application: the routes of all protocols, its own, the page, and errors."""

from __future__ import annotations

import importlib
import mimetypes
import pkgutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.staticfiles import StaticFiles
from prometheus_client.exposition import choose_encoder
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Scope

import jaxformer
from jaxformer.serving import protocols, telemetry
from jaxformer.serving.errors import ServingError
from jaxformer.serving.fields import answer
from jaxformer.serving.middleware import Exchange, RequestMiddleware
from jaxformer.serving.protocols import native
from jaxformer.serving.service import Service

_PAGE = Path(__file__).with_name("page")
_PAGES = Path(__file__).parents[1] / "visualization" / "pages"
_SHARED = ("page.css", "page.js", "attention.css", "threads.js")  # with those pages
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src 'self' data:; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'"
)
_PROTOCOLS = [
    importlib.import_module(f"{protocols.__name__}.{each.name}")
    for each in pkgutil.iter_modules(protocols.__path__)
]
_own, _page = APIRouter(tags=["server"]), APIRouter(include_in_schema=False)
_files = StaticFiles(directory=_PAGE)
_shared = StaticFiles(directory=_PAGES)
mimetypes.add_type("text/javascript", ".js")  # the system's table may have another


def make_app(service: Service) -> ASGIApp:
    """Build the application of a service."""
    config = service.config

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with service.running():
            yield

    app = FastAPI(
        title="jaxformer",
        description="Translation by a Transformer, in three protocols: that of"
        " LibreTranslate, that of DeepL (`/v2`), and one with all that the search"
        " knows (`/v1`).",
        version=jaxformer.__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers={
            ServingError: _refuse,
            HTTPException: _refuse_http,
            Exception: _refuse_fault,
        },
    )
    app.state.service = service
    app.openapi_version = "3.2.0"  # which has streams
    for protocol in _PROTOCOLS:
        app.include_router(protocol.router)
    app.include_router(_own)
    if not config.no_page:
        app.include_router(_page)

    def done(exchange: Exchange) -> None:
        service.metrics.finished(exchange)
        if config.log == "json":
            telemetry.log(exchange, address=config.log_addresses)

    begun = service.metrics.begun
    own = RequestMiddleware(app, config, refuse=_write, begun=begun, done=done)
    if not config.cors:
        return own
    return CORSMiddleware(
        own,
        allow_origins=config.cors,
        allow_methods=["GET", "POST"],
        allow_headers=["Authorization", "Content-Type", "X-Request-ID"],
        expose_headers=["Retry-After", "X-Request-ID"],
        max_age=86_400,
    )


@_own.get("/health")
async def health() -> Response:
    """Say that the process lives."""
    return answer({"status": "ok"})


@_own.get("/ready", responses={503: {"description": "it warms up, or ends"}})
async def ready(request: Request) -> Response:
    """Say whether translation is possible at once."""
    service = request.app.state.service
    done, of = service.programs
    shown = {"status": service.state, "done": done, "of": of}
    return answer(shown, 200 if service.state == "ready" else 503)


@_own.get("/metrics")
async def metrics(request: Request) -> Response:
    """Show numbers for Prometheus."""
    try:
        encode, kind = choose_encoder(request.headers.get("accept", ""))
    except (TypeError, ValueError):  # a version that is no number
        encode, kind = choose_encoder("")
    registry = request.app.state.service.metrics.registry
    return Response(encode(registry), media_type=kind)


@_page.get("/")
async def index(request: Request) -> Response:
    """Show the page."""
    return await _send(_files, "index.html", "no-store", request)


@_page.get("/static/{name}")
async def static(name: str, request: Request) -> Response:
    """Send a file of the page."""
    files = _shared if name in _SHARED else _files
    return await _send(files, name, "no-cache", request)


async def _send(
    files: StaticFiles, name: str, cache: str, request: Request
) -> Response:
    found = await files.get_response(name, request.scope)
    found.headers["Content-Security-Policy"] = _POLICY
    found.headers["Cache-Control"] = cache
    return found


def _write(scope: Scope, error: ServingError) -> Response:
    """Write an error in the form of the protocol that a path belongs to."""
    scope["exchange"].code = error.code
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    found: Any = native
    for protocol in _PROTOCOLS:
        if any(f"{path}/".startswith(f"{own}/") for own in protocol.PATHS):
            found = protocol
    after = error.retry_after
    headers = {"Retry-After": str(after)} if after is not None else None
    return answer(found.error(error), error.status, headers)


async def _refuse(request: Request, error: Any) -> Response:
    return _write(request.scope, error)


async def _refuse_http(request: Request, error: Any) -> Response:
    path, method = request.scope["path"][:80], request.method
    headers, status = dict(error.headers or {}), error.status_code
    if status == 405:
        allowed = headers["Allow"] = headers["Allow"].replace("GET", "GET, HEAD")
        # LibreTranslate answers such a request of a page without a method, too.
        if method == "OPTIONS" and request.app.state.service.config.cors:
            return Response(status_code=204)
        message = f"{path} answers {allowed}, not {method}"
        found = ServingError(405, "method_not_allowed", message)
    elif status == 404:
        message = f"nothing is at {path}: see /openapi.json"
        found = ServingError(404, "not_found", message)
    else:
        found = ServingError(status, "bad_form", f"the form is wrong: {error.detail}")
    response = _write(request.scope, found)
    response.headers.update(headers)
    return response


async def _refuse_fault(request: Request, fault: Any) -> Response:
    id = request.scope["exchange"].id
    message = f"the server failed: report the id {id} to its operator"
    return _write(request.scope, ServingError(500, "internal", message))
