"""``jaxformer serve`` as its operators and clients meet it: a process with a port."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from serving.opened_page import Page
from system.served import SENTENCES, Server, lines

import runs
from jaxformer.translation.translator import Translator


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.copy(runs.random_run(), tmp_path_factory.mktemp("served") / "run")


@pytest.fixture(scope="module")
def server(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return a server that is ready."""
    made = Server(
        tmp_path_factory.mktemp("server"), f"--workdir={run}", "--rows=4", "--grace=20"
    )
    made.line("ready")
    yield made
    made.end()


@pytest.fixture(scope="module")
def reference() -> Translator:
    return Translator.load(runs.random_run())


def test_answers_are_the_translators(server, reference):
    """One after the other, many in a request, and from many clients at once."""
    expected = reference.translate(SENTENCES)
    assert server.translate(*SENTENCES, split_sentences=False) == expected
    with ThreadPoolExecutor(12) as pool:
        found = pool.map(
            lambda text: server.translate(text, split_sentences=False), SENTENCES
        )
        assert [text for (text,) in found] == expected


def test_the_page_shows_the_model_at_work(server, browse):
    """A text is translated as by the model; another word is taken; attention, steps and
    the request are shown.
    """
    text = next(text for text in SENTENCES if server.translate(text)[0].split()[1:])
    page = Page(browse(server.url + "/"), None, server.url)
    page.wait(lambda: page.find("#source option"))
    page.translate(text)
    assert [page.output.removesuffix("unfinished")] == server.translate(text)
    page.words()[0].click()
    page.wait(lambda: page.find("[role=option]"), 60)
    words = page.texts("[role=option] b")
    page.find("[role=option]")[1].click()
    page.wait(lambda: "translated again" in page.text("#status"), 60)
    assert page.output.startswith(words[1])
    page.open_tab("Attention")
    sides = [page.texts(f".tokens.side{side} button") for side in (0, 1)]
    translation = page.output.removesuffix("unfinished")
    maps = server.post("/v1/attention", {"text": text, "translation": translation})
    assert sides == [maps.json()[name] for name in ("target_tokens", "source_tokens")]
    page.open_tab("Steps")
    assert page.texts("#Steps li > b") == sides[0]
    page.open_tab("API")
    assert f"{server.url}/v1/translate" in page.text("#API pre")


def test_it_is_alive_while_it_searches(server):
    """It answers several times before a text is translated."""
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(server.translate, lines(80)) for _ in range(4)]
        answers = 0
        with httpx.Client(base_url=server.url, timeout=60) as client:
            while not any(each.done() for each in running):
                assert client.get("/health").status_code == 200
                answers += 1
        for each in running:
            each.result()
    assert answers > 2


@pytest.mark.slow
def test_nothing_is_compiled_once_it_is_warm(server):
    server.wait_for(server.is_warm, 300)
    programs = server.get("/ready").json()["of"]
    assert f"compiling {programs} programs" in server.log.read_text()
    for options in ({}, {"n_best": 3}, {"alignment": "soft"}, {"prefixes": ["A"]}):
        server.translate(SENTENCES[3], **options)
    server.translate(" ".join(SENTENCES), split_sentences=False)
    assert server.metric('jaxformer_compilations_total{when="ready"}') == 0


def resident(server: Server) -> int:
    """Return the memory of a server in kilobytes."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_requests_leave_no_memory_behind(server):
    server.wait_for(server.is_warm, 300)
    words = [text.split()[0] for text in SENTENCES]

    def ask(count: int) -> None:
        with contextlib.closing(http.client.HTTPConnection(*server.address)) as client:
            for number in range(count):
                body = json.dumps({"text": words[number % len(words)]})
                headers = {"Content-Type": "application/json"}
                client.request("POST", "/v1/translate", body, headers)
                answer = client.getresponse()
                assert (answer.status, bool(answer.read())) == (200, True)

    sizes = []
    for count in (1_000, 9_000):
        with ThreadPoolExecutor(20) as pool:
            for each in [pool.submit(ask, count // 20) for _ in range(20)]:
                each.result()
        sizes.append(resident(server))
    assert sizes[1] < 1.1 * sizes[0]


def test_a_client_that_hangs_up_frees_its_place(server):
    body = json.dumps({"text": lines(80)}).encode()
    before = server.metric("jaxformer_cancelled_total")
    with socket.create_connection(server.address) as client:
        head = "POST /v1/translate HTTP/1.1\r\nHost: localhost\r\n"
        kind = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sendall((head + kind).encode() + body)
        server.wait_for(lambda: server.metric("jaxformer_queue_sentences") > 20)
    server.wait_for(lambda: server.metric("jaxformer_cancelled_total") == before + 1)
    assert server.metric("jaxformer_queue_sentences") == 0


def is_open(server: Server) -> bool:
    """Whether a server accepts a connection."""
    try:
        socket.create_connection(server.address).close()
    except ConnectionRefusedError:
        return False
    return True


def test_requests_in_flight_are_answered_at_the_end(server):
    """New ones are refused meanwhile. The last test of this server."""
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(server.translate, lines(80)) for _ in range(4)]
        # The fifth is that for the metrics.
        server.wait_for(lambda: server.metric("jaxformer_requests_in_flight") == 5)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for(lambda: not is_open(server))
        assert not all(each.done() for each in running)
        for each in running:
            assert each.result()[0].count("\n") == 79
    assert server.process.wait(20) == 0


def test_mistakes_of_the_command_line_have_one_line_each(tmp_path):
    given = f"--workdir={runs.random_run()}"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        outcome = runs.call("serve", given, f"--port={port}")
    assert outcome.code == 1
    assert outcome.error.startswith(f"cannot listen on 127.0.0.1, port {port}: ")
    for options, code, words in (
        ([f"--workdir={tmp_path}"], 1, "config.json"),
        ([given, given], 1, "both translate en-de"),
        ([], 2, "--workdir is missing"),
        ([given, "--root_path=mt"], 2, "--root_path must be like /mt"),
        ([given, "--cors=example.org"], 2, "--cors must be like https://example.org"),
        ([given, "--trusted_proxy=localhost"], 2, "not 'localhost': an IP address"),
        ([given, "--host=no.such.host.invalid"], 1, "cannot listen on no.such"),
        ([given, f"--keys={tmp_path}/keys"], 1, "no file"),
    ):
        outcome = runs.call("serve", "--port=0", *options)
        assert outcome.code == code, outcome
        assert words in outcome.error
