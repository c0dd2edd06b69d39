"""Requests to an application in this process, whose answers can be read in parts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

from serving.fake_engine import FakeEngine

from jaxformer.serving.access import Keys
from jaxformer.serving.app import make_app
from jaxformer.serving.config import ServingConfig
from jaxformer.serving.service import Service
from jaxformer.serving.terms import Glossary
from jaxformer.serving.texts import Query, Translated

MODEL = {"name": "fake", "source": "en", "target": "de", "checkpoint": "7"}


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Exchange:
    """A request and its answer, part by part."""

    def __init__(
        self, app: Any, method: str, path: str, body: Any = None, **headers: str
    ):
        content = b"" if body is None else json.dumps(body).encode()
        given = {"content-type": "application/json", "host": "127.0.0.1"} | headers
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [
                (name.replace("_", "-").encode(), value.encode())
                for name, value in given.items()
            ],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
            "state": {},
        }
        self._left = asyncio.Event()
        self._asked = False
        self._content = content
        self._messages: asyncio.Queue[Any] = asyncio.Queue()
        self.task = asyncio.create_task(app(scope, self._receive, self._messages.put))

    async def _receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self._content, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    def leave(self) -> None:
        """Hang up."""
        self._left.set()

    async def start(self) -> tuple[int, dict[str, str]]:
        message = await self._next()
        pairs = message["headers"]
        headers = {name.decode().lower(): value.decode() for name, value in pairs}
        return message["status"], headers

    async def _next(self) -> Any:
        waiting = asyncio.create_task(self._messages.get())
        await asyncio.wait([waiting, self.task], return_when="FIRST_COMPLETED")
        if not waiting.done():
            await asyncio.sleep(0)
        if not waiting.done():
            waiting.cancel()
            raise EOFError("the application ended without an answer")
        return waiting.result()

    async def parts(self) -> AsyncIterator[bytes]:
        more = True
        while more:
            message = await self._next()
            more = message.get("more_body", False)
            yield message.get("body", b"")

    async def answer(self) -> Answer:
        status, headers = await self.start()
        return Answer(status, headers, b"".join([part async for part in self.parts()]))


async def ask(
    app: Any, method: str, path: str, body: Any = None, **headers: str
) -> Answer:
    """Return a whole answer."""
    return await Exchange(app, method, path, body, **headers).answer()


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
