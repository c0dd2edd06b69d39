"""A small application with a guard, and a client that may be slow or leave."""

import asyncio
import json

import httpx
from serving.fake_clock import now
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router

from jaxformer.serving.call import current
from jaxformer.serving.config import ServingConfig
from jaxformer.serving.errors import ServingError
from jaxformer.serving.guard import Guard

CONFIG = ServingConfig(max_body=2048)
TEXT = "a very secret message"


async def translate(request: Request) -> Response:
    """Count the words of a text as its sentences."""
    fields = json.loads(await request.body())
    call = current()
    call.authorize(fields)
    sentences = len(fields["text"].split())
    call.spend(sentences)
    call.note(sentences=sentences, kind="plain", queue_seconds=0.123456)
    return JSONResponse({"text": fields["text"]})


async def page(request: Request) -> Response:
    return Response("page", headers={"Cache-Control": "no-cache"})


async def fault(request: Request) -> Response:
    raise ValueError(TEXT)


async def busy(request: Request) -> Response:
    raise ServingError(503, "queue", "the queue is full", retry_after=7)


async def slow(request: Request) -> Response:
    """Answer after a minute, or stop when the client leaves."""
    await request.body()
    working = asyncio.create_task(asyncio.sleep(60))
    leaving = asyncio.create_task(request.receive())
    await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
    is_left = leaving.done()
    for task in (working, leaving):
        task.cancel()
    if is_left:
        raise ConnectionError("the client has left")
    return Response("slept")


def write_error(scope, error):
    headers = (
        {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    )
    return JSONResponse({"error": error.to_json()}, error.status, headers)


def make_guard(app=None, config=CONFIG, **options):
    """Return a guard, and the calls that it has ended."""
    app = app or Router(
        routes=[
            Route("/translate/{name}", translate, methods=["POST"]),
            Route("/page", page),
            Route("/fault", fault),
            Route("/busy", busy),
            Route("/slow", slow, methods=["POST"]),
        ],
    )
    calls = []
    finished = [calls.append, *options.pop("finished", ())]
    guard = Guard(
        app, config, refuse=write_error, finished=finished, now=now, **options
    )
    return guard, calls


def client_of(app, base_url="http://a"):
    """Return a client that sends its requests to an application in this process."""
    transport = httpx.ASGITransport(app, client=("192.0.2.7", 4321))
    return httpx.AsyncClient(transport=transport, base_url=base_url)


class Exchange:
    """A request by hand, whose parts are sent at given times."""

    def __init__(self, path, parts, *, headers=(), leaves=None):
        """Take the parts of the body as (seconds, bytes), the last one ending it unless
        ``leaves`` is the time at which the client leaves.
        """
        self.parts, self.leaves, self.sent, self.read = iter(parts), leaves, [], 0
        self.scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "root_path": "",
            "query_string": b"",
            "headers": headers or [(b"transfer-encoding", b"chunked")],
            "client": ("192.0.2.7", 4321),
        }

    async def receive(self):
        part = next(self.parts, None)
        if part is not None:
            seconds, body, *last = part
            await asyncio.sleep(seconds)
            self.read += len(body)
            return {"type": "http.request", "body": body, "more_body": not last}
        if self.leaves is None:
            await asyncio.Event().wait()
        await asyncio.sleep(max(0, self.leaves - now()))
        return {"type": "http.disconnect"}

    async def send(self, message):
        self.sent.append(message)

    async def answer(self, app):
        """Return the status, the headers and the body."""
        await app(self.scope, self.receive, self.send)
        if not self.sent:
            return None, {}, b""
        headers = {
            name.decode(): value.decode() for name, value in self.sent[0]["headers"]
        }
        body = b"".join(message.get("body", b"") for message in self.sent[1:])
        return self.sent[0]["status"], headers, body
