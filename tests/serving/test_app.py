"""The routes of the server itself, its errors, its keys and the files of the page."""

import asyncio
import threading

import pytest
from serving.asgi import MODEL, ask, get, served
from serving.fake_engine import FakeEngine

from jaxformer.serving.access import Keys, make_key
from jaxformer.serving.app import make_app
from jaxformer.serving.config import ServingConfig
from jaxformer.serving.service import Service


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
    ("path", "body"),
    [
        ("/v1/translate", {"text": "one"}),
        ("/v1/attention", {"text": "a", "translation": "A"}),
        ("/v1/alternatives", {"text": "a"}),
        ("/v1/score", {"pairs": [{"text": "a", "translation": "A"}]}),
    ],
)
def test_all_that_uses_a_model_counts_against_the_rate(path, body):
    async def work(app, _):
        return [await ask(app, "POST", path, body) for _ in range(2)]

    first, second = served(work, limits={"rate": 1})
    assert (first.status, second.status) == (200, 429)
    assert second.json["error"]["code"] == "rate"


def test_a_server_with_keys_needs_one():
    key, line = make_key("alice")
    keys = Keys(dict([line.split(":")]))

    async def work(app, _):
        body = {"text": "one"}
        for headers in ({}, {"authorization": "Bearer wrong"}):
            refused = await ask(app, "POST", "/v1/translate", body, **headers)
            assert (refused.status, refused.json["error"]["code"]) == (403, "key")
        own = {"authorization": f"Bearer {key}"}
        assert (await ask(app, "POST", "/v1/translate", body, **own)).status == 200
        assert (await ask(app, "GET", "/v1/models")).json["key_required"] is True

    served(work, keys=keys)


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
        f'jaxformer_batch_padding_ratio_sum{{kind="plain"}} {1 - 3 / 64}',
        'jaxformer_requests_total{route="/v1/translate",status="200"} 1.0',
        'jaxformer_compilations_total{when="ready"} 0.0',
    ):
        assert line in lines


@pytest.mark.parametrize("path", ["/mt/v1/models", "/v1/models"])
def test_a_server_under_a_path_answers_with_and_without_it(path):
    """A proxy may keep the path or remove it."""
    assert get(path, root_path="/mt").status == 200


@pytest.fixture(scope="module")
def page():
    async def work(app, _):
        index = await ask(app, "GET", "/")
        style = await ask(app, "GET", "/static/serve.css")
        again = await ask(
            app, "GET", "/static/serve.css", if_none_match=style.headers["etag"]
        )
        outside = await ask(app, "GET", "/static/..%2fconfig.py")
        return index, style, again, outside

    return served(work, page=True)


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
    _, style, again, outside = page
    assert style.headers["content-type"].startswith("text/css")
    assert (again.status, again.body) == (304, b"")
    assert outside.status == 404
