"""Clients of a translation server, in a process of their own, which check each answer.

They speak LibreTranslate's protocol over connections that stay open, as its own clients
do. :mod:`serve` starts this process and asks it for rounds of load.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
import math
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import turns
from turns import Message

DOCUMENT = 1000
"""Sentences of the document next to which a word is translated."""

_PATIENCE = 120.0  # seconds until a client gives up, later than any server
_IDLE = 2.0  # seconds after which a client does not trust a connection
_SHOWN = 3  # wrong answers

Pick: TypeAlias = Callable[[int], list[str]]
"""Returns so many texts, in turn."""


class Answer(NamedTuple):
    """What a server answered.

    Attributes:
        status: of HTTP; 0: the connection was lost or nothing came in time.
        content: of the answer.
        text: ``translatedText`` of it, if there is any.
    """

    status: int
    content: bytes = b""

    @property
    def text(self) -> Any:
        """Return ``translatedText``; None if the answer has none."""
        with contextlib.suppress(ValueError, AttributeError):
            return json.loads(self.content).get("translatedText")
        return None


class Client:
    """A client that keeps its connection."""

    def __init__(self, port: int) -> None:
        """Name the port of a server of this machine."""
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._used = 0.0

    async def ask(
        self, path: str, body: bytes = b"", *, method: str = "POST", pause: float = 0.0
    ) -> Answer:
        """Send a request and return its answer.

        Args:
            path: of the request.
            body: JSON.
            method: of the request.
            pause: seconds between the halves of the body; infinite: the second is never
                sent.
        """
        try:
            async with asyncio.timeout(_PATIENCE):
                await self.send(path, body, method=method, pause=pause)
                return await self._receive()
        except (OSError, EOFError, ValueError, TimeoutError):
            self.close()
            return Answer(0)

    async def send(
        self, path: str, body: bytes = b"", *, method: str = "POST", pause: float = 0.0
    ) -> None:
        """Send a request."""
        if time.monotonic() - self._used > _IDLE:
            self.close()
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        writer = self._streams[1]
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        half = len(body) // 2 if pause else len(body)
        writer.write(head.encode() + body[:half])
        await writer.drain()
        if pause and math.isfinite(pause):
            await asyncio.sleep(pause)
            writer.write(body[half:])
            await writer.drain()

    async def _receive(self) -> Answer:
        assert self._streams is not None
        reader = self._streams[0]
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        content = await reader.readexactly(int(headers.get("content-length", 0)))
        self._used = time.monotonic()
        if headers.get("connection") == "close":
            self.close()
        return Answer(int(first.split()[1]), content)

    def close(self) -> None:
        """Hang up."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


@dataclasses.dataclass
class Tally:
    """Answers, of which those within a window of time are timed."""

    begin: float = 0.0
    end: float = 0.0
    seconds: list[float] = dataclasses.field(default_factory=list)
    statuses: Counter[int] = dataclasses.field(default_factory=Counter)
    wrong: list[tuple[Any, Any]] = dataclasses.field(default_factory=list)

    def add(self, asked: float, answer: Answer, expected: Any) -> None:
        """Count an answer that has just come."""
        now = time.monotonic()
        self.statuses[answer.status] += 1
        if answer.status != 200:
            return
        if answer.text != expected:
            self.wrong.append((expected, answer.text))
        if self.begin <= now <= self.end:
            self.seconds.append(now - asked)

    def summarize(self) -> dict[str, Any]:
        """Return the work of the window, and what all answers were."""
        times = sorted(self.seconds) or [float("nan")]
        return {
            "work": len(self.seconds),
            "seconds": self.end - self.begin,
            "p50": statistics.median(times),
            "p99": times[int(0.99 * len(times))],
            "statuses": {str(code): own for code, own in self.statuses.items()},
            "wrong": len(self.wrong),
            "examples": self.wrong[:_SHOWN],
        }


