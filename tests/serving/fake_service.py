"""A service that translates into capitals, at once, behind the real routes on a real
socket.
"""

from __future__ import annotations

import contextlib
import threading
import types

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException

from jaxformer.serving import deepl, libretranslate
from jaxformer.serving.config import ServingConfig
from jaxformer.serving.errors import ServingError
from jaxformer.serving.guard import Guard

Translated = pytest.importorskip("jaxformer.serving.texts").Translated


class FakeService:
    """Has what the routes of the protocols use.

    Attributes:
        asked: the queries of each call of ``translate``.
    """

    def __init__(self, *pairs, config=None, detector=True):
        self.config = config or ServingConfig()
        self.engines = {
            pair: types.SimpleNamespace(languages=pair, beam_size=4)
            for pair in pairs or [("en", "de")]
        }
        self.detector = detector
        self.asked = []

    def languages(self):
        return [
            types.SimpleNamespace(
                code=code,
                name=libretranslate.name_language(code),
                targets=[own for one, own in self.engines if one == code],
            )
            for code in sorted({code for pair in self.engines for code in pair})
        ]

    def engine(self, source, target):
        if (source, target) not in self.engines:
            raise ServingError(400, "unknown_pair", f"nothing translates {source}")
        return self.engines[source, target]

    async def detect(self, text):
        if not self.detector:
            raise ServingError(501, "no_detector", "this needs the package py3langid")
        german = "ü" in text
        found = {own.code: 0.0 for own in self.languages()}
        found |= {"de": 0.9 if german else 0.1, "en": 0.1 if german else 0.9}
        return sorted(found.items(), key=lambda own: -own[1])

    async def translate(self, queries):
        self.asked.append(queries)
        return [
            Translated(
                query.text.upper(),
                [],
                [f"{query.text.upper()} {i}" for i in range(1, query.n_best)],
                [],
                query.source,
            )
            for query in queries
        ]


def make_routes(service):
    return [*libretranslate.routes(service), *deepl.routes(service)]


def make_app(service):
    def refuse(path, error):
        if isinstance(error, HTTPException):
            error = ServingError(error.status_code, "http", error.detail)
        return (deepl if path.startswith("/v2") else libretranslate).error(error)

    def handle(request, error):
        return refuse(request.url.path, error)

    app = Starlette(
        routes=make_routes(service),
        exception_handlers={ServingError: handle, HTTPException: handle},
    )
    app.router.redirect_slashes = False
    return Guard(
        app,
        service.config,
        refuse=lambda scope, error: refuse(scope["path"], error),
    )


@contextlib.contextmanager
def served(app):
    """Answer on a free port of this machine; yield the URL."""
    config = uvicorn.Config(
        app, port=0, http="h11", ws="none", loop="asyncio", log_config=None
    )
    server = uvicorn.Server(config)
    begun = threading.Event()
    started = server.startup

    async def startup(sockets=None):
        await started(sockets)
        begun.set()

    server.startup = startup
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        assert begun.wait(30)
        (listening,) = server.servers
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
