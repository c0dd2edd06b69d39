"""Clients of a queue on a simulated clock, whose search takes a second."""

import asyncio
import contextlib

import pytest
from serving import fake_clock
from serving.fake_clock import now

from jaxformer.serving.batcher import Batcher, Job
from jaxformer.serving.errors import ServingError

ROWS = 16


class Search:
    """Writes payloads in capitals, a second a batch, and keeps the batches."""

    def __init__(self, seconds=1.0):
        self.seconds, self.batches = seconds, []

    async def __call__(self, key, payloads):
        self.batches.append(list(payloads))
        await asyncio.sleep(self.seconds)
        if "raise" in payloads:
            raise RuntimeError(f"secret {payloads}")
        return [
            ValueError(text) if text == "bad" else text.upper() for text in payloads
        ]


@contextlib.asynccontextmanager
async def serving(search, *, rows=ROWS, capacity=1024):
    """Run a batcher for the block, then let it finish the waiting jobs."""
    batcher = Batcher(search, rows=rows, capacity=capacity, now=now)
    server = asyncio.create_task(batcher.serve())
    try:
        yield batcher
    finally:
        while batcher.waiting or batcher.active:
            await asyncio.sleep(1)
        server.cancel()


def jobs_of(texts, width=5, key="plain"):
    return [Job(key, width, text) for text in texts]


def document(length, name="sentence"):
    return [f"{name} {number}" for number in range(length)]


async def ask(batcher, texts, *, timeout=1e6, width=5, key="plain", **options):
    """Return the results of a request, and the time at which they arrived."""
    jobs = jobs_of(texts, width, key)
    return await batcher.run(jobs, timeout=timeout, **options), now()


async def begin(batcher, texts, **options):
    """Start a request and let it enter the queue, and a batch if none is running."""
    task = asyncio.create_task(ask(batcher, texts, **options))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


def on_fake_clock(test):
    """Run a test that is a coroutine."""

    def run():
        fake_clock.run(test())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


async def refusal(awaitable):
    """Return the error that something awaited raises."""
    with pytest.raises(ServingError) as raised:
        await awaitable
    return raised.value
