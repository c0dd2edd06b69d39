"""What every request passes: ids, hosts, sizes, times, origins, and faults."""

import asyncio
import json

import pytest
from serving import fake_clock
from serving.fake_clock import now
from serving.guarded import CONFIG, TEXT, Exchange, client_of, make_guard

from jaxformer.serving.guard import allowed_hosts

DONE = (0, b'{"text": "one two"}', "last")


def ask(method, path, guard=None, **options):
    """Return the answer to a request."""

    async def main():
        app = guard or make_guard()[0]
        base_url = options.pop("base_url", "http://localhost:5000")
        async with client_of(app, base_url) as client:
            return await client.request(method, path, **options)

    return fake_clock.run(main())


def exchange(guard, *parts, path="/translate/x", **options):
    """Return what a client by hand is answered, and when."""

    async def main():
        made = Exchange(path, parts, **options)
        return *(await made.answer(guard)), made, now()

    return fake_clock.run(main())


@pytest.mark.parametrize("given", ["abc-123", "A" * 64])
def test_the_id_of_a_client_is_returned(given):
    """As X-Request-ID, for logs of both sides."""
    assert (
        ask("GET", "/page", headers={"X-Request-ID": given}).headers["x-request-id"]
        == given
    )


@pytest.mark.parametrize("headers", [{}, {"X-Request-ID": ""}])
def test_a_request_without_an_id_gets_one(headers):
    """A random word."""
    found = ask("GET", "/page", headers=headers).headers["x-request-id"]
    assert len(found) == 16
    assert found.isalnum()


@pytest.mark.parametrize(
    ("path", "status"),
    [("/page", 200), ("/nothing", 404), ("/fault", 500), ("/busy", 503)],
)
def test_every_answer_has_an_id_and_headers_of_safety(path, status):
    """Errors of every kind, too; what the application says itself stays."""
    response = ask("GET", path)
    assert response.status_code == status
    headers = response.headers
    assert headers["x-request-id"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-opener-policy"] == "same-origin"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["cache-control"] == ("no-cache" if path == "/page" else "no-store")
    assert not any(name.startswith("access-control") for name in headers)


def test_a_fault_is_an_answer_with_an_id_only():
    """The message of an exception may have a text; it stays inside."""
    guard, calls = make_guard()
    response = ask("GET", "/fault", guard)
    error = response.json()["error"]
    assert (error["code"], response.headers["x-request-id"] in error["message"]) == (
        "internal",
        True,
    )
    assert TEXT not in response.text
    assert isinstance(calls[0].fault, ValueError)
    assert (calls[0].status, calls[0].code, guard.in_flight) == (500, "internal", 0)


def test_an_application_without_an_answer_is_a_fault():
    """No request hangs."""

    async def silent(scope, receive, send):
        return None

    assert ask("GET", "/", make_guard(silent)[0]).status_code == 500


def test_a_fault_within_an_answer_cuts_it_off():
    """Its status is out already; the connection ends without the rest."""

    async def broken(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise ValueError

    guard, calls = make_guard(broken)
    status, _, body, *_ = exchange(guard)
    assert (status, body, calls[0].status) == (200, b"half", 500)


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost:5000", True),
        ("LOCALHOST", True),
        ("127.0.0.1:80", True),
        ("[::1]:5000", True),
        ("mt.example.org", True),
        ("mt.example.org.:443", True),
        ("evil.example.org", False),
        ("localhost.evil.org", False),
        ("127.0.0.1.evil.org:5000", False),
        ("[2001:db8::1]:5000", False),
    ],
)
def test_names_of_others_are_refused_on_a_loopback_address(host, allowed):
    """A page of the Web whose name points to this machine reads nothing."""
    guard, _ = make_guard(hosts=allowed_hosts("127.0.0.1", ["mt.example.org"]))
    response = ask("GET", "/page", guard, headers={"Host": host})
    assert response.status_code == (200 if allowed else 421)
    if not allowed:
        assert response.json()["error"]["code"] == "host"


def test_any_name_is_allowed_on_other_addresses():
    """Unless names are given; `*` allows any anywhere."""
    assert allowed_hosts("0.0.0.0") == allowed_hosts("127.0.0.1", ["*"]) == frozenset()
    assert allowed_hosts("0.0.0.0", ["A.org"]) == {"a.org"}
    assert "localhost" in allowed_hosts("::1")


