"""The real application on a real socket, with engines that translate into capitals."""

from __future__ import annotations

import contextlib
import threading
import time

import uvicorn
from serving.fake_engine import FakeEngine

from jaxformer.serving.app import make_app
from jaxformer.serving.config import ServingConfig
from jaxformer.serving.errors import ServingError
from jaxformer.serving.service import Service


class FakeService(Service):
    """Keeps what it is asked, and knows English and German by a letter.

    Attributes:
        asked: the queries of each call of ``translate``.
    """

    def __init__(self, *pairs, config=None, detector=True):
        engines = [FakeEngine(pair) for pair in pairs or [("en", "de")]]
        super().__init__(engines, config or ServingConfig())
        self.detector = detector
        self.asked = []

    async def detect(self, text):
        if not self.detector:
            raise ServingError(501, "no_detector", "this needs the package py3langid")
        german = "ü" in text
        found = dict.fromkeys(self.languages, 0.0)
        found |= {"de": 0.9 if german else 0.1, "en": 0.1 if german else 0.9}
        return sorted(found.items(), key=lambda own: -own[1])

    async def translate(self, queries, **options):
        self.asked.append(queries)
        return await super().translate(queries, **options)


@contextlib.contextmanager
def served(service):
    """Answer on a free port of this machine; yield the URL once it is ready."""
    config = uvicorn.Config(
        make_app(service),
        port=0,
        http="h11",
        ws="none",
        loop="asyncio",
        log_config=None,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        end = time.monotonic() + 30
        while not server.started or service.state != "ready":
            assert time.monotonic() < end
            time.sleep(0.005)
        (listening,) = server.servers
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
