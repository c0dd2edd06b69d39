"""The routes under ``/v1`` and those of the server itself, without a network."""

import asyncio
import json
import re
import threading
from pathlib import Path

import pytest
from serving.asgi import Exchange, ask
from serving.fake_engine import FakeEngine, slowly

from jaxformer import serving
from jaxformer.serving.access import Keys, make_key
from jaxformer.serving.app import make_app
from jaxformer.serving.config import ServingConfig
from jaxformer.serving.service import Service

MODEL = {"name": "fake", "source": "en", "target": "de", "checkpoint": "7"}


def served(work, *engines, keys=None, limits=None, **options):
    """Run a coroutine function with the application of a ready service."""

    async def main():
        service = Service(
            list(engines) or [FakeEngine()], ServingConfig(**limits or {})
        )
        app = make_app(service, keys=keys, page=False, **options)
        async with service.running():
            await service.is_ready.wait()
            return await work(app, service)

    return asyncio.run(asyncio.wait_for(main(), 20))


def post(path, body, *engines, **options):
    return served(lambda app, _: ask(app, "POST", path, body), *engines, **options)


def get(path, *engines, **options):
    return served(lambda app, _: ask(app, "GET", path), *engines, **options)


def events_of(body):
    found = []
    for event in body.decode().split("\n\n")[:-1]:
        if not event.startswith(":"):
            name, data = event.split("\n")
            data = json.loads(data.removeprefix("data: "))
            found.append((name.removeprefix("event: "), data))
    return found


def test_a_text_is_translated_with_what_the_search_knows():
    answer = post("/v1/translate", {"text": "One two. Three."})
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    shown = answer.json
    (done,) = shown["translations"]
    assert (done["text"], done["alternatives"], done["unmet"]) == (
        "ONE TWO. THREE.",
        [],
        [],
    )
    assert [each["source_span"] for each in done["sentences"]] == [[0, 8], [9, 15]]
    assert [each["source"] for each in done["sentences"]] == ["One two.", "Three."]
    ((hypothesis,), _) = (each["hypotheses"] for each in done["sentences"])
    assert hypothesis["tokens"] == ["ONE", "TWO."]
    assert "alignment" not in hypothesis
    assert shown["model"] == MODEL
    assert 0 <= shown["queue_seconds"] <= shown["seconds"]


def test_each_text_has_its_own_prefix_and_phrases():
    body = {
        "texts": ["a b", "c d"],
        "source": "en",
        "target": "de",
        "prefixes": ["", "X"],
        "required": [["impossible"], []],
    }
    first, second = post("/v1/translate", body).json["translations"]
    assert (first["text"], first["unmet"]) == ("A B", ["impossible"])
    assert (second["text"], second["unmet"]) == ("X D", [])


