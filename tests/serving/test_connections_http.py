"""Requests of a connection: what is parsed, how far, and in which order."""

import contextlib
import socket
import threading
import time

import pytest
from serving.fake_engine import FakeEngine, slowly
from serving.running_server import CLOSE, HEALTH, TRANSLATE, read, running, tell
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from jaxformer.serving.connections import Limited

CHUNKED = (
    b"POST /v1/translate HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
)


def test_trailers_are_no_headers():
    """Or they would say what nobody checked, such as how the body is packed."""
    end = b"0\r\nContent-Encoding: gzip\r\nContent-Type: text/plain\r\n\r\n"
    body = b"10\r\n%s\r\n%s" % (b'{"text":"short"}', end)
    with running() as address:
        assert b'"text":"SHORT"' in tell(address, CHUNKED + body)


@pytest.mark.parametrize(
    "parts",
    [
        (b"GET /health HTTP/1.1\r\n", b"X: 123456789012\r\n"),  # a head
        (b"GET /", b"123456789012"),
        (CHUNKED + b"1\r\n{\r\n0\r\n", b"X: 123456789012\r\n"),  # trailers
        (CHUNKED + b"1", b";a=1234567"),  # of a chunk
        (b"", b"\r\n" * 9),
    ],
)
def test_bytes_without_end_are_refused(parts):
    """Before the head of a request or a part of its body has come."""
    first, often = parts
    with running() as address, socket.create_connection(address) as client:
        client.settimeout(10)
        client.sendall(first + often * 10_000)
        answer = client.recv(65536)
    assert read(answer) == (431, "headers_too_large")


def test_the_heads_of_requests_are_not_added_up():
    long = HEALTH[:-2] + b"X: %s\r\n\r\n" % (b"1" * 15_000)
    with running() as address:
        assert tell(address, long * 5 + CLOSE).count(b"HTTP/1.1 200 ") == 6


def test_a_long_head_is_refused_though_it_came_during_an_answer():
    asked = TRANSLATE + HEALTH[:-2] + b"X: 1\r\n" * 9000 + b"X: " + b"1" * 60_000
    with (
        running(FakeEngine(before=slowly(0.2))) as address,
        socket.create_connection(address, 15) as client,
    ):
        client.sendall(asked)
        time.sleep(0.1)
        client.sendall(b"1" * 9000)
        found = b"".join(iter(lambda: client.recv(65536), b""))
    assert found.index(b"SLOW") < found.index(b"HTTP/1.1 431 ")


def test_requests_that_come_at_once_are_answered_in_turn():
    """Also those in the packet of a body, and what is wrong after them."""
    searched = []
    engine = FakeEngine(before=lambda *_: searched.append(time.sleep(0.1)))
    with running(engine) as address:
        found = tell(address, TRANSLATE + HEALTH + TRANSLATE + b"\0\r\n\r\n")
    assert len(searched) == 2
    codes = [part[:3] for part in found.split(b"HTTP/1.1 ")[1:]]
    assert codes == [b"200", b"200", b"200", b"400"]
    assert b'"text":"SLOW"' in found
    assert found.index(b"SLOW") < found.index(b"ok") < found.rindex(b"SLOW")


def test_a_client_that_asks_much_at_once_is_read_as_it_is_answered():
    """What follows a request that is being answered waits in the client's socket."""
    ready = threading.Event()
    with (
        running(FakeEngine(before=lambda *_: ready.wait(20))) as address,
        socket.create_connection(address) as client,
    ):
        client.settimeout(1)
        client.sendall(TRANSLATE)
        with pytest.raises(TimeoutError):
            client.sendall(HEALTH * 2**19)
        ready.set()
        client.settimeout(10)
        found = b""
        while b'"text":"SLOW"' not in found:
            found += (part := client.recv(65536))
            assert part


