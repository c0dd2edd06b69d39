"""The application: the routes of all protocols, its own, the page, and errors."""

from __future__ import annotations

import importlib
import mimetypes
import pkgutil
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.staticfiles import StaticFiles
from prometheus_client.exposition import choose_encoder
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

import jaxformer
from jaxformer.serving import protocols
from jaxformer.serving.errors import ServingError
from jaxformer.serving.fields import answer
from jaxformer.serving.middleware import RequestMiddleware
from jaxformer.serving.protocols import native
from jaxformer.serving.service import Service

_PROTOCOLS = [
    importlib.import_module(f"{protocols.__name__}.{each.name}")
    for each in pkgutil.iter_modules(protocols.__path__)
]
_own, _page = APIRouter(tags=["server"]), APIRouter(include_in_schema=False)
_files = StaticFiles(
    packages=[("jaxformer.serving", "page"), ("jaxformer.visualization", "pages")]
)
mimetypes.add_type("text/javascript", ".js")  # the system's table may have another


def make_app(service: Service) -> ASGIApp:
    """Build the application of a service."""
    config = service.config
    app = FastAPI(
        title="jaxformer",
        description="Translation by a Transformer, in three protocols: that of"
        " LibreTranslate, that of DeepL (`/v2`), and one with all that the search"
        " knows (`/v1`).",
        version=jaxformer.__version__,
        lifespan=lambda _: service.running(),
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers={
            ServingError: _write,
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

    own = RequestMiddleware(app, service, _write)
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
@_page.get("/static/{name}")
async def page(request: Request) -> Response:
    """Send a file of the page."""
    name = request.path_params.get("name", "index.html")
    found = await _files.get_response(name, request.scope)
    found.headers["Cache-Control"] = "no-cache"
    return found


async def _write(request: Request, error: Any) -> Response:
    """Write an error in the form of the protocol that a path belongs to."""
    scope, found = request.scope, native
    scope["exchange"].code = error.code
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    for protocol in _PROTOCOLS:
        if path.startswith(protocol.PATHS):
            found: Any = protocol
    after = error.retry_after
    headers = {"Retry-After": str(after)} if after else {}
    return answer(found.error(error), error.status, headers)


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
    response = await _write(request, found)
    response.headers.update(headers)
    return response


async def _refuse_fault(request: Request, fault: Any) -> Response:
    id = request.scope["exchange"].id
    message = f"the server failed: report the id {id} to its operator"
    return await _write(request, ServingError(500, "internal", message))
