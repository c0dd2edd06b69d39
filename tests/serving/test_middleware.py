"""What every request passes: ids, hosts, sizes and origins."""

import tracemalloc

import httpx
import pytest
from serving.asgi import ask, served

from jaxformer.serving.middleware import allowed_hosts


def answer(path="/v1/models", method="GET", body=None, options=None, **headers):
    """Return the answer to a request."""
    work = lambda app, _: ask(app, method, path, body, **headers)  # noqa: E731
    return served(work, **(options or {}))


def test_the_id_of_a_client_is_returned():
    """As X-Request-ID, for logs of both sides."""
    given = "abc-123"
    assert answer(x_request_id=given).headers["x-request-id"] == given


@pytest.mark.parametrize("headers", [{}, {"x_request_id": ""}])
def test_a_request_without_an_id_gets_one(headers):
    """A random word."""
    found = answer(**headers).headers["x-request-id"]
    assert len(found) == 16
    assert found.isalnum()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/models", 200),
        ("GET", "/nothing", 404),
        ("POST", "/v1/translate", 500),
    ],
)
def test_every_answer_has_an_id_and_headers_of_safety(method, path, status):
    """Errors of every kind, too."""
    found = answer(path, method, {"text": "poison"})
    assert found.status == status
    headers = found.headers
    assert headers["x-request-id"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-opener-policy"] == "same-origin"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["cache-control"] == "no-store"
    assert not any(name.startswith("access-control") for name in headers)


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost:5000", True),
        ("[::1]:5000", True),
        ("mt.example.org", True),
        ("mt.example.org.:443", True),
        ("evil.example.org", False),
        ("127.0.0.1.evil.org:5000", False),
        ("[2001:db8::1]:5000", False),
    ],
)
def test_names_of_others_are_refused_on_a_loopback_address(host, allowed):
    """A page of the Web whose name points to this machine reads nothing."""
    options = {"host": "127.0.0.1", "allowed_host": ["mt.example.org"]}
    found = answer(options=options, host=host)
    assert found.status == (200 if allowed else 421)
    if not allowed:
        assert found.json["error"]["code"] == "host"


def test_any_name_is_allowed_on_other_addresses():
    """Unless names are given; `*` allows any anywhere."""
    assert allowed_hosts("0.0.0.0") == allowed_hosts("127.0.0.1", ["*"]) == frozenset()
    assert allowed_hosts("0.0.0.0", ["A.org"]) == {"a.org"}
    assert "localhost" in allowed_hosts("::1")


def test_a_body_of_a_gigabyte_costs_no_memory():
    """It is read to its end, and refused: a client that is cut off sees no answer."""
    read = []

    async def chunks():
        for _ in range(1024):
            read.append(2**20)
            yield b"x" * 2**20

    async def work(app, _):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport) as client:
            url = "http://127.0.0.1/v1/translate"
            tracemalloc.start()
            found = await client.post(url, content=chunks())
            assert tracemalloc.get_traced_memory()[1] < 2**24
            assert (found.status_code, sum(read)) == (413, 2**30)
            error = found.json()["error"]
            assert (error["code"], error["limit"]) == ("body_too_large", 2048)

    try:
        served(work, max_body=2048)
    finally:
        tracemalloc.stop()
    exactly = {"text": "a " * 1018}
    options = {"max_body": 2048}
    assert answer("/v1/translate", "POST", exactly, options).status == 200


ORIGIN = "https://example.org"
ASKED = {"origin": ORIGIN, "access_control_request_method": "POST"}


def test_no_origin_is_allowed_by_default():
    """The page of the server needs none."""
    found = answer(method="OPTIONS", **ASKED)
    assert found.status == 405
    assert "access-control-allow-origin" not in found.headers


@pytest.mark.parametrize("origins", [["*"], [ORIGIN, "https://example.com"]])
def test_pages_of_allowed_origins_may_ask(origins):
    """Preflight, answers and errors; never with credentials."""
    options = {"cors": origins}
    before = answer("/v1/translate", "OPTIONS", options=options, **ASKED)
    assert before.status == 200
    assert "POST" in before.headers["access-control-allow-methods"]
    assert "Authorization" in before.headers["access-control-allow-headers"]
    for path in ("/v1/models", "/nothing"):
        after = answer(path, options=options, origin=ORIGIN)
        for found in (before, after):
            expected = "*" if origins == ["*"] else ORIGIN
            assert found.headers["access-control-allow-origin"] == expected
            assert "access-control-allow-credentials" not in found.headers
        assert "Retry-After" in after.headers["access-control-expose-headers"]


@pytest.mark.parametrize("origin", ["https://example.org.evil.com", "null", ""])
def test_pages_of_other_origins_read_nothing(origin):
    """An origin is compared as a whole."""
    found = answer(options={"cors": [ORIGIN]}, origin=origin)
    assert "access-control-allow-origin" not in found.headers
    assert found.headers["vary"] == "Origin"
