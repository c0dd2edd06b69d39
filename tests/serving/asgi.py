"""Requests to an application in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import httpx
from serving.fake_engine import FakeEngine

from jaxformer.serving.access import Keys
from jaxformer.serving.app import make_app
from jaxformer.serving.config import ServingConfig
from jaxformer.serving.service import Service
from jaxformer.translation.text.glossary import Glossary
from jaxformer.translation.text.text import Query, Translated

MODEL = {"name": "fake", "source": "en", "target": "de", "checkpoint": "7"}


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def ask(
    app: Any, method: str, path: str, body: Any = None, **headers: str
) -> Answer:
    """Return a whole answer."""
    given = {"content-type": "application/json", "host": "127.0.0.1"}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    content = b"" if body is None else json.dumps(body).encode()
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport) as client:
        url = f"http://127.0.0.1{path}"
        found = await client.request(method, url, content=content, headers=given)
    return Answer(found.status_code, dict(found.headers), found.content)


def run_ready(service: Service, work: Callable[[], Awaitable[Any]]) -> Any:
    """Run a coroutine function, for at most 20 s, once a service is ready."""

    async def main() -> Any:
        async with service.running():
            await service.is_ready.wait()
            return await work()

    return asyncio.run(asyncio.wait_for(main(), 20))


def translate(
    *queries: Query,
    engine: FakeEngine | None = None,
    glossary: Glossary | None = None,
    **told: Any,
) -> list[Translated]:
    """Translate texts by a ready service."""
    glossaries = {} if glossary is None else {"": glossary}
    engines = [engine or FakeEngine()]
    service = Service(engines, ServingConfig(), glossaries=glossaries)
    return run_ready(service, lambda: service.translate(queries, **told))


def served(
    work: Callable[[Any, Service], Awaitable[Any]],
    *engines: FakeEngine,
    keys: Keys | None = None,
    limits: dict[str, Any] | None = None,
    page: bool = False,
    **options: Any,
) -> Any:
    """Run a coroutine function with the application of a ready service."""
    service = Service(list(engines) or [FakeEngine()], ServingConfig(**limits or {}))
    app = make_app(service, keys=keys, page=page, **options)
    return run_ready(service, lambda: work(app, service))


def post(path: str, body: Any, *engines: FakeEngine, **options: Any) -> Answer:
    return served(lambda app, _: ask(app, "POST", path, body), *engines, **options)


def get(path: str, *engines: FakeEngine, **options: Any) -> Answer:
    return served(lambda app, _: ask(app, "GET", path), *engines, **options)


def events_of(body: bytes) -> list[tuple[str, Any]]:
    """Return the names and the data of a stream's events, without its comments."""
    found = []
    for event in body.decode().split("\n\n")[:-1]:
        if not event.startswith(":"):
            name, data = event.split("\n")
            data = json.loads(data.removeprefix("data: "))
            found.append((name.removeprefix("event: "), data))
    return found
