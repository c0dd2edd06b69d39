"""What a service keeps apart: glossaries, faults, pairs and rates."""

import asyncio
import functools
import threading

import pytest
from serving.asgi import run_ready
from serving.fake_engine import FakeEngine

from jaxformer.data.records import Pair
from jaxformer.errors import InputError
from jaxformer.serving.access import Rates
from jaxformer.serving.call import CALL, Call
from jaxformer.serving.config import ServingConfig
from jaxformer.serving.engine import TranslationEngine, load_engines
from jaxformer.serving.errors import ServingError
from jaxformer.serving.service import Service
from jaxformer.translation.text.glossary import Glossary
from jaxformer.translation.text.text import Query


def served(work, *engines, **keys):
    """Run a coroutine function with a ready service of these engines."""
    service = Service(list(engines) or [FakeEngine()], ServingConfig(**keys))
    return run_ready(service, lambda: work(service))


def test_a_glossary_is_of_its_pair():
    glossary = Glossary({"one": "EINS"})
    pairs = ("en", "de"), ("en", "fr")

    async def work(service):
        queries = [Query("one two", *pair) for pair in pairs]
        return [done.text for done in await service.translate(queries)]

    for name in ("en-de", "en-deu"):
        engines = [FakeEngine(pair) for pair in pairs]
        service = Service(engines, ServingConfig(), glossaries={name: glossary})
        found = run_ready(service, functools.partial(work, service))
        assert found == ["ONE TWO EINS", "ONE TWO"]
    for name, words in (
        ("", "as in --glossary=en-de:FILE: .* missing; choose one of"),
        ("en-it", "one of de, fr"),
    ):
        with pytest.raises(InputError, match=words):
            Service(engines, ServingConfig(), glossaries={name: glossary})


def test_a_sentence_that_fails_fails_only_its_request():
    async def work(service):
        return await asyncio.gather(
            *(service.translate([Query(text)]) for text in ("one", "poison", "two")),
            return_exceptions=True,
        )

    one, fault, two = served(work)
    assert (one[0].text, two[0].text) == ("ONE", "TWO")
    assert (fault.status, fault.code) == (500, "internal")


def test_only_the_languages_of_the_server_are_detected():
    async def work(service):
        return await service.detect("Der Hund läuft über die Straße nach Hause.")

    found = served(work, FakeEngine(("en", "de")), FakeEngine(("de", "fr")))
    assert found[0][0] == "de"
    assert {code for code, _ in found} == {"de", "en", "fr"}
    assert sum(share for _, share in found) == pytest.approx(1)


def test_what_fails_while_warming_is_kept_for_the_server():
    def fail(count):
        raise MemoryError("no room")

    async def main():
        service = Service([FakeEngine(warming=fail)], ServingConfig())
        async with service.running():
            while service.error is None:
                await asyncio.sleep(0.01)
            assert isinstance(service.error, MemoryError)

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_run_of_several_languages_is_loaded_for_each_pair(monkeypatch):
    loaded, said = [], []

    def load(run, **how):
        loaded.append((run, how))
        asked = how["source_language"], how["target_language"]
        return FakeEngine(tuple(str(code).partition("-")[0] for code in asked))

    monkeypatch.setattr(TranslationEngine, "load", load)
    load_engines(["run"], ["en", "de"], ["de", "fr"], rows=2)
    pairs = [(how["source_language"], how["target_language"]) for _, how in loaded]
    assert pairs == [("en", "de"), ("en", "fr"), ("de", "fr")]
    assert {(run, how["rows"]) for run, how in loaded} == {("run", 2)}
    load_engines(["run"], ["en-GB"], [None], say=said.append)
    assert said == ["there is no en-GB: en is used"]
    loaded.clear()
    load_engines(["a", "b"], [None], [None])
    assert [run for run, _ in loaded] == ["a", "b"]


def test_other_requests_have_their_turn_between_pairs_that_are_scored():
    order, waits = [], threading.Event()

    class Scoring(FakeEngine):
        def score(self, pairs):
            order.append(len(pairs))
            assert waits.wait(30)
            return super().score(pairs)

    engine = Scoring(before=lambda kind, texts: order.append(texts[0]))

    async def work(service):
        pairs = [Pair("a", "b " * count) for count in range(9)]
        scored = asyncio.create_task(service.score(engine, pairs))
        while not order:
            await asyncio.sleep(0.001)
        other = asyncio.create_task(service.translate([Query("one")]))
        while not service.batcher.waiting > 2:
            await asyncio.sleep(0.001)
        waits.set()
        await other
        assert [each.tokens for each in await scored] == [*range(9)]

    served(work, engine)
    assert order == [4, "one", 4, 1]


@pytest.mark.parametrize("text", ["word " * 24, "a {x} b {x} c {x} d {x} e {x}"])
def test_each_part_of_a_sentence_counts_for_the_rate(text):
    async def work(service):
        CALL.set(Call(rates=Rates(3)))
        await service.translate([Query(text)])
        with pytest.raises(ServingError, match="at most 3 sentences"):
            await service.translate([Query("one")])

    served(work)


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
