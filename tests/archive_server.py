"""A server of files on this machine."""

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
    """Files by path, and the paths that were asked for."""

    def __init__(self, address):
        self.address, self.files, self.requests = address, {}, []

    def serve(self, path, content):
        self.files[path] = content
        return f"{self.address}{path}"


@contextmanager
def archive_server():
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            served.requests.append(self.path)
            content = served.files.get(self.path)
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *arguments):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served = ArchiveServer(f"http://127.0.0.1:{http.server_address[1]}")
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield served
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
