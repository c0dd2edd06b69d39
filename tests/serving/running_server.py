"""The real server around a fake engine, on a port of this machine."""

import contextlib
import json
import socket
import threading
import time

from serving.asgi import configure
from serving.fake_engine import FakeEngine

from jaxformer.serving.server import bind, make_server
from jaxformer.serving.service import Service

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
CLOSE = HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
BODY = json.dumps({"text": "slow"}).encode()
TRANSLATE = (
    b"POST /v1/translate HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(BODY)
) + BODY


@contextlib.contextmanager
def running(engine=None, service=None, **limits):
    """Serve with a fake engine, and yield the address."""
    loaded = [engine or FakeEngine()]
    service = service or Service(lambda: loaded, configure(**limits))
    server = make_server(service)
    with contextlib.closing(bind("127.0.0.1", 0)) as bound:
        thread = threading.Thread(target=server.run, args=([bound],))
        thread.start()
        try:
            end = time.monotonic() + 60
            while service.state != "ready":
                assert time.monotonic() < end
                time.sleep(0.005)
            yield bound.getsockname()
        finally:
            server.should_exit = True
            thread.join(10)


def tell(address, data, seconds=10.0):
    """Send bytes, and return all of the answer until the server closes."""
    with socket.create_connection(address) as client:
        client.settimeout(seconds)
        client.sendall(data)
        return b"".join(iter(lambda: client.recv(65536), b""))


def read(answer):
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head.lower()
    return int(head.split()[1]), json.loads(body)["error"]["code"]
