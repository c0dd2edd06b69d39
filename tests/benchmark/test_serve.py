"""What the server is measured with: its clients notice what is wrong, and the table
compares rounds.
"""

import asyncio
import contextlib
import json
import time

import pytest

import serve
from clients import Load

TEXTS = {f"text {number}": f"Text {number}" for number in range(20)}


@contextlib.asynccontextmanager
async def serving(answer):
    """Run a server of which a function answers; it is called with the JSON of a body,
    and returns the status and the JSON of the answer, or None to hang up.
    """

    async def handle(reader, writer):
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                (length,) = (
                    int(line.split(":")[1])
                    for line in head.lower().split("\r\n")
                    if line.startswith("content-length:")
                )
                found = answer(json.loads(await reader.readexactly(length) or "{}"))
                if found is None:
                    break
                body = json.dumps(found[1]).encode()
                head = f"HTTP/1.1 {found[0]} \r\nContent-Length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        yield Load(server.sockets[0].getsockname()[1], ["en", "de"], TEXTS)
        await asyncio.sleep(0.05)  # connections end


def translate(request):
    """Answer as a right server does."""
    return 200, {"translatedText": request["q"].capitalize()}


def load(answer, **arguments):
    """Load a server in a closed loop."""

    async def run():
        async with serving(answer) as own:
            how = {"clients": 3, "seconds": 0.2, "dropped": 0.1, "seed": 1}
            return await own.closed(**how | arguments)

    return asyncio.run(run())


def test_right_answers_are_counted_and_timed():
    """Answers of the first seconds are checked, and not timed."""
    found = load(translate, seconds=1.0, dropped=0.5)
    assert found["wrong"] == 0
    assert 0 < found["work"] < found["statuses"]["200"]
    assert 0 < found["p50"] <= found["p99"] < 1
    assert found["seconds"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("given", "statuses", "wrong"),
    [
        ((200, {"translatedText": "Text 99"}), {"200"}, True),
        ((200, {"error": "none"}), {"200"}, True),
        ((200, []), {"200"}, True),
        ((503, {"error": "queue"}), {"503"}, False),
        (None, {"0"}, False),
    ],
)
def test_an_answer_that_is_not_the_translation_is_noticed(given, statuses, wrong):
    """Be it another text, another form, a refusal or nothing."""
    found = load(lambda _: given)
    assert {*found["statuses"]} == statuses
    assert bool(found["wrong"]) == wrong
    if wrong:
        expected, got = found["examples"][0]
        assert expected in TEXTS.values()
        assert got != expected


def test_one_wrong_answer_among_many_is_found():
    """Each answer is compared with the translation of its own text."""

    def answer(request):
        text = "Text 4" if request["q"] == "text 3" else request["q"].capitalize()
        return 200, {"translatedText": text}

    found = load(answer)
    assert {(*pair,) for pair in found["examples"]} == {("Text 3", "Text 4")}
    assert found["wrong"] < found["statuses"]["200"]


def test_waiting_counts_in_the_open_loop():
    """A server that translates one text at a time, in 0.05 s, while forty a second
    arrive makes later ones wait. A closed loop does not show that.
    """

    def slow(request):
        time.sleep(0.05)
        return translate(request)

    async def run():
        async with serving(slow) as own:
            return await own.opened(rate=40.0, seconds=0.5, dropped=0.0, seed=1)

    found = asyncio.run(run())
    assert found["wrong"] == 0
    assert found["p99"] > 0.2


def test_ratios_are_medians_of_rounds():
    """Each rate is compared with the search of its own round."""

    def turn(rate):
        return {"work": rate, "seconds": 1.0, "p50": 0.1, "p99": 0.15}

    answers = {
        ("", serve.SEARCH): [turn(10), turn(20), turn(40)],
        ("64", serve.OURS): [turn(9), turn(20), turn(60)],
        ("64", serve.THEIRS): [turn(3), turn(2), turn(6)],
    }
    rows = serve.summarize(answers)
    assert [row["per_second"] for row in rows] == [20, 20, 3]
    assert [row["ratio"] for row in rows] == [None, 10, 1]
    figures = {row["figure"]: row["value"] for row in serve.compare(answers)}
    assert figures["64 clients, to libretranslate"] == 10
    assert figures["64 clients, to the search in its process"] == 1
    assert figures["64 clients, p99 / p50"] == pytest.approx(1.5)
