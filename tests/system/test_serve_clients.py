"""A client of other people, and requests that nobody should send, against a real server
that needs a key.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import deepl
import pytest
from system.served import Server

import runs

pytestmark = pytest.mark.slow  # it starts a server

KEY = "a-secret-key-0123456789"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    keys = folder / "keys"
    keys.write_text(f"tests:{hashlib.sha256(KEY.encode()).hexdigest()}\n")
    made = Server(
        folder, f"--workdir={runs.random_run()}", "--rows=4", f"--keys={keys}"
    )
    made.line("ready")
    yield made
    made.end()


def test_a_client_without_a_key_is_refused(server):
    """In the words of its protocol, before its text is looked at."""
    body = {"q": "a", "source": "en", "target": "de", "api_key": "wrong"}
    answer = server.post("/translate", body)
    assert (answer.status_code, answer.json()) == (403, {"error": "Invalid API key"})
    client = deepl.DeepLClient("wrong", server_url=server.url)
    with contextlib.closing(client), pytest.raises(deepl.AuthorizationException):
        client.translate_text("a", target_lang="DE")
    with contextlib.closing(client), pytest.raises(deepl.AuthorizationException):
        client.get_usage()
    assert server.post("/v1/translate", {"text": "a"}).status_code == 403


def test_a_minute_of_what_its_document_allows_and_forbids_gets_no_500(server):
    """By schemathesis.

    A longer head than the server reads ends the connection, which a client that still
    sends may see as an error of the network: this is no failure of a check.
    """
    tool = shutil.which("schemathesis", path=str(Path(sys.executable).parent))
    assert tool
    done = subprocess.run(
        [
            *(tool, "run", f"{server.url}/openapi.json", "--max-time=60"),
            *("--checks=not_a_server_error", "--continue-on-failure"),
            *("-H", f"Authorization: Bearer {KEY}"),
        ],
        cwd=server.log.parent,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "= SUMMARY =" in done.stdout, done.stdout[-5000:]
    assert "= FAILURES =" not in done.stdout, done.stdout[-5000:]
    assert server.get("/ready").status_code == 200
