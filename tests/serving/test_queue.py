"""What requests do to each other: batches, turns, shares, failures, and their ends."""

import asyncio
import threading
import time

import httpx
import pytest
from serving.asgi import ask, configure, run, served, until
from serving.fake_engine import FakeEngine, slowly

from jaxformer.serving.app import make_app
from jaxformer.serving.programs import PAIRS, PLAIN, TERMS, Program, Programs
from jaxformer.serving.service import Service


def begin(app, text, **how):
    """Begin a request."""
    return asyncio.create_task(ask(app, "POST", "/v1/translate", {"text": text}, **how))


def lines(count, name="line"):
    return "\n".join(f"{name} {number}" for number in range(count))


class Held(FakeEngine):
    """Searches when it is let go."""

    def __init__(self, **how):
        self.free = threading.Event()
        super().__init__(before=lambda *_: self.free.wait(20), **how)

    @property
    def searched(self):
        return [text for _, texts in self.batches for text in texts]


def text_of(answer):
    assert answer.status == 200, answer.body
    return answer.json["translations"][0]["text"]


def test_sentences_of_all_clients_share_batches():
    engine = Held(rows=4)

    async def work(app, _):
        first = begin(app, "first")
        await until(lambda: engine.batches)
        rest = [begin(app, f"other {n}", address=f"10.0.0.{n}") for n in range(8)]
        await until(lambda: len(engine.encoded) == 9)
        engine.free.set()
        found = [text_of(await each) for each in [first, *rest]]
        assert found == ["FIRST", *(f"OTHER {n}" for n in range(8))]

    served(work, engine)
    assert [len(texts) for _, texts in engine.batches] == [1, 4, 4]


def test_an_answer_says_how_long_it_waited():
    """At least as long as a batch of others was searched."""
    engine = Held()

    async def work(app, _):
        begin(app, "first")
        await until(lambda: engine.batches)
        second = begin(app, "second")
        await asyncio.sleep(0.1)
        since = time.monotonic()
        await asyncio.sleep(0.1)
        least = time.monotonic() - since
        engine.free.set()
        found = (await second).json
        assert least <= found["queue_seconds"] <= found["seconds"]

    served(work, engine, searches=1)


def test_clients_take_turns_while_long_texts_are_encoded():
    """One that sends many does not delay the others until all of them are."""

    class Slow(FakeEngine):
        def encode(self, text, **how):
            time.sleep(0.02)
            return super().encode(text, **how)

    engine = Slow()

    async def work(app, _):
        body = {"texts": ["long " * 20] * 40}
        many = asyncio.create_task(ask(app, "POST", "/v1/translate", body))
        await until(lambda: engine.encoded)
        assert text_of(await begin(app, "word " * 200, address="10.0.0.1"))
        assert not many.done()
        assert (await many).status == 200

    served(work, engine)


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1"])
def test_a_word_passes_a_document(address):
    """Of its own client, too, and however many documents wait."""
    engine = Held(rows=4)

    async def work(app, _):
        documents = [begin(app, lines(30, f"text {n}")) for n in range(3)]
        await until(lambda: len(engine.encoded) == 90)
        word = begin(app, "word", address=address)
        await until(lambda: len(engine.encoded) == 91)
        before = len(engine.batches)
        engine.free.set()
        assert text_of(await word) == "WORD"
        place = next(n for n, own in enumerate(engine.batches) if "word" in own[1])
        assert place - before <= 2
        for each in documents:
            assert text_of(await each).count("\n") == 29

    served(work, engine)


def test_a_client_above_its_share_of_a_full_queue_is_refused_before_any_work():
    engine = Held(rows=4)

    async def work(app, service):
        first = begin(app, lines(18))
        await until(lambda: engine.batches)
        refused = await begin(app, lines(15, "never"))
        assert (refused.status, refused.json["error"]["code"]) == (503, "queue")
        assert int(refused.headers["retry-after"]) >= 1
        large = await begin(app, lines(21, "never"))
        assert (large.status, large.json["error"]["given"]) == (413, 21)
        body = {"pairs": [{"text": "a", "translation": "never"}] * 3}
        assert (await ask(app, "POST", "/v1/score", body)).status == 503
        assert not [text for text in engine.encoded if "never" in text]
        other = begin(app, lines(8, "few"), address="10.0.0.1")  # within its share
        await until(lambda: len(engine.encoded) == 26)
        engine.free.set()
        assert ((await other).status, (await first).status) == (200, 200)
        assert service.batcher.held == 0

    served(work, engine, queue=20)


def test_each_part_of_a_sentence_needs_room():
    """Also of one that is refused only once it is encoded."""
    engine = Held(rows=4)

    async def work(app, service):
        large = await begin(app, "word " * 8 * 21)
        assert (large.status, large.json["error"]["given"]) == (413, 21)
        first = begin(app, "word " * 8 * 18)
        await until(lambda: engine.batches)
        assert service.batcher.held == 18
        refused = await begin(app, "never " * 8 * 15)
        assert (refused.status, refused.json["error"]["code"]) == (503, "queue")
        engine.free.set()
        assert (await first).status == 200
        assert service.batcher.held == 0
        assert "never" not in str(engine.batches)

    served(work, engine, queue=20)


@pytest.mark.parametrize(
    "text", ["word " * 24, "word " * 80, "a {x} b {x} c {x} d {x} e {x}"]
)
def test_each_part_of_a_sentence_counts_for_the_rate(text):
    """At most as a minute's."""

    async def work(app, _):
        assert (await begin(app, text)).status == 200
        assert (await begin(app, "one")).status == 429
        assert (await begin(app, "two", address="10.0.0.1")).status == 200
        assert (await begin(app, text, address="10.0.0.1")).status == 429

    served(work, rate=3)