def test_links_of_words_come_on_request():
    hard, soft = (
        post("/v1/translate", {"text": "a b", "n_best": 2, "alignment": how}).json[
            "translations"
        ][0]["sentences"][0]["hypotheses"]
        for how in (True, "soft")
    )
    assert len(hard) == len(soft) == 2
    assert hard[0]["word_alignment"] == "0-0 1-1"
    assert "weights" not in hard[0]
    assert soft[0]["weights"] == [[1.0, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize("path", ["translate", "translate/stream"])
def test_an_answer_has_not_too_many_weights(monkeypatch, path):
    """They grow with the square of a sentence that is translated in parts."""
    monkeypatch.setattr(serving.native, "_MOST_WEIGHTS", 7)
    body = {"text": "a b", "n_best": 2, "alignment": True}
    assert b"too_many" not in post(f"/v1/{path}", body).body
    answer = post(f"/v1/{path}", {**body, "alignment": "soft"})
    assert b'"too_many_tokens"' in answer.body
    assert b'"given":8' in answer.body


@pytest.mark.parametrize("format", ["text", "html"])
def test_the_words_of_a_sentence_without_end_are_not_linked(monkeypatch, format):
    """Only a request for the links is refused."""
    monkeypatch.setattr(serving.texts, "_MOST_ALIGNED", 9)
    body = {"text": " ".join("abcdefghij"), "format": format, "n_best": 2}
    (done,) = post("/v1/translate", body).json["translations"]
    assert done["text"] == body["text"].upper()
    answer = post("/v1/translate", {**body, "alignment": True})
    assert (answer.status, answer.json["error"]["given"]) == (422, 10)


def test_too_many_sentences_are_refused_before_they_are_encoded(monkeypatch):
    monkeypatch.setattr(FakeEngine, "encode", None)
    body = {"texts": ["One.\n" * 20] * 2}
    answer = post("/v1/translate", body, limits={"queue": 30})
    assert (answer.status, answer.json["error"]["given"]) == (413, 40)


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({}, "missing", "texts"),
        ({"text": 1}, "wrong_type", "text"),
        ({"text": "a", "texts": ["a"]}, "wrong_type", "texts"),
        ({"text": "a", "source": "xx"}, "unknown_language", "source"),
        ({"text": "a", "format": "pdf"}, "bad_format", "format"),
        ({"text": "a", "n_best": 4}, "out_of_range", "n_best"),
        ({"text": "a", "alignment": "hard"}, "wrong_type", "alignment"),
        ({"texts": ["a", "b"], "prefixes": ["x"]}, "out_of_range", "prefixes"),
        ({"text": "a", "required": [["x"], ["y"]]}, "out_of_range", "required"),
        ({"text": "One. Two.", "required": [["x"]]}, "out_of_range", "required"),
        ({"text": "x" * 5001}, "text_too_long", "text"),
        ({"texts": ["x"] * 51}, "too_many_texts", "texts"),
    ],
)
def test_a_wrong_field_is_named(body, code, field):
    answer = post("/v1/translate", body)
    error = answer.json["error"]
    assert (answer.status, error["code"], error["field"]) == (400, code, field)
    assert error["message"].startswith((field, "required", "send"))


def test_a_sentence_that_cannot_be_split_is_refused():
    answer = post("/v1/translate", {"text": "x" * 50})
    assert (answer.status, answer.json["error"]["code"]) == (422, "sentence_too_long")


def test_a_fault_tells_nothing_but_an_id():
    lines = []
    answer = post("/v1/translate", {"text": "poison"}, log=lines.append)
    error = answer.json["error"]
    assert (answer.status, error["code"]) == (500, "internal")
    assert "poison" not in answer.body.decode()
    (call,) = lines
    assert (call.status, call.code) == (500, "internal")
    assert isinstance(call.fault, RuntimeError)


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
        ({"texts": ["a"]}, 400, "wrong_type"),
        ({"text": "x" * 50}, 422, "sentence_too_long"),
        ({"text": "One. " * 30}, 413, "too_many_sentences"),
    ],
)
def test_what_is_refused_before_a_stream_has_a_status(body, status, code):
    answer = post("/v1/translate/stream", body, limits={"queue": 20})
    assert (answer.status, answer.json["error"]["code"]) == (status, code)


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


def test_a_silent_stream_has_comments(monkeypatch):
    monkeypatch.setattr("jaxformer.serving.native._SILENCE", 0.02)
    engine = FakeEngine(before=slowly(0.2))
    answer = post("/v1/translate/stream", {"text": "One."}, engine)
    assert b"\n\n: still searching\n\n" in answer.body
    assert [name for name, _ in events_of(answer.body)] == ["start", "sentence", "done"]


@pytest.mark.parametrize("path", ["/v1/translate", "/v1/translate/stream"])
def test_a_client_that_hangs_up_frees_its_place(path):
    released = threading.Event()
    engine = FakeEngine(before=lambda kind, texts: released.wait(10))
    engine.rows = 1
    lines = []

    async def work(app, service):
        exchange = Exchange(app, "POST", path, {"text": "One. Two. Three."})
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


