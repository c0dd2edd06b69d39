"""A client of other people, and requests that nobody should send, against a real server
that needs a key.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import deepl
import httpx
import pytest
from libretranslatepy import LibreTranslateAPI
from serving import bad_input
from serving.bad_input import check_error, send
from system.served import Server

import runs
from jaxformer.translation.translator import Translator

pytestmark = pytest.mark.slow  # it starts a server

KEY = "a-secret-key-0123456789"
SENTENCES = runs.sentences(12, longest=14)
AUTHORIZED = {"Authorization": f"Bearer {KEY}"}


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


@pytest.fixture(scope="module")
def expected() -> list[str]:
    return Translator.load(runs.random_run()).translate(SENTENCES)


def test_libretranslatepy(server, expected):
    client = LibreTranslateAPI(server.url, api_key=KEY)
    assert client.translate(SENTENCES[0], "en", "de") == expected[0]
    assert {own["code"] for own in client.languages()} == {"de", "en"}
    assert client.detect("This is a sentence.")[0]["language"] == "en"


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


@pytest.mark.parametrize(
    "protocol",
    [bad_input.LIBRETRANSLATE, bad_input.DEEPL, bad_input.NATIVE],
    ids=lambda own: own.path,
)
def test_each_bad_request_has_an_answer_in_the_form_of_its_protocol(server, protocol):
    """Never a 500 and never HTML, and the next request is translated."""
    wrong = {}
    good = protocol.path, protocol.body(), bad_input.JSON | AUTHORIZED
    for bad in bad_input.bad_requests(protocol):
        headers = bad.headers | AUTHORIZED
        status, found = send(server.url, bad.method, bad.path, bad.body, headers)
        if status not in bad.allowed:
            wrong[bad.name] = status, found
        if status != 200:
            check_error(bad.path, found)
    assert send(server.url, "POST", *good)[0] == 200
    assert not wrong


def test_connections_that_say_nothing_keep_nobody_out(server):
    """While there are fewer than the server takes."""
    address = urlsplit(server.url)
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            host = address.hostname, address.port
            stack.enter_context(socket.create_connection(host, 10))
        assert server.get("/languages").status_code == 200


def test_neither_texts_nor_keys_nor_addresses_are_kept(server, expected):
    """In the log and the metrics, after answers and errors of each protocol."""
    secret = "Xylophones"
    broken = f'{{"q": "{secret}", '.encode()
    for path in ("/translate", "/v2/translate", "/v1/translate"):
        for body in (broken, json.dumps({"text": secret, "q": [secret, 7]}).encode()):
            httpx.post(
                f"{server.url}{path}?api_key={KEY}&target_lang={secret}&source={secret}",
                content=body,
                headers=bad_input.JSON,
            )
    httpx.get(f"{server.url}/v2/translate?text={secret}&auth_key={KEY}")
    httpx.get(f"{server.url}/{secret}")
    parts = bad_input.part("q", secret).replace(b"--b", b"--c")
    httpx.post(f"{server.url}/translate", content=parts, headers=bad_input.MULTIPART)
    kept = server.log.read_text() + server.get("/metrics").text
    assert '"route":"/v2/translate"' in kept
    texts = [text for text in (*SENTENCES, *expected) if len(text) > 10]
    for word in (secret, KEY, "127.0.0.1", "sha256", *texts):
        assert word not in kept


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
