"""The real application on a real socket, with engines that translate into capitals."""

from __future__ import annotations

import contextlib

from serving.asgi import configure
from serving.fake_engine import FakeEngine
from serving.running_server import running

from jaxformer.serving.errors import ServingError
from jaxformer.serving.service import Service


class FakeService(Service):
    """Keeps what it is asked, and knows English and German by a letter.

    Attributes:
        asked: the queries of each call of ``translate``.
    """

    def __init__(self, *pairs, detector=True, **limits):
        engines = [FakeEngine(pair) for pair in pairs or [("en", "de")]]
        super().__init__(lambda: engines, configure(**limits))
        self.detector = detector
        self.asked = []

    async def detect(self, text):
        if not self.detector:
            raise ServingError(501, "no_detector", "this needs the package py3langid")
        german = "ü" in text
        codes = sorted({code for pair in self.engines for code in pair})
        found = dict.fromkeys(codes, 0.0)
        found |= {"de": 0.9 if german else 0.1, "en": 0.1 if german else 0.9}
        return sorted(found.items(), key=lambda own: -own[1])

    async def translate(self, queries, client):
        self.asked.append(queries)
        return await super().translate(queries, client)


@contextlib.contextmanager
def served(service):
    """Answer on a free port of this machine; yield the URL once it is ready."""
    with running(service=service) as (host, port):
        yield f"http://{host}:{port}"