def test_a_body_of_a_gigabyte_costs_no_memory():
    """Its length is refused at once; in chunks it is read to the limit, no further."""
    seen = 0

    async def read(scope, receive, send):
        nonlocal seen
        while (message := await receive())["type"] == "http.request":
            seen += len(message["body"])

    guard, calls = make_guard(read)
    length = [(b"content-length", b"1073741824")]
    chunks = (0, b"x" * 1500), *[(0, b"x" * 2**20)] * 1023
    for headers, most in ((length, 0), ((), 1500 + 2**20)):
        status, found, body, made, _ = exchange(guard, *chunks, headers=headers)
        assert (status, made.read, "connection" in found) == (413, most, False)
        assert json.loads(body)["error"]["limit"] == CONFIG.max_body
    assert seen == 1500
    assert [call.code for call in calls] == ["body_too_large"] * 2
    body = (0, b'{"text": "' + b"x" * 2036), (0, b'"}', "last")
    assert exchange(make_guard()[0], *body)[0] == 200  # exactly the limit


def test_what_an_application_answers_to_a_refused_body_is_lost():
    """One answer only, even if the application continues without the body."""

    async def stubborn(scope, receive, send):
        while (await receive())["type"] != "http.disconnect":
            pass
        assert (await receive())["type"] == "http.disconnect"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"all is well"})

    status, _, body, made, time = exchange(make_guard(stubborn)[0], (0, b"x" * 4000))
    assert (status, b"well" in body, len(made.sent), time) == (413, False, 2, 0)


def test_a_client_that_leaves_is_counted_as_499():
    """It gets no answer, and an exception raised after that is no fault."""
    guard, calls = make_guard()
    status, *_, time = exchange(guard, DONE, path="/slow", leaves=5)
    assert (status, time) == (None, 5)
    assert (calls[0].status, calls[0].seconds, calls[0].fault) == (499, 5, None)
    assert (calls[0].route, guard.in_flight) == ("/slow", 0)


def test_a_call_that_is_cancelled_ends():
    """As the server does when it stops; the cancellation is passed on."""
    guard, calls = make_guard()

    async def main():
        task = asyncio.create_task(Exchange("/slow", [DONE]).answer(guard))
        await asyncio.sleep(1)
        assert guard.in_flight == 1
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        fake_clock.run(main())
    assert (calls[0].status, guard.in_flight) == (499, 0)


ORIGIN = "https://example.org"


def test_no_origin_is_allowed_by_default():
    """The page of the server needs none."""
    asked = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST"}
    response = ask("OPTIONS", "/page", headers=asked)
    assert response.status_code == 405
    assert "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize("origins", [["*"], [ORIGIN, "https://example.com"]])
def test_pages_of_allowed_origins_may_ask(origins):
    """Preflight, answers and errors; never with credentials."""
    guard, _ = make_guard(origins=origins)
    asked = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST"}
    before = ask("OPTIONS", "/translate/x", guard, headers=asked)
    assert (before.status_code, before.text) == (204, "")
    assert "POST" in before.headers["access-control-allow-methods"]
    assert "Authorization" in before.headers["access-control-allow-headers"]
    for path in ("/page", "/busy", "/nothing"):
        after = ask("GET", path, guard, headers={"Origin": ORIGIN})
        for response in (before, after):
            expected = "*" if origins == ["*"] else ORIGIN
            assert response.headers["access-control-allow-origin"] == expected
            assert "access-control-allow-credentials" not in response.headers
            assert ("vary" in response.headers) == (origins != ["*"])
        assert "Retry-After" in after.headers["access-control-expose-headers"]


@pytest.mark.parametrize("origin", ["https://example.org.evil.com", "null", ""])
def test_pages_of_other_origins_read_nothing(origin):
    """An origin is compared as a whole."""
    guard, _ = make_guard(origins=[ORIGIN])
    response = ask("GET", "/page", guard, headers={"Origin": origin})
    assert "access-control-allow-origin" not in response.headers
    assert response.headers["vary"] == "Origin"


def test_options_without_an_origin_are_the_application_s():
    """A plain OPTIONS is no preflight."""
    guard, _ = make_guard(origins=["*"])
    assert ask("OPTIONS", "/page", guard).status_code == 405


def test_the_route_of_a_call_is_a_template():
    """For logs and metrics: what a client writes there stays out."""
    guard, calls = make_guard()
    ask("POST", "/translate/abc?api_key=k", guard, json={"text": "one"})
    ask("GET", "/translate/abc", guard)
    ask("GET", "/secret", guard)
    ask("BREW", "/page", guard)
    found = [(call.method, call.route, call.status) for call in calls]
    assert found == [
        ("POST", "/translate/{name}", 200),
        ("GET", "/translate/{name}", 405),
        ("GET", "other", 404),
        ("other", "/page", 405),
    ]
