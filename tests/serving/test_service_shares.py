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
from jaxformer.serving.texts import Query, Text


def begin(service, text, **call):
    """Translate a text, or score a pair if it is empty, for a client."""
    CALL.set(Call(**call))
    (engine,) = service.engines.values()
    asked = service.translate([Query(text)]) if text else None
    return asyncio.create_task(asked or service.score(engine, [Pair("a", "b")]))


async def begin_many(service, count, **call):
    """Begin a search, and have another and scores wait."""
    (engine,) = service.engines.values()
    tasks = [begin(service, "one", **call)]
    while not engine.batches:
        await asyncio.sleep(0.001)
    texts = ["two", *[""] * (count - 1)]
    return tasks + [begin(service, text, **call) for text in texts]


def test_each_client_has_a_share_of_the_queue():
    """Of texts, which are encoded only if there is room, and of other work."""
    ready, encoded = threading.Event(), []

    class Encoding(FakeEngine):
        def encode(self, text, **options):
            encoded.append(text)
            return super().encode(text, **options)

    engine = Encoding(before=lambda *_: ready.wait(20))
    service = Service([engine], ServingConfig(queue=4))

    async def work():
        tasks = await begin_many(service, 4, address="greedy")
        for text in ("more", ""):
            with pytest.raises(ServingError, match="4 sentences wait"):
                await begin(service, text, address="greedy")
        tasks += [begin(service, text, address="other") for text in ("three", "")]
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


def test_long_texts_of_clients_are_prepared_in_turns(monkeypatch):
    order, ready, encode = [], threading.Event(), Text.encode

    def noted(text):
        order.append(text.query.text[0])
        assert ready.wait(20)
        encode(text)

    monkeypatch.setattr(Text, "encode", noted)
    service = Service([FakeEngine()], ServingConfig())

    async def work():
        texts = [letter + " word" * 100 for letter in "gggo"]
        tasks = [begin(service, text, address=text[0]) for text in texts]
        await asyncio.sleep(0.01)
        ready.set()
        await asyncio.gather(*tasks)

    run_ready(service, work)
    assert order == [*"gogg"]
