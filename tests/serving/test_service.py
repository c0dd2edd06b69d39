"""Requests share batches, wait, fail and are cancelled; runs are read again."""

import asyncio
import contextlib
import functools
import threading

import pytest
from serving.asgi import run_ready, translate
from serving.fake_engine import FakeEngine, slowly

from jaxformer.data.records import Pair
from jaxformer.errors import InputError
from jaxformer.serving.access import Rates
from jaxformer.serving.call import CALL, Call
from jaxformer.serving.config import ServingConfig
from jaxformer.serving.engine import TranslationEngine, load_engines
from jaxformer.serving.errors import ServingError
from jaxformer.serving.jobs import Times
from jaxformer.serving.programs import PLAIN
from jaxformer.serving.service import Service
from jaxformer.serving.terms import Glossary
from jaxformer.serving.texts import Query, Text


def served(work, *engines, **keys):
    """Run a coroutine function with a ready service of these engines."""
    service = Service(list(engines) or [FakeEngine()], ServingConfig(**keys))
    return run_ready(service, lambda: work(service))


def test_all_texts_of_a_request_share_batches():
    engine = FakeEngine()
    done = translate(Query("one"), Query("two"), Query("three"), engine=engine)
    assert [each.text for each in done] == ["ONE", "TWO", "THREE"]
    assert engine.batches == [(PLAIN, ["one", "two", "three"])]


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


def test_sentences_are_told_as_they_are_found():
    told = []

    async def work(service):
        begun = []
        await service.translate(
            [Query("One. Two. Three. Four. Five.")],
            sentence=lambda text, index, result: told.append(
                (text, index, result.source)
            ),
            begin=lambda texts: begun.append(len(texts[0].cuts)),
        )
        assert begun == [5]

    served(work)
    assert sorted(told) == [
        (0, number, f"{word}.")
        for number, word in enumerate(("One", "Two", "Three", "Four", "Five"))
    ]


def test_a_sentence_that_fails_fails_only_its_request():
    async def work(service):
        return await asyncio.gather(
            *(service.translate([Query(text)]) for text in ("one", "poison", "two")),
            return_exceptions=True,
        )

    one, fault, two = served(work)
    assert (one[0].text, two[0].text) == ("ONE", "TWO")
    assert (fault.status, fault.code) == (500, "internal")


def test_a_request_tells_how_long_it_waited():
    async def work(service):
        first, second = Times(), Times()
        await asyncio.gather(
            service.translate([Query("one")], times=first),
            service.translate([Query("two", n_best=2)], times=second),
        )
        return first, second

    first, second = served(work, FakeEngine(before=slowly(0.05)))
    assert 0 <= first.queue_seconds < first.seconds < second.seconds
    assert second.queue_seconds >= 0.05


def test_languages_are_found_by_their_codes():
    engines = (
        FakeEngine(("en", "de")),
        FakeEngine(("en", "fr")),
        FakeEngine(("de", "en")),
    )

    async def work(service):
        assert service.engine("EN-US", "deu_Latn") is engines[0]
        assert service.engine("de", "") is engines[2]
        assert service.engine("", "fr") is engines[1]
        for given, code, field in (
            (("", ""), "missing", "source"),
            (("en", ""), "missing", "target"),
            (("xx", "de"), "unknown_language", "source"),
            (("en", "x" * 5000), "unknown_language", "target"),
            (("de", "fr"), "unknown_pair", "target"),
            (("fr", ""), "unknown_pair", "source"),
        ):
            with pytest.raises(ServingError) as caught:
                service.engine(*given)
            error = caught.value
            assert (error.status, error.code, error.field) == (400, code, field)
            assert len(error.message) < 200
        return service.languages

    assert served(work, *engines) == ["de", "en", "fr"]


def test_two_runs_of_a_pair_are_refused():
    with pytest.raises(InputError, match="two runs named fake both translate en-de"):
        Service([FakeEngine(), FakeEngine()], ServingConfig())


def test_only_the_languages_of_the_server_are_detected():
    async def work(service):
        return await service.detect("Der Hund läuft über die Straße nach Hause.")

    found = served(work, FakeEngine(("en", "de")), FakeEngine(("de", "fr")))
    assert found[0][0] == "de"
    assert {code for code, _ in found} == {"de", "en", "fr"}
    assert sum(share for _, share in found) == pytest.approx(1)


