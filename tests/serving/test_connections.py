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


@pytest.mark.parametrize(
    "head",
    [b"1.0", b"1.1\r\nConnection: close", b"1.1\r\nConnection: TE, close"],
)
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
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"GET /\0 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /v1/translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0",
        b"GET /health HTTP/1.1\r\nHost: a\r\n%s: gzip\r\n%s: chunked\r\n\r\n0"
        % ((b"Transfer-Encoding",) * 2),
        b"CONNECT /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n",
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
