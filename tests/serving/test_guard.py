"""What every request passes: ids, hosts, sizes and origins."""

import pytest
from serving import fake_clock
from serving.guarded import CONFIG, client_of, make_guard

from jaxformer.serving.guard import allowed_hosts


def ask(method, path, guard=None, **options):
    """Return the answer to a request."""

    async def main():
        app = guard or make_guard()[0]
        base_url = options.pop("base_url", "http://localhost:5000")
        async with client_of(app, base_url) as client:
            return await client.request(method, path, **options)

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
    for headers, most in (({"Content-Length": "1073741824"}, 0), ({}, 1500 + 2**20)):
        sent = []

        async def chunks(sent=sent):
            for size in (1500, *[2**20] * 1023):
                sent.append(size)
                yield b"x" * size

        answer = ask("POST", "/", guard, content=chunks(), headers=headers)
        assert (answer.status_code, sum(sent)) == (413, most)
        assert "connection" not in answer.headers
        assert answer.json()["error"]["limit"] == CONFIG.max_body
    assert seen == 1500
    assert [call.code for call in calls] == ["body_too_large"] * 2
    body = b'{"text": "' + b"x" * 2036 + b'"}'  # exactly the limit
    assert ask("POST", "/translate/x", content=body).status_code == 200


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