def test_a_sentence_that_fails_fails_only_its_request():
    """Alone, or with the batch in which it is."""
    engine = Held(rows=4)

    async def work(app, _):
        texts = ["first", "one", "fail", "two", "three poison", "four"]
        asked = [begin(app, text) for text in texts]
        await until(lambda: len(engine.encoded) == 6)
        engine.free.set()
        found = [await each for each in asked]
        assert [each.status for each in found] == [200, 200, 500, 200, 500, 200]
        assert b"poison" not in found[4].body

    served(work, engine)


def test_the_first_failure_ends_the_rest_of_its_request():
    engine = FakeEngine(rows=1)

    async def work(app, service):
        assert (await begin(app, f"fail\n{lines(30)}")).status == 500
        assert text_of(await begin(app, "next")) == "NEXT"
        assert len(engine.batches) <= 4
        assert service.batcher.held == 0

    served(work, engine)


def test_a_request_that_waits_too_long_is_answered_with_504():
    engine = FakeEngine(rows=1, before=slowly(0.3))

    async def work(app, service):
        answer = await begin(app, lines(9))
        error = answer.json["error"]
        assert (answer.status, error["code"], error["limit"]) == (504, "deadline", 1.0)
        assert "not done after 1 seconds: try again" in error["message"]
        assert service.batcher.held == 0
        await asyncio.sleep(0.4)
        assert text_of(await begin(app, "next")) == "NEXT"
        assert len(engine.batches) <= 6

    served(work, engine, timeout=1.0)


def test_nothing_is_searched_for_a_client_that_left():
    engine = Held(rows=4)

    async def work(app, service):
        gone = asyncio.Event()
        body = iter([b'{"text": "%s"}' % lines(40).replace("\n", "\\n").encode()])

        async def receive():
            for content in body:
                return {"type": "http.request", "body": content}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            raise AssertionError(message)

        scope = {"type": "http", "method": "POST", "path": "/v1/translate"}
        scope |= {"headers": [(b"content-type", b"application/json")]}
        scope |= {"query_string": b"", "client": ("127.0.0.1", 1)}
        left = asyncio.create_task(app(scope, receive, send))
        await until(lambda: engine.batches)
        gone.set()
        await left
        assert service.batcher.held == 0
        engine.free.set()
        assert text_of(await begin(app, "next")) == "NEXT"
        assert len(engine.searched) <= 5
        shown = (await ask(app, "GET", "/metrics")).body.decode()
        assert "jaxformer_cancelled_total 1.0" in shown

    served(work, engine)


def test_a_stream_that_nobody_reads_any_more_ends():
    engine = Held(rows=1)

    async def work(app, service):
        url = "http://127.0.0.1/v1/translate/stream"
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as client:
            asked = client.post(url, json={"text": lines(9)})
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asked, 0.1)
        await until(lambda: service.batcher.held == 0)
        engine.free.set()

    served(work, engine)


def test_the_end_of_the_server_answers_all_requests():
    engine = Held()
    service = Service(lambda: [engine], configure())

    async def main():
        async with service.running():
            await until(lambda: service.state == "ready")
            app = make_app(service)
            asked = [begin(app, f"text {n}") for n in range(40)]
            await until(lambda: len(engine.encoded) == 40)
        found = [await asyncio.wait_for(each, 2) for each in asked]
        engine.free.set()
        assert {each.status for each in found} == {503}
        assert {each.json["error"]["code"] for each in found} == {"draining"}

    asyncio.run(asyncio.wait_for(main(), 20))


def test_several_batches_are_searched_at_a_time_on_request():
    both = threading.Barrier(2)
    engine = FakeEngine(rows=1, searches=2, before=lambda *_: both.wait(10))

    async def work(app, _):
        found = [text_of(await each) for each in [begin(app, t) for t in "ab"]]
        assert found == ["A", "B"]

    served(work, engine)


def test_what_is_searched_again_waits_for_its_program():
    """The texts between placeholders that did not come back."""
    planned = [Program(TERMS, 4, 64), Program(PLAIN, 4, 64), Program(PAIRS, 1, 64)]
    warm = threading.Semaphore(1)
    engine = FakeEngine(warming=warm.acquire)
    engine.programs = Programs(planned)
    service = Service(lambda: [engine], configure())

    async def work():
        answer = begin(make_app(service), "forget one {x} two")
        await until(lambda: len(engine.encoded) > 1)  # again
        await asyncio.sleep(0.05)
        assert [kind for kind, _ in engine.batches] == [TERMS]
        warm.release(9)
        assert text_of(await answer) == "FORGET ONE {x} TWO"

    run(service, work)


def test_texts_go_to_the_engine_of_their_pair():
    engines = [FakeEngine(("en", "de")), FakeEngine(("de", "en"))]

    async def work(app, _):
        for pair in (("en", "de"), ("de", "en")):
            body = {"text": "a", "source": pair[0]}
            found = (await ask(app, "POST", "/v1/translate", body)).json["model"]
            assert (found["source"], found["target"]) == pair

    served(work, *engines)
    assert [len(each.batches) for each in engines] == [1, 1]


def test_only_the_languages_of_the_server_are_detected():
    async def work(app, _):
        body = {"q": "Der Hund läuft über die Straße nach Hause."}
        return (await ask(app, "POST", "/detect", body)).json

    found = served(work, FakeEngine(("en", "de")), FakeEngine(("de", "fr")))
    assert found[0]["language"] == "de"
    assert {each["language"] for each in found} == {"de", "en", "fr"}
