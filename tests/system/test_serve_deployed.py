"""A server as it is deployed: started by a service manager, and behind nginx with the
configuration of docs/serve.md.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from serving.opened_page import Page
from system.served import SENTENCES, Server, lines

import runs

NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
WORD = SENTENCES[0].split()[0]

behind_nginx = pytest.mark.skipif(
    NGINX is None or sys.platform != "linux",  # of 127.0.0.0/8 others have one address
    reason="needs nginx on Linux",
)


@pytest.fixture(scope="module")
def notices(tmp_path_factory: pytest.TempPathFactory) -> Iterator[socket.socket]:
    """Return the socket of a service manager."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path_factory.mktemp("manager") / "notices"))
        receiver.settimeout(60)
        yield receiver


@pytest.fixture(scope="module")
def server(
    notices: socket.socket, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """Return a server for whose requests from one address are at most 30 sentences."""
    made = Server(
        *(tmp_path_factory.mktemp("server"), f"--workdir={runs.random_run()}"),
        *("--rows=1", "--rate=30", "--root_path=/mt", "--trusted_proxy=127.0.0.1"),
        "--log_addresses",
        NOTIFY_SOCKET=notices.getsockname(),
    )
    assert notices.recv(64) == b"READY=1"
    made.line("ready")
    yield made
    made.end()


class Proxy:
    """An nginx in front of a server."""

    def __init__(self, folder: Path, server: Server) -> None:
        configuration = folder / "nginx.conf"
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        page = (runs.ROOT / "docs" / "serve.md").read_text()
        (site,) = re.findall(r"```text\n(limit_conn_zone.*?)```", page, re.DOTALL)
        for old, new in (
            ("listen 80;", f"listen {address};"),
            ("http://127.0.0.1:5000;", server.url.replace("/mt", ";")),
        ):
            assert site.count(old) == 1
            site = site.replace(old, new)
        folders = "".join(
            f"{kind}_temp_path {folder}/{kind};\n"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        # Its workers read folders that only this user may read.
        user = "user root;\n" if os.geteuid() == 0 else ""
        configuration.write_text(
            f"{user}pid {folder}/pid;\nerror_log {folder}/log;\ndaemon off;\n"
            "events {}\nhttp {\naccess_log off;\n" + folders + site + "}\n"
        )
        self.url = f"http://{address}/mt"
        assert NGINX is not None
        self.process = subprocess.Popen(
            [NGINX, "-e", "stderr", "-c", str(configuration)],
            stdin=subprocess.DEVNULL,
        )
        end = time.monotonic() + 20
        with self.client("127.0.0.9") as client:
            while True:
                assert time.monotonic() < end
                assert self.process.poll() is None
                with contextlib.suppress(httpx.ConnectError):
                    client.get("/health")
                    return

    def client(self, address: str) -> httpx.Client:
        """Return a client of an address."""
        transport = httpx.HTTPTransport(local_address=address)
        return httpx.Client(base_url=self.url, transport=transport, timeout=60)

    def translate(self, address: str, text: str) -> str:
        """Translate by a connection of its own."""
        with self.client(address) as client:
            answer = client.post("/v1/translate", json={"text": text})
            assert answer.status_code == 200, answer.text
            return answer.json()["translations"][0]["text"]


@pytest.fixture(scope="module")
def proxy(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    made = Proxy(tmp_path_factory.mktemp("nginx"), server)
    yield made
    made.process.terminate()
    made.process.wait(20)


@behind_nginx
def test_the_page_works_under_a_path_behind_nginx(proxy, browse):
    """Also where its address lacks the last slash."""
    page = Page(browse(proxy.url), None, proxy.url)
    page.wait(lambda: page.find("#source option"))
    page.translate(SENTENCES[0])
    shown = page.output.removesuffix("unfinished")
    assert shown == proxy.translate("127.0.0.2", SENTENCES[0])
    assert page.driver.current_url.startswith(f"{proxy.url}/")


@behind_nginx
def test_nginx_passes_the_events_of_a_stream_on_as_they_come(proxy):
    """Not as one block, which is what it makes of another answer of this size."""
    with (
        proxy.client("127.0.0.3") as client,
        client.stream("POST", "/v1/translate/stream", json={"text": lines(12)}) as told,
    ):
        blocks = list(told.iter_raw())
    kinds = re.findall(rb"^event: (\w+)", b"".join(blocks), re.MULTILINE)
    assert kinds == [b"start", *[b"sentence"] * 12, b"done"]
    assert len(blocks) > 4  # of these events it makes three


@behind_nginx
def test_rates_are_those_of_the_clients_of_nginx(proxy, server):
    """Whatever address a client says that it has."""
    texts = {"texts": [WORD] * 30}
    found = []
    for address in ("127.0.0.4", "127.0.0.4", "127.0.0.5"):
        said = {"X-Forwarded-For": f"10.0.0.{len(found)}"}
        with proxy.client(address) as client:
            found.append(client.post("/v1/translate", json=texts, headers=said))
    assert [answer.status_code for answer in found] == [200, 429, 200]
    assert int(found[1].headers["Retry-After"]) > 0
    assert found[1].json()["error"]["code"] == "rate"
    server.wait_for(lambda: '"address":"127.0.0.5"' in server.log.read_text())
    assert "10.0.0." not in server.log.read_text()


def test_a_service_manager_is_told_and_a_second_ctrl_c_ends_at_once(server, notices):
    """The last test of this server, which has a long request by then."""
    with (
        httpx.Client(base_url=server.url, timeout=60) as client,
        client.stream("POST", "/v1/translate/stream", json={"text": lines(30)}),
    ):
        server.process.send_signal(signal.SIGINT)
        assert notices.recv(64) == b"STOPPING=1"
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(10) == 130
