"""The real application on a real socket, with engines that translate into capitals."""

from __future__ import annotations

import contextlib

from serving.fake_engine import FakeEngine
from serving.running_server import running

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
    with running(service=service) as (host, port):
        yield f"http://{host}:{port}"
