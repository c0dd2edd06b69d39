"""Connections: their number, their time, and clients that speak no HTTP."""

import contextlib
import http.client
import socket
import threading
import time

import pytest
from serving.fake_engine import FakeEngine, slowly
from serving.running_server import CLOSE, HEALTH, TRANSLATE, read, running, tell


@pytest.mark.parametrize("first", [b"", HEALTH])
@pytest.mark.parametrize("data", [b"", b"GET /hea"])
def test_half_a_request_is_closed(first, data):
    """Also the second one of a connection; silence after an answer may last longer."""
    with (
        running(body_timeout=0.3) as address,
        socket.create_connection(address) as client,
    ):
        client.settimeout(10)
        client.sendall(first)
        answer = b""
        while first and not answer.endswith(b'{"status":"ok"}'):
            answer += client.recv(65536)
        begun = time.monotonic()
        client.sendall(data)
        assert client.recv(65536) == b""
        seconds = time.monotonic() - begun
        assert seconds < (4 if data or not first else 8)


def test_a_slow_answer_is_not_cut_by_the_limit_of_the_head():
    asked = TRANSLATE.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
    with running(FakeEngine(before=slowly(0.6)), body_timeout=0.2) as address:
        assert b'"text":"SLOW"' in tell(address, asked)


def send_often(client):
    for _ in range(200):
        client.sendall(HEALTH)
        time.sleep(0.05)


def test_a_client_that_reads_nothing_loses_its_connection():
    """One that reads slowly does not. The answers are more than sockets hold."""
    asked = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(running(timeout=0.3))
        silent, slow = (
            stack.enter_context(socket.create_connection(address)) for _ in range(2)
        )
        for client in (silent, slow):
            client.settimeout(10)
            client.sendall(asked * (99 if client is slow else 999))
        slow.sendall(CLOSE)
        found = b""
        while part := slow.recv(2**17):
            found += part
            time.sleep(0.01)
        assert found.count(b"HTTP/1.1 200 ") == 100
        with pytest.raises(ConnectionError):
            send_often(silent)