class Load:
    """Rounds of load on a server.

    Attributes:
        port: of the server.
        languages: of source and target.
        expected: the translation of each text.
    """

    def __init__(
        self, port: int, languages: Sequence[str], expected: Mapping[str, str]
    ) -> None:
        self.port, self.languages, self.expected = port, languages, expected

    def pick(self, seed: int) -> Pick:
        """Return a source of the texts in a random order, again and again."""
        order = sorted(self.expected)
        random.Random(seed).shuffle(order)
        texts: Iterator[str] = itertools.cycle(order)
        return lambda count: list(itertools.islice(texts, count))

    def body(self, texts: str | Sequence[str]) -> bytes:
        """Write a request."""
        source, target = self.languages
        return json.dumps({"q": texts, "source": source, "target": target}).encode()

    async def translate(self, client: Client, text: str, tally: Tally) -> None:
        """Let a client translate a text."""
        asked = time.monotonic()
        answer = await client.ask("/translate", self.body(text))
        tally.add(asked, answer, self.expected[text])

    async def closed(
        self, clients: int, seconds: float, dropped: float, seed: int
    ) -> dict[str, Any]:
        """Let clients translate, each one text after the other.

        Args:
            clients: how many.
            seconds: that are measured.
            dropped: seconds before.
            seed: of the order of the texts.
        """
        tally, pick = _window(dropped, seconds), self.pick(seed)

        async def work() -> None:
            with contextlib.closing(Client(self.port)) as client:
                while time.monotonic() < tally.end:
                    (text,) = pick(1)
                    await self.translate(client, text, tally)

        await asyncio.gather(*(work() for _ in range(clients)))
        return tally.summarize()

    async def opened(
        self, rate: float, seconds: float, dropped: float, seed: int
    ) -> dict[str, Any]:
        """Send texts at random times, whether or not others have been answered; the
        times of answers begin where the text should have been sent.

        Args:
            rate: mean texts a second.
            seconds: that are measured.
            dropped: seconds before.
            seed: of the times and the order.
        """
        tally, pick, draw = _window(dropped, seconds), self.pick(seed), random.Random()
        draw.seed(seed)
        free: list[Client] = []

        async def ask(due: float) -> None:
            client = free.pop() if free else Client(self.port)
            (text,) = pick(1)
            answer = await client.ask("/translate", self.body(text))
            tally.add(due, answer, self.expected[text])
            free.append(client)

        due, asked = time.monotonic(), []
        while (due := due + draw.expovariate(rate)) < tally.end:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            asked.append(asyncio.create_task(ask(due)))
        await asyncio.gather(*asked)
        for client in free:
            client.close()
        return tally.summarize()

    async def many(self, requests: int, clients: int, seed: int) -> dict[str, Any]:
        """Let clients translate so many texts together."""
        tally, left = Tally(), iter(self.pick(seed)(requests))

        async def work() -> None:
            with contextlib.closing(Client(self.port)) as client:
                for text in left:
                    await self.translate(client, text, tally)

        await asyncio.gather(*(work() for _ in range(clients)))
        return tally.summarize()

    async def beside(self, times: int, seed: int) -> dict[str, Any]:
        """Translate the shortest text, first with nothing else to do and then next to
        a document of :data:`DOCUMENT` sentences.

        Returns:
            Also the most batches that it waited for.
        """
        word, tally, batches = min(self.expected, key=len), Tally(0.0, float("inf")), []
        texts = self.pick(seed)(DOCUMENT)
        with contextlib.closing(Client(self.port)) as client:
            for _ in range(times):
                await self.translate(client, word, tally)
            alone = statistics.median(tally.seconds)
            tally.seconds.clear()
            document = asyncio.create_task(self._document(texts))
            await self.until("queue_sentences", DOCUMENT // 2)
            while not document.done() and len(batches) < times:
                before = await self.metric("batch_sentences_count")
                await self.translate(client, word, tally)
                # The last one is its own.
                batches.append(await self.metric("batch_sentences_count") - before - 1)
            answer = await document
        tally.add(0.0, answer, "\n".join(self.expected[text] for text in texts))
        beside = statistics.median(tally.seconds[: len(batches)])
        most = max(batches)
        return {
            **tally.summarize(),
            "alone": alone,
            "beside": beside,
            "most_batches": most,
        }

    async def refused(
        self, clients: int, sentences: int, seconds: float
    ) -> dict[str, Any]:
        """Send documents of more sentences than a queue holds, each client one after
        the other, and a quarter of a second after a refusal the next.

        Returns:
            Also how many were refused, and the seconds until then.
        """
        tally, refusals = _window(0.0, seconds), list[float]()

        async def work(seed: int) -> None:
            pick = self.pick(seed)
            while time.monotonic() < tally.end:
                texts, asked = pick(sentences), time.monotonic()
                answer = await self._document(texts)
                if answer.status == 503:
                    refusals.append(time.monotonic() - asked)
                    await asyncio.sleep(0.25)
                else:
                    joined = "\n".join(self.expected[text] for text in texts)
                    tally.add(asked, answer, joined)

        await asyncio.gather(*(work(seed) for seed in range(clients)))
        times = sorted(refusals) or [float("nan")]
        return {
            **tally.summarize(),
            "refused": len(refusals),
            "refusal_p50": statistics.median(times),
            "refusal_p99": times[int(0.99 * len(times))],
        }

    async def _document(self, texts: Sequence[str]) -> Answer:
        with contextlib.closing(Client(self.port)) as client:
            return await client.ask("/translate", self.body("\n".join(texts)))

    async def metric(self, name: str, label: str = "") -> float:
        """Return the sum of one of the server's numbers, see :func:`read_metric`."""
        with contextlib.closing(Client(self.port)) as client:
            answer = await client.ask("/metrics", method="GET")
        return read_metric(answer.content.decode(), name, label)

    async def compiled(self) -> dict[str, Any]:
        """Return the count of programs that were compiled after the start."""
        return {"count": await self.metric("compilations_total", "ready")}

    async def until(self, name: str, least: float) -> None:
        """Wait until one of the server's numbers is at least so much."""
        async with asyncio.timeout(_PATIENCE):
            while await self.metric(name) < least:
                await asyncio.sleep(0.005)


def read_metric(text: str, name: str, label: str = "") -> float:
    """Return the sum of a number over its labels, or over those that contain a text."""
    return sum(
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.partition(" ")[0].partition("{")[0].removeprefix("jaxformer_") == name
        and label in line
    )


def _window(dropped: float, seconds: float) -> Tally:
    begin = time.monotonic() + dropped
    return Tally(begin, begin + seconds)


def begin(request: Message) -> Callable[[Message], Message]:
    """Take the server that is to be loaded."""
    load = Load(request["port"], request["languages"], request["expected"])

    def answer(request: Message) -> Message:
        kind, arguments = request["kind"], {**request}
        del arguments["kind"]
        if kind == "soak":
            from soak import Soak

            return asyncio.run(Soak(load).run(**arguments))
        return asyncio.run(getattr(load, kind)(**arguments))

    return answer


if __name__ == "__main__":
    turns.serve(begin)
