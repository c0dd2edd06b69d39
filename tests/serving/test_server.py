"""The server around the application: its socket, and what it tells its operator."""

import contextlib
import socket
import time

import pytest
from serving.fake_engine import FakeEngine, slowly
from serving.running_server import CLOSE, HEALTH, TRANSLATE, read, running, tell

from jaxformer.errors import InputError
from jaxformer.serving.server import bind, name_url, notify


def test_a_port_is_bound_once():
    with contextlib.closing(bind("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
        assert name_url(bound, "/mt") == f"http://127.0.0.1:{port}/mt"
        with pytest.raises(InputError, match=f"port {port}: .*; choose another --port"):
            bind("127.0.0.1", port)


def test_an_answer_waits_for_no_acknowledgement_of_its_head():
    """Else its body comes 40 ms later."""
    with contextlib.closing(bind("127.0.0.1", 0)) as bound:
        client = socket.create_connection(bound.getsockname())
        with contextlib.closing(client), contextlib.closing(bound.accept()[0]) as own:
            assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_missing_service_manager_is_no_error(monkeypatch, tmp_path):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    notify("READY=1")


@pytest.mark.parametrize(
    "head",
    [b"1.0", b"1.1\r\nConnection: TE, close"],
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


def test_connections_beyond_the_limit_are_refused():
    """As many as the limit are answered."""
    with running(FakeEngine(before=slowly(0.5)), connections=3) as address:
        with contextlib.ExitStack() as stack:
            clients = [socket.create_connection(address, 10) for _ in range(3)]
            for client in clients:
                stack.enter_context(client).sendall(TRANSLATE)
            time.sleep(0.1)
            assert tell(address, CLOSE).startswith(b"HTTP/1.1 503 ")
            for client in clients:
                assert client.recv(12) == b"HTTP/1.1 200"
        time.sleep(0.1)
        assert tell(address, CLOSE).startswith(b"HTTP/1.1 200 ")


def test_requests_that_come_at_once_are_answered_in_turn():
    with running() as address:
        found = tell(address, TRANSLATE + HEALTH + TRANSLATE + CLOSE)
    assert found.count(b"HTTP/1.1 200 ") == 4
    assert found.index(b"SLOW") < found.index(b"ok") < found.rindex(b"SLOW")


@pytest.mark.parametrize(
    ("query", "header", "status"),
    [(45_000, 0, 200), (0, 15_000, 200), (1_000_000, 0, 400), (0, 1_000_000, 400)],
)
def test_a_head_has_a_limit_that_a_long_text_in_a_query_does_not_reach(
    query, header, status
):
    head = b"GET /health?%s HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX: %s\r\n\r\n"
    with running() as address, socket.create_connection(address, 10) as client:
        with contextlib.suppress(ConnectionError):  # what it no longer reads
            client.sendall(head % (b"q" * query, b"x" * header))
        assert client.recv(12) == b"HTTP/1.1 %d" % status
