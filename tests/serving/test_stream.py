"""Translations sent sentence by sentence."""

import threading

import httpx
import pytest
from serving.asgi import MODEL, events_of, post
from serving.fake_engine import FakeEngine
from serving.running_server import running


def test_a_stream_sends_each_sentence_when_it_is_found():
    released = threading.Event()
    engine = FakeEngine(
        before=lambda kind, texts: "Three." in texts and released.wait(10), rows=2
    )
    body, seen = {"text": "One. Two. Three."}, b""
    with (
        running(engine) as (host, port),
        httpx.stream(
            "POST", f"http://{host}:{port}/v1/translate/stream", json=body
        ) as answer,
    ):
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["x-accel-buffering"] == "no"
        for part in answer.iter_raw():
            seen += part
            if seen.count(b"event: sentence") == 2:
                assert not released.is_set()
                released.set()
    start, first, second, third, (name, done) = events_of(seen)
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
    answer = post("/v1/translate/stream", body, queue=20)
    assert (answer.status, answer.json["error"]["code"]) == (status, code)


def test_a_stream_that_fails_says_so_at_its_end():
    engine = FakeEngine(rows=2)
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