def test_attention_is_of_the_translation_if_none_is_given():
    own = post("/v1/attention", {"text": "a b"}).json
    assert (own["translation"], own["target_tokens"]) == ("A B", ["A", "B"])
    assert own["cross"] == [[[[0.3333, 0.3333], [0.3333, 0.3333]]]]
    assert own["candidates"] == [[], []]
    given = {"text": "a b", "translation": "X", "k": 2}
    shown = post("/v1/attention", given).json
    assert (shown["target_tokens"], shown["read_tokens"]) == (["X"], ["<s>"])
    assert shown["candidates"] == [[{"token": "X", "probability": 0.5}] * 2]


def test_words_continue_a_prefix():
    shown = post("/v1/alternatives", {"text": "a b", "prefix": "A", "k": 1}).json
    assert shown["alternatives"] == [{"word": "B", "probability": 0.5, "text": "A B"}]


def test_pairs_are_scored():
    pairs = [{"text": "a", "translation": "A B"}, {"text": "b", "translation": "B"}]
    shown = post("/v1/score", {"pairs": pairs}).json
    assert [each["tokens"] for each in shown["scores"]] == [2, 1]
    assert shown["scores"][0]["log_probability"] == -1.5
    error = post("/v1/score", {"pairs": [{"text": "a"}]}).json["error"]
    assert (error["code"], error["field"]) == ("missing", "pairs[0].translation")


def test_models_and_limits_are_listed():
    shown = get("/v1/models", FakeEngine(), FakeEngine(("de", "en"))).json
    first, second = shown["models"]
    assert first == {
        **MODEL,
        "source_name": "English",
        "target_name": "German",
        "beam_size": 3,
        "positions": 64,
        "parameters": 10,
    }
    assert (second["source"], second["target"]) == ("de", "en")
    assert shown["limits"] == {"characters": 5000, "texts": 50, "body": 262144}
    assert shown["key_required"] is False


def test_health_and_readiness_are_two_things():
    blocked = threading.Event()

    async def main():
        engine = FakeEngine(warming=lambda count: blocked.wait(10))
        service = Service([engine], ServingConfig())
        app = make_app(service, page=False)
        async with service.running():
            assert (await ask(app, "GET", "/health")).json == {"status": "ok"}
            warming = await ask(app, "GET", "/ready")
            assert warming.status == 503
            assert warming.json == {"status": "warming", "done": 0, "of": 3}
            refused = await ask(app, "POST", "/v1/translate", {"text": "a"})
            assert (refused.status, refused.json["error"]["code"]) == (503, "warming")
            assert int(refused.headers["retry-after"]) > 0
            blocked.set()
            await service.is_ready.wait()
            assert (await ask(app, "GET", "/ready")).json["status"] == "ready"
            service.state = "draining"
            ending = await ask(app, "GET", "/ready")
            assert (ending.status, ending.json["status"]) == (503, "draining")

    asyncio.run(asyncio.wait_for(main(), 20))


@pytest.mark.parametrize(
    ("path", "key"),
    [("/translate", "error"), ("/v2/translate", "message"), ("/v1/translate", "error")],
)
def test_errors_have_the_form_of_the_protocol(path, key):
    answer = served(lambda app, _: ask(app, "DELETE", path))
    assert answer.status == 405
    assert "POST" in answer.headers["allow"].split(", ")
    assert answer.headers["content-type"] == "application/json"
    shown = answer.json[key]
    message = shown["message"] if path.startswith("/v1") else shown
    assert message.endswith("not DELETE")


@pytest.mark.parametrize(
    "path",
    ["/nothing", "//translate", "/translate/", "/static/../config.py", "/v1/", "/v2/x"],
)
def test_what_is_not_there_is_json_too(path):
    answer = get(path)
    assert answer.status == 404
    assert answer.headers["content-type"] == "application/json"
    assert answer.json


