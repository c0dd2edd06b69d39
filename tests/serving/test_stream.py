"""Translations sent sentence by sentence, and clients that hang up."""

import asyncio
import threading

import pytest
from serving.asgi import MODEL, Exchange, ask, events_of, post, served
from serving.fake_engine import FakeEngine, slowly

from jaxformer.serving.errors import ServingError


def test_a_stream_sends_each_sentence_when_it_is_found():
    released = threading.Event()
    engine = FakeEngine(
        before=lambda kind, texts: "Three." in texts and released.wait(10)
    )
    engine.rows = 2

    async def work(app, _):
        body = {"text": "One. Two. Three."}
        exchange = Exchange(app, "POST", "/v1/translate/stream", body)
        status, headers = await exchange.start()
        assert status == 200
        assert headers["content-type"].startswith("text/event-stream")
        assert headers["cache-control"] == "no-store"
        assert headers["x-accel-buffering"] == "no"
        seen = b""
        async for part in exchange.parts():
            seen += part
            if seen.count(b"event: sentence") == 2:
                assert not released.is_set()
                released.set()
        return events_of(seen)

    start, first, second, third, (name, done) = served(work, engine)
    spans = [[0, 4], [5, 9], [10, 16]]
    assert start == ("start", {"sentences": 3, "source_spans": spans})
    assert [data["index"] for _, data in (first, second, third)] == [0, 1, 2]
    assert third[1]["hypotheses"][0]["text"] == "THREE."
    assert third[1]["source_span"] == [10, 16]
    assert (name, done["text"], done["model"]) == ("done", "ONE. TWO. THREE.", MODEL)
    assert done["seconds"] >= done["queue_seconds"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"texts": ["a"]}, 400, "unknown_field"),
        ({"text": "x" * 50}, 422, "sentence_too_long"),
        ({"text": "One. " * 30}, 413, "too_many_sentences"),
    ],
)
def test_what_is_refused_before_a_stream_has_a_status(body, status, code):
    answer = post("/v1/translate/stream", body, limits={"queue": 20})
    assert (answer.status, answer.json["error"]["code"]) == (status, code)


def test_a_stream_for_which_there_is_no_room_has_a_status():
    """Also when that is found out after its first event."""

    async def refuse(*_, **__):
        raise ServingError(503, "queue", "no room", retry_after=7)

    async def work(app, service):
        service.batcher.run = refuse
        return await ask(app, "POST", "/v1/translate/stream", {"text": "One."})

    answer = served(work)
    assert (answer.status, answer.json["error"]["code"]) == (503, "queue")
    assert answer.headers["retry-after"] == "7"


def test_a_stream_that_fails_says_so_at_its_end():
    engine = FakeEngine()
    engine.rows = 2
    answer = post("/v1/translate/stream", {"text": "One. Two.\npoison"}, engine)
    assert answer.status == 200
    *_, (name, data) = events_of(answer.body)
    assert (name, data["error"]["code"]) == ("error", "internal")


def test_a_stream_of_a_text_without_words_is_done_at_once():
    answer = post("/v1/translate/stream", {"text": " - "})
    (start, _), (done, data) = events_of(answer.body)
    assert (start, done, data["text"]) == ("start", "done", " - ")


def test_no_sign_of_a_text_ends_a_line_of_an_event():
    """Not for clients that split lines at all that Unicode calls a line end."""
    text = "a\ud800\x85\u2028\u2029\x1c"
    lines = post("/v1/translate/stream", {"text": text}).body.decode().splitlines()
    assert [line[:4] for line in lines] == ["even", "data", ""] * 3


def test_a_silent_stream_has_comments(monkeypatch):
    monkeypatch.setattr("jaxformer.serving.native._SILENCE", 0.02)
    engine = FakeEngine(before=slowly(0.2))
    answer = post("/v1/translate/stream", {"text": "One."}, engine)
    assert b"\n\n: still searching\n\n" in answer.body
    assert [name for name, _ in events_of(answer.body)] == ["start", "sentence", "done"]


TEXT = "One. Two. Three."


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/translate", {"text": TEXT}),
        ("/v1/translate/stream", {"text": TEXT}),
        ("/v2/translate", {"text": TEXT, "target_lang": "de"}),
        ("/translate", {"q": TEXT, "source": "en", "target": "de"}),
    ],
)
def test_a_client_that_hangs_up_frees_its_place(path, body):
    released = threading.Event()
    engine = FakeEngine(before=lambda kind, texts: released.wait(10))
    engine.rows = 1
    lines = []

    async def work(app, service):
        exchange = Exchange(app, "POST", path, body)
        while service.batcher.waiting < 2:
            await asyncio.sleep(0.001)
        exchange.leave()
        while service.batcher.waiting:
            await asyncio.sleep(0.001)
        await exchange.task
        released.set()
        answer = await ask(app, "POST", "/v1/translate", {"text": "next"})
        assert answer.json["translations"][0]["text"] == "NEXT"

    served(work, engine, log=lines.append)
    assert [texts for _, texts in engine.batches] == [["One."], ["next"]]
    assert [call.status for call in lines] == [499, 200]