def test_nothing_is_translated_before_the_needed_programs_are_compiled():
    needed, rest = threading.Event(), threading.Event()
    events = {1: needed, 3: rest}
    engine = FakeEngine(
        warming=lambda count: events[count].wait(10) if count in events else None
    )

    async def main():
        service = Service([engine], ServingConfig())
        async with service.running():
            with pytest.raises(ServingError) as caught:
                await service.translate([Query("one")])
            assert (caught.value.status, caught.value.code) == (503, "warming")
            assert caught.value.retry_after
            assert (service.state, service.programs) == ("warming", 3)
            needed.set()
            await service.is_ready.wait()
            # The programs that are left are compiled between batches.
            work = asyncio.create_task(service.translate([Query("one")]))
            await asyncio.sleep(0)
            rest.set()
            assert (await work)[0].text == "ONE"

    asyncio.run(asyncio.wait_for(main(), 20))


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


def test_a_request_that_is_cancelled_frees_its_place():
    released = threading.Event()
    engine = FakeEngine(before=lambda kind, texts: released.wait(10))

    async def work(service):
        first = asyncio.create_task(service.translate([Query("one")]))
        while not service.batcher.active:
            await asyncio.sleep(0.001)
        left = asyncio.create_task(service.translate([Query("two\nthree")]))
        while service.batcher.waiting < 2:
            await asyncio.sleep(0.001)
        left.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await left
        assert service.batcher.waiting == 0
        released.set()
        await first

    served(work, engine)
    assert [texts for _, texts in engine.batches] == [["one"]]


def test_maps_words_and_scores_wait_in_the_same_queue():
    engine = FakeEngine(before=slowly(0.02))

    async def work(service):
        own = service.engine("", "")
        calls = (
            service.translate([Query("one")]),
            service.call(own, lambda engine: engine.attend("a b", "A B", 2)),
            service.call(own, lambda engine: engine.alternatives("a b", "A", 1)),
            service.score(own, [Pair("a", "A B")]),
        )
        return await asyncio.gather(*calls)

    (text,), ((maps, candidates),), ((word,),), (score,) = served(work, engine)
    assert maps.cross.shape == (1, 1, 2, 2)
    assert (text.text, len(candidates), word.text, score.tokens) == ("ONE", 2, "A B", 2)


def test_an_error_of_a_call_is_its_own():
    async def work(service):
        engine = service.engine("", "")
        with pytest.raises(ServingError, match="not blank") as caught:
            await service.call(engine, lambda own: own.attend(" ", "", 0))
        assert (caught.value.status, caught.value.code) == (422, "refused")
        return await service.translate([Query("one")])

    assert served(work)[0].text == "ONE"


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


def test_a_long_text_is_put_together_outside_of_the_event_loop(monkeypatch):
    finish, threads = Text.finish, []

    def noted(text, results):
        threads.append(threading.current_thread())
        return finish(text, results)

    monkeypatch.setattr(Text, "finish", noted)
    for text, is_long in (("One. " * 10, False), ("One. " * 400, True)):
        translate(Query(text))
        assert (threads.pop() is not threading.main_thread()) == is_long


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


def test_a_client_above_its_rate_costs_no_preparation(monkeypatch):
    """Nor does one that has sent more than was seen at once."""
    encoded = []

    def encode(text):
        encoded.append(text.query.text)
        own(text)

    own = Text.encode
    monkeypatch.setattr(Text, "encode", encode)

    async def work(service):
        CALL.set(Call(rates=Rates(4)))
        await service.translate([Query("One. Two. Three. Four. Five. Six.")])
        for text in ("one", "one\ntwo"):
            with pytest.raises(ServingError, match="at most 4 sentences"):
                await service.translate([Query(text)])

    served(work)
    assert len(encoded) == 1


@pytest.mark.parametrize("text", ["word " * 24, "a {x} b {x} c {x} d {x} e {x}"])
def test_each_part_of_a_sentence_counts_for_the_rate(text):
    async def work(service):
        CALL.set(Call(rates=Rates(3)))
        await service.translate([Query(text)])
        with pytest.raises(ServingError, match="at most 3 sentences"):
            await service.translate([Query("one")])

    served(work)