def test_no_more_is_read_ahead_because_answers_are_fast(monkeypatch):
    """Or a client would fill the memory."""
    sizes, parse = [], Limited._parse

    def measured(self):
        sizes.append(len(self._ahead))
        parse(self)

    monkeypatch.setattr(Limited, "_parse", measured)
    with running() as address, socket.create_connection(address, 10) as client:
        client.setblocking(False)
        while len(sizes) < 200:
            with contextlib.suppress(BlockingIOError):
                client.send(HEALTH * 2**10)
                client.recv(2**20)
    assert max(sizes) <= 2**16 + 2**18  # and what was read last


def test_a_chunk_is_parsed_as_one_whatever_lines_it_has(monkeypatch):
    """Or a body of line ends would keep the server from others."""
    parts = []
    monkeypatch.setattr(
        HttpToolsProtocol,
        "on_body",
        lambda self, part, take=HttpToolsProtocol.on_body: (
            parts.append(part),
            take(self, part),
        ),
    )
    body = b"\n" * 90_000 + b'{"text":"short"}'
    asked = CHUNKED + b"%x;a=b\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    with running() as address:
        assert b'"text":"SHORT"' in tell(address, asked)
    assert b"".join(parts) == body
    assert len(parts) < 1000


def test_the_lines_of_chunks_are_not_added_up():
    body = b"".join(
        b"1;a=%s\r\n%c\r\n" % (b"b" * 9000, byte) for byte in b'{"text":"short"}'
    )
    with running() as address:
        assert b'"text":"SHORT"' in tell(address, CHUNKED + body + b"0\r\n\r\n")


def test_a_request_of_many_parts_is_parsed_in_turns(monkeypatch):
    """Other connections would else wait for it."""
    monkeypatch.setattr("jaxformer.serving.connections._MOST_PARTS", 3)
    body = b"".join(b"1\r\n%c\r\n" % byte for byte in b'{"text":"short"}')
    with running() as address:
        found = tell(address, HEALTH + CHUNKED + body + b"0\r\n\r\n")
    assert found.count(b"HTTP/1.1 200 ") == 2
    assert b'"text":"SHORT"' in found


def test_white_space_ends_no_value_of_a_header():
    asked = TRANSLATE.replace(b"\r\n\r\n", b" \t\r\nConnection: close \r\n\r\n")
    with running() as address:
        assert b'"text":"SLOW"' in tell(address, asked)


def test_an_offer_of_another_protocol_is_not_taken():
    """Java's client offers HTTP/2 with each request."""
    offer = b"\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    asked = TRANSLATE.replace(b"\r\n", offer, 1)
    with running() as address:
        found = tell(address, asked + asked + CLOSE)
        once = tell(address, TRANSLATE + CLOSE)
        chunks = b'9\r\n{"text":"\r\nc\r\nUpgrade: a"}\r\n0\r\n\r\n'
        assert b'"text":"UPGRADE: A"' in tell(address, CHUNKED + chunks)
    assert found.count(b"HTTP/1.1 200 ") == 3
    assert found.count(b"SLOW") == 2 * once.count(b"SLOW") > 0


@pytest.mark.parametrize(
    ("host", "status"),
    [(b"", 400), (b"Host: localhost\r\nHost: b\r\n", 400), (b"Host: b\r\n", 200)],
)
def test_a_request_has_one_host(host, status):
    asked = CLOSE.replace(b"Host: localhost\r\n", host)
    with running() as address:
        assert tell(address, asked).startswith(b"HTTP/1.1 %d " % status)
        old = asked.replace(b"/1.1", b"/1.0", 1)
        assert tell(address, old).startswith(b"HTTP/1.1 200 ") == (host.count(b"H") < 2)


def test_a_target_may_be_a_whole_url():
    """A server must accept it, says RFC 9112, section 3.2.2."""
    asked = CLOSE.replace(b"/health", b"http://localhost/health")
    with running() as address:
        assert tell(address, asked).endswith(b'{"status":"ok"}')
        found = tell(address, asked.replace(b"/health", b""))
        assert read(found) == (400, "bad_request")
        assert b"the target must have a path" in found
