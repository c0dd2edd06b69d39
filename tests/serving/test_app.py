"""The routes of the server itself, its errors, its keys and the files of the page."""

import asyncio
import threading

import pytest
from serving.asgi import MODEL, ask, configure, get, run, served, until
from serving.fake_engine import FakeEngine

from jaxformer.errors import InputError
from jaxformer.serving.access import make_key
from jaxformer.serving.app import make_app
from jaxformer.serving.service import Service
from jaxformer.translation.text.glossary import Glossary


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


def test_it_is_alive_at_once_and_a_translation_waits_for_its_first_program():
    """Nobody is refused because the server reads its runs or compiles; the other
    programs follow.
    """
    loaded, warm = threading.Event(), threading.Semaphore(0)
    engine = FakeEngine(warming=warm.acquire)

    def load():
        loaded.wait()
        return [engine]

    service = Service(load, configure(timeout=0.1))
    app = make_app(service)

    async def status():
        answer = await ask(app, "GET", "/ready")
        return answer.status, *answer.json.values()

    async def main():
        assert (await ask(app, "GET", "/health")).json == {"status": "ok"}
        assert await status() == (503, "warming", 0, 0)
        bodies = {"text": "a"}, {"text": "a", "required": [["X"]]}
        paths = ("POST", "/v1/translate"), ("GET", "/languages")
        asked = [asyncio.create_task(ask(app, *paths[0], body)) for body in bodies]
        listed = asyncio.create_task(ask(app, *paths[1]))
        await asyncio.sleep(0.02)
        loaded.set()
        assert (await listed).status == 200
        await asyncio.sleep(0.2)  # longer than the timeout
        assert await status() == (503, "warming", 0, 4)
        warm.release()
        warm.release()  # that which the other waits for is next
        found = [await each for each in asked]
        assert [each.status for each in found] == [200, 200]
        assert await status() == (200, "ready", 2, 4)
        warm.release(2)
        await until(lambda: service.programs == (4, 4))
        service.drain()
        assert await status() == (503, "draining", 4, 4)

    run(service, main)


def fail():
    raise MemoryError("no room")


@pytest.mark.parametrize("is_loaded", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_who_waits_for_a_model_is_answered_when_the_server_ends(is_loaded, fails):
    """By an error or in order, before the runs are read or while programs compile."""
    go_on = threading.Event()

    def wait():
        go_on.wait(20)
        if fails:
            fail()

    def load():
        if not is_loaded:
            wait()
        return [FakeEngine(warming=wait)]

    service = Service(load, configure())
    app = make_app(service)

    async def main():
        async with service.running():
            asked = asyncio.create_task(
                ask(app, "POST", "/v1/translate", {"text": "a"})
            )
            await asyncio.sleep(0.02)
            if fails:
                go_on.set()
                await until(lambda: service.error)
        found = await asyncio.wait_for(asked, 5)
        go_on.set()
        assert found.status == 503

    asyncio.run(main())


@pytest.mark.parametrize(
    ("engines", "glossary", "fault"),
    [
        ([FakeEngine(warming=fail)], "", "no room"),
        ([FakeEngine(), FakeEngine()], "", "fake and fake both translate en-de"),
        ([FakeEngine()], "en-it", "one of de, en"),
        ([FakeEngine(), FakeEngine(("en", "fr"))], "", "missing; choose one of"),
    ],
)
def test_what_cannot_be_served_ends_the_server(engines, glossary, fault):
    ended, named = threading.Event(), {glossary: Glossary({"one": "EINS"})}
    told = {"failed": ended.set, "loaded": list}
    service = Service(lambda: engines, configure(), named, lambda step: told[step]())

    async def main():
        await until(ended.is_set)

    run(service, main)
    with pytest.raises((InputError, MemoryError), match=fault):
        raise service.error


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

    first, second = served(work, rate=1)
    assert (first.status, second.status) == (200, 429)
    assert second.json["error"]["code"] == "rate"


def test_a_server_with_keys_needs_one():
    key, line = make_key("alice")
    keys = dict([line.split(":")])

    async def work(app, _):
        body = {"text": "one"}
        for headers in ({}, {"authorization": "Bearer wrong"}):
            refused = await ask(app, "POST", "/v1/translate", body, **headers)
            assert (refused.status, refused.json["error"]["code"]) == (403, "key")
        own = {"authorization": f"Bearer {key}"}
        assert (await ask(app, "POST", "/v1/translate", body, **own)).status == 200
        assert (await ask(app, "GET", "/v1/models")).json["key_required"] is True

    served(work, keys=keys)


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

    return served(work)


def test_the_page_runs_no_code_of_others(page):
    index, *_ = page
    assert index.status == 200
    assert index.headers["content-type"].startswith("text/html")
    policy = index.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert index.headers["cache-control"] == "no-cache"


def test_files_of_the_page_are_fetched_once(page):
    _, style, again, outside = page
    assert style.headers["content-type"].startswith("text/css")
    assert (again.status, again.body) == (304, b"")
    assert outside.status == 404