def test_a_server_with_keys_needs_one():
    key, line = make_key("alice")
    admin, other = make_key("admin")
    keys = Keys(dict(each.split(":") for each in (line, other)))

    async def work(app, service):
        body = {"text": "one"}
        for headers in ({}, {"authorization": "Bearer wrong"}):
            refused = await ask(app, "POST", "/v1/translate", body, **headers)
            assert (refused.status, refused.json["error"]["code"]) == (403, "key")
        own = {"authorization": f"Bearer {key}"}
        assert (await ask(app, "POST", "/v1/translate", body, **own)).status == 200
        assert (await ask(app, "GET", "/v1/models")).json["key_required"] is True
        assert (await ask(app, "POST", "/reload", **own)).status == 403
        done = await ask(app, "POST", "/reload", authorization=f"Bearer {admin}")
        assert (done.status, done.json) == (200, {"checkpoints": ["8"]})
        service.engines["en", "de"].is_broken = True
        broken = await ask(app, "POST", "/reload", authorization=f"Bearer {admin}")
        assert (broken.status, broken.json["error"]["code"]) == (409, "reload")

    served(work, keys=keys)


def test_nobody_reloads_a_server_without_keys():
    answer = served(lambda app, _: ask(app, "POST", "/reload"))
    assert (answer.status, answer.json["error"]["code"]) == (403, "key")


def test_metrics_count_batches_and_sentences():
    async def work(app, _):
        await ask(app, "POST", "/v1/translate", {"text": "One two. Three."})
        return await ask(app, "GET", "/metrics")

    answer = served(work)
    lines = answer.body.decode().splitlines()
    assert answer.headers["content-type"].startswith("text/plain")
    for line in (
        'jaxformer_sentences_total{source="en",target="de"} 2.0',
        'jaxformer_source_tokens_total{source="en",target="de"} 3.0',
        'jaxformer_target_tokens_total{source="en",target="de"} 3.0',
        'jaxformer_characters_total{source="en",target="de"} 15.0',
        'jaxformer_batch_sentences_count{kind="plain"} 1.0',
        'jaxformer_requests_total{route="/v1/translate",status="200"} 1.0',
        'jaxformer_compilations_total{when="ready"} 0.0',
    ):
        assert line in lines


@pytest.mark.parametrize("path", ["/mt/v1/models", "/v1/models"])
def test_a_server_under_a_path_answers_with_and_without_it(path):
    """A proxy may keep the path or remove it."""
    assert get(path, root_path="/mt").status == 200


def test_the_log_has_no_text():
    lines = []
    post("/v1/translate?note=secret", {"text": "secret words"}, log=lines.append)
    (call,) = lines
    assert call.route == "/v1/translate"
    assert (call.facts["sentences"], call.facts["characters"]) == (1, 12)
    assert "secret" not in repr(call)


PANELS = Path(serving.__file__).with_name("page").joinpath("panels.js").read_text()


@pytest.fixture(scope="module")
def page():
    async def work(app, _):
        index = await ask(app, "GET", "/")
        style = await ask(app, "GET", "/static/serve.css")
        again = await ask(
            app, "GET", "/static/serve.css", if_none_match=style.headers["etag"]
        )
        outside = await ask(app, "GET", "/static/..%2fconfig.py")
        names = re.findall(r"static/([a-z.]+)", index.body.decode() + PANELS)
        files = {name: await ask(app, "GET", f"/static/{name}") for name in names}
        return index, style, again, outside, files

    async def main():
        service = Service([FakeEngine()], ServingConfig())
        async with service.running():
            return await work(make_app(service), service)

    return asyncio.run(asyncio.wait_for(main(), 20))


def test_the_page_runs_no_code_of_others(page):
    index, *_ = page
    assert index.status == 200
    assert index.headers["content-type"].startswith("text/html")
    policy = index.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert index.headers["cache-control"] == "no-store"


def test_files_of_the_page_are_fetched_once(page):
    _, style, again, outside, _ = page
    assert style.headers["content-type"].startswith("text/css")
    assert (again.status, again.body) == (304, b"")
    assert outside.status == 404


def test_every_file_that_the_page_names_is_served(page):
    *_, files = page
    assert {"serve.js", "page.css", "threads.js", "attention.css"} <= files.keys()
    kinds = {"css": "text/css", "js": "text/javascript"}
    for name, answer in files.items():
        assert answer.status == 200, name
        assert answer.headers["content-type"].startswith(kinds[name.split(".")[1]])
