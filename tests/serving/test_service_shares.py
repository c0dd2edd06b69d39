"""What one client may ask: a share of the queue, and sentences a minute."""

import asyncio
import threading

import pytest
from serving.asgi import run_ready
from serving.fake_engine import FakeEngine

from jaxformer.data.records import Pair
from jaxformer.serving.access import Rates
from jaxformer.serving.call import CALL, Call
from jaxformer.serving.config import ServingConfig
from jaxformer.serving.errors import ServingError
from jaxformer.serving.service import Service
from jaxformer.serving.texts import Query


def test_each_client_has_a_share_of_the_queue():
    """Of texts, which are encoded only if there is room, and of other work."""
    ready, encoded = threading.Event(), []

    class Encoding(FakeEngine):
        def encode(self, text, **options):
            encoded.append(text)
            return super().encode(text, **options)

    engine = Encoding(before=lambda *_: ready.wait(20))
    service = Service([engine], ServingConfig(queue=4))

    def begin(client, text):
        CALL.set(Call(address=client))
        pairs = [Pair("a", "b")]
        return asyncio.create_task(
            service.translate([Query(text)]) if text else service.score(engine, pairs)
        )

    async def work():
        tasks = [begin("greedy", "one")]
        while not engine.batches:
            await asyncio.sleep(0.001)
        tasks += [begin("greedy", "two") for _ in range(4)]
        for text in ("more", ""):
            with pytest.raises(ServingError, match="4 sentences wait"):
                await begin("greedy", text)
        tasks += [begin("other", text) for text in ("three", "")]
        await asyncio.sleep(0)
        ready.set()
        await asyncio.gather(*tasks)

    run_ready(service, work)
    assert "more" not in encoded


def test_lines_without_words_cost_nothing():
    service = Service([FakeEngine()], ServingConfig())

    async def work():
        CALL.set(Call(rates=Rates(3)))
        for text in ("one", "two\n\n* * *\n \nthree\n"):
            await service.translate([Query(text)])

    run_ready(service, work)
