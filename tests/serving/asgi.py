"""Requests to an application in this process."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import httpx
from serving.fake_engine import FakeEngine

from jaxformer.serving.access import Access
from jaxformer.serving.app import make_app
from jaxformer.serving.config import ServingConfig
from jaxformer.serving.service import Client, Service
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
    app: Any,
    method: str,
    path: str,
    body: Any = None,
    *,
    address="127.0.0.1",
    **headers,
) -> Answer:
    """Return a whole answer."""
    given = {"content-type": "application/json", "host": "127.0.0.1"}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    content = b"" if body is None else json.dumps(body).encode()
    transport = httpx.ASGITransport(app, client=(address, 1))
    async with httpx.AsyncClient(transport=transport) as client:
        url = f"http://127.0.0.1{path}"
        found = await client.request(method, url, content=content, headers=given)
    return Answer(found.status_code, dict(found.headers), found.content)


def configure(**changes: Any) -> ServingConfig:
    """Return settings under which a server may be called by any name."""
    return ServingConfig(**{"host": "0.0.0.0", "log": "off"} | changes)


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def run(service: Service, work: Callable[[], Awaitable[Any]]) -> Any:
    """Run a coroutine function, for at most 20 s, while a service runs."""

    async def main() -> Any:
        async with service.running():
            return await work()

    return asyncio.run(asyncio.wait_for(main(), 20))


def run_ready(service: Service, work: Callable[[], Awaitable[Any]]) -> Any:
    """Run a coroutine function once all programs are compiled."""

    async def main() -> Any:
        await until(lambda: service.programs[0] == service.programs[1] > 0)
        return await work()

    return run(service, main)


def served(
    work: Callable[[Any, Service], Awaitable[Any]],
    *engines: FakeEngine,
    keys: dict[str, str] | None = None,
    key_file: str | None = None,
    glossaries: dict[str, Glossary] | None = None,
    **config: Any,
) -> Any:
    """Run a coroutine function with the application of a ready service."""
    loaded: Any = list(engines) or [FakeEngine()]
    service = Service(lambda: loaded, configure(keys=key_file, **config), glossaries)
    if keys:
        names = {digest: name for name, digest in keys.items()}
        service.access = Access(names, config.get("rate", 0))
    return run_ready(service, lambda: work(make_app(service), service))


def translate(
    *queries: Query,
    engine: FakeEngine | None = None,
    glossary: Glossary | None = None,
    sentence: Callable[..., None] = lambda *_: None,
) -> list[Translated]:
    """Translate texts by a ready service."""
    own = engine or FakeEngine()
    source, target = own.languages
    asked = [dataclasses.replace(x, source=source, target=target) for x in queries]

    async def work(_: Any, service: Service) -> list[Translated]:
        async with service.admit(asked, Client("", {})) as admitted:
            return await service.search(admitted, sentence)

    glossaries = None if glossary is None else {"": glossary}
    return served(work, own, glossaries=glossaries)


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
