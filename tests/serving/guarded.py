"""A small application with a guard, and a client of it."""

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


def write_error(scope, error):
    headers = (
        {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    )
    return JSONResponse({"error": error.to_json()}, error.status, headers)


def make_guard(app=None, **options):
    """Return a guard, and the calls that it has ended."""
    app = app or Router(
        routes=[
            Route("/translate/{name}", translate, methods=["POST"]),
            Route("/page", page),
            Route("/fault", fault),
            Route("/busy", busy),
        ],
    )
    calls = []
    finished = [calls.append, *options.pop("finished", ())]
    guard = Guard(
        app, CONFIG, refuse=write_error, finished=finished, now=now, **options
    )
    return guard, calls


def client_of(app, base_url="http://a"):
    """Return a client that sends its requests to an application in this process."""
    transport = httpx.ASGITransport(app, client=("192.0.2.7", 4321))
    return httpx.AsyncClient(transport=transport, base_url=base_url)
