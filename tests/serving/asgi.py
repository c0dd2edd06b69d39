"""Requests to an application in this process, with answers that are seen growing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple


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
