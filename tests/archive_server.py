"""A server of files on this machine that fails on demand."""

import io
import tarfile
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def tar_gz(members):
    """Pack files by name, as corpora are published."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return content.getvalue()


class ArchiveServer:
    """Files by path, and what to do with the coming requests for each; without a
    plan a request is answered well.
    """

    def __init__(self, address):
        self.address = address
        self.files = {}
        self.plans = {}
        self.requests = []  # (path, the first byte that was asked for)
        self.released = threading.Event()

    def serve(self, path, content, *plan):
        self.files[path] = content
        self.plans[path] = list(plan)
        return f"{self.address}{path}"

    def answer(self, handler):
        requested = handler.headers["Range"]
        start = (
            int(requested.removeprefix("bytes=").removesuffix("-")) if requested else 0
        )
        self.requests.append((handler.path, start))
        if handler.path not in self.files:
            return status(404)(self, handler, b"", 0)
        plan = self.plans[handler.path]
        return (plan.pop(0) if plan else well)(
            self, handler, self.files[handler.path], start
        )


def _head(handler, code, length, **headers):
    handler.send_response(code)
    if length is not None:
        handler.send_header("Content-Length", str(length))
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()


def _answer(handler, content, start, stop=None):
    """Answer with a range, of which only the bytes before ``stop`` are sent."""
    if start >= len(content) > 0:
        return _head(handler, 416, 0, Content_Range=f"bytes */{len(content)}")
    if start:
        _head(
            handler,
            206,
            len(content) - start,
            Content_Range=f"bytes {start}-{len(content) - 1}/{len(content)}",
        )
    else:
        _head(handler, 200, len(content))
    handler.wfile.write(content[start:stop])
    return None


def well(server, handler, content, start):
    _answer(handler, content, start)


def status(code):
    def plan(server, handler, content, start):
        _head(handler, code, 0)

    return plan


@contextmanager
def archive_server():
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            served.answer(self)

        def log_message(self, *arguments):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served = ArchiveServer(f"http://127.0.0.1:{http.server_address[1]}")
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield served
    finally:
        served.released.set()
        http.shutdown()
        thread.join()
        http.server_close()