@pytest.mark.parametrize("head", [b"1.0", b"1.1\r\nConnection: close"])
@pytest.mark.parametrize(
    ("path", "length", "found"),
    [
        (b"v1/translate", 900_000, (413, "body_too_large")),
        (b"x", 90, (404, "not_found")),
    ],
)
def test_a_body_that_nobody_reads_loses_no_answer(head, path, length, found):
    """Also where the connection closes after it, as that of nginx does."""
    lines = b"POST /%s HTTP/%s\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    with running() as address, socket.create_connection(address) as client:
        client.settimeout(10)
        client.sendall(lines % (path, head, length))
        for _ in range(2):
            time.sleep(0.1)
            client.sendall(b"a" * (length // 2))
        assert read(b"".join(iter(lambda: client.recv(65536), b""))) == found


@pytest.mark.parametrize(
    "data",
    [
        b"HELLO\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",  # TLS
        b"GET /\0 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /v1/translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
    ],
)
def test_what_is_no_http_is_refused_as_json(data):
    with running() as address:
        assert read(tell(address, data)) == (400, "bad_request")


def test_connections_beyond_the_limit_are_refused():
    with running(FakeEngine(before=slowly(0.5)), connections=2) as address:
        with contextlib.ExitStack() as stack:
            for _ in range(2):
                client = socket.create_connection(address)
                stack.enter_context(client).sendall(TRANSLATE)
            time.sleep(0.1)
            answer = tell(address, HEALTH)
            assert read(answer) == (503, "connections")
            assert b"\r\nRetry-After: 1\r\n" in answer
        time.sleep(0.1)
        assert tell(address, CLOSE).startswith(b"HTTP/1.1 200 ")


LONG = 2**24  # bytes, more than sockets hold


def half_a_head(client):
    client.sendall(HEALTH[:9])


def half_a_body(client):
    client.sendall(TRANSLATE[:-3])


def silence(client):
    pass


def silence_after_an_answer(client):
    client.sendall(HEALTH)
    answer = http.client.HTTPResponse(client)
    answer.begin()
    assert (answer.status, answer.read()) == (200, b'{"status":"ok"}')


def answers_nobody_reads(client):
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200)


def the_last_answer_nobody_reads(client):
    form = b"source=de&target=de&q=" + b"x" * LONG
    client.sendall(
        b"POST /translate HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Content-Type: application/x-www-form-urlencoded\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(form), form)
    )
    assert client.recv(9) == b"HTTP/1.1 "


@pytest.mark.parametrize(
    "begin",
    [
        silence,
        half_a_head,
        half_a_body,
        silence_after_an_answer,
        answers_nobody_reads,
        the_last_answer_nobody_reads,
    ],
)
def test_a_client_that_is_waited_for_keeps_no_other_out(begin):
    """Sooner than it would lose its connection anyway; those who wait are answered."""
    ready = threading.Event()
    with contextlib.ExitStack() as stack:
        engine = FakeEngine(before=lambda *_: ready.wait(20))
        limits = {"connections": 3, "max_characters": 0, "max_body": 2 * LONG}
        address = stack.enter_context(running(engine, **limits))
        stack.callback(ready.set)
        busy, *clients = (
            stack.enter_context(socket.create_connection(address)) for _ in range(3)
        )
        busy.sendall(TRANSLATE)
        for client in clients:
            begin(client)
        time.sleep(0.1)
        end = time.monotonic() + 4
        for _ in range(3):
            while not tell(address, CLOSE).startswith(b"HTTP/1.1 200 "):
                assert time.monotonic() < end
        ready.set()
        busy.settimeout(10)
        assert busy.recv(9) == b"HTTP/1.1 "


def test_few_of_the_connections_beyond_the_limit_are_told_so(monkeypatch):
    """More would take the files of the process."""
    monkeypatch.setattr("jaxformer.serving.connections._MOST_REFUSED", 1)
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(
            running(FakeEngine(before=slowly(1)), connections=1)
        )
        busy = stack.enter_context(socket.create_connection(address))
        busy.sendall(TRANSLATE)
        time.sleep(0.1)
        told, closed = (
            stack.enter_context(socket.create_connection(address)) for _ in range(2)
        )
        closed.settimeout(0.5)  # who is told has a second to ask
        with contextlib.suppress(ConnectionResetError):
            assert closed.recv(1) == b""
        told.settimeout(10)
        told.sendall(HEALTH)
        assert read(told.recv(65536)) == (503, "connections")


def test_connections_that_are_refused_take_no_places():
    """They stay for a second, in which those with a place may leave."""
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(
            running(FakeEngine(before=slowly(0.3)), connections=1)
        )
        busy = stack.enter_context(socket.create_connection(address))
        busy.sendall(TRANSLATE)
        time.sleep(0.1)
        refused = stack.enter_context(socket.create_connection(address))
        busy.settimeout(10)
        assert busy.recv(9) == b"HTTP/1.1 "
        busy.close()
        time.sleep(0.1)
        assert tell(address, CLOSE).startswith(b"HTTP/1.1 200 ")
        refused.settimeout(4)
        assert refused.recv(1) == b""


def test_silent_connections_give_way_the_oldest_first():
    """Those that speak keep their place."""
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(
            running(FakeEngine(before=slowly(0.5)), connections=3)
        )
        busy, silent, half = (
            stack.enter_context(socket.create_connection(address)) for _ in range(3)
        )
        busy.sendall(TRANSLATE)
        half.sendall(HEALTH[:9])
        time.sleep(0.1)
        assert tell(address, CLOSE).startswith(b"HTTP/1.1 200 ")
        silent.settimeout(1)
        with contextlib.suppress(ConnectionResetError):
            assert silent.recv(1) == b""
        half.sendall(HEALTH[9:])
        for client in (half, busy):
            client.settimeout(5)
            assert client.recv(9) == b"HTTP/1.1 "


def test_a_client_that_was_answered_gives_way_after_a_silent_one():
    """Though it came first: it may ask again."""
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(running(connections=2))
        answered, silent = (
            stack.enter_context(socket.create_connection(address, 4)) for _ in range(2)
        )
        time.sleep(0.1)
        silence_after_an_answer(answered)
        assert tell(address, CLOSE).startswith(b"HTTP/1.1 200 ")
        with contextlib.suppress(ConnectionResetError):
            assert silent.recv(1) == b""
        silence_after_an_answer(answered)


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


def test_an_offer_of_another_protocol_is_not_taken():
    """Java's client offers HTTP/2 with each request."""
    offer = b"\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    asked = TRANSLATE.replace(b"\r\n", offer, 1)
    with running() as address:
        found = tell(address, asked + asked + CLOSE)
        once = tell(address, TRANSLATE + CLOSE)
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


def test_a_target_may_be_a_whole_url():
    """A server must accept it, says RFC 9112, section 3.2.2."""
    asked = CLOSE.replace(b"/health", b"http://localhost/health")
    with running() as address:
        assert tell(address, asked).endswith(b'{"status":"ok"}')
