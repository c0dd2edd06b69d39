"""Load a server in every way that it meets, for as long as asked, and end it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import os
import random
import signal
import time
from collections import Counter
from typing import Any

from clients import Answer, Client, Load, Pick, read_metric

_WORKERS = 24
_ENDING = 20  # documents that are in work when the server ends
_GRACE = 30.0  # seconds in which the server ends, its default

# Paths, bodies and the status of the answer; "" is a GET.
_BAD: tuple[tuple[str, str, int], ...] = (
    ("/translate", "{", 400),
    ("/translate", "[]", 400),
    ("/translate", '{"q": 5, "source": "en", "target": "de"}', 400),
    ("/translate", '{"q": "One."}', 400),
    ("/translate", '{"q": "One.", "source": "zz", "target": "de"}', 400),
    ("/v1/translate", '{"text": "One.", "n_best": -1}', 400),
    ("/v2/translate", '{"text": "One.", "target_lang": "DE", "glossary_id": "a"}', 400),
    ("/translate", f'{{"q": "{"a " * 2**20}"}}', 413),
    ("/nothing", "", 404),
    ("/translate", "", 405),
)


class Soak:
    """A mixed load.

    Attributes:
        answers: how many came of each kind of request and status.
        faults: what should not have come.
    """

    def __init__(self, load: Load) -> None:
        self._load = load
        self.answers: Counter[str] = Counter()
        self.faults: list[str] = []

    async def run(self, seconds: float, pid: int) -> dict[str, Any]:
        """Load a server for so many seconds, and end it by SIGTERM while it works.

        Args:
            seconds: of the load.
            pid: of the server's process.
        """
        end = time.monotonic() + seconds
        work = [self._work(seed, end) for seed in range(_WORKERS)]
        await asyncio.gather(*work)
        with contextlib.closing(Client(self._load.port)) as client:
            shown = await client.ask("/metrics", method="GET")
        numbers = shown.content.decode()
        compiled = read_metric(numbers, "compilations_total", "ready")
        waiting = read_metric(numbers, "queue_sentences")
        if compiled or waiting:
            self.faults.append(
                f"{compiled} programs compiled, {waiting} sentences left"
            )
        await self._end(pid)
        return {
            "answers": dict(sorted(self.answers.items())),
            "faults": self.faults[:10],
            "fault_count": len(self.faults),
            "server_gib": read_metric(numbers, "process_resident_memory_bytes") / 2**30,
        }

    async def _work(self, seed: int, end: float) -> None:
        draw, pick = random.Random(seed), self._load.pick(seed)
        acts = {
            self._single: 20,
            self._list: 4,
            self._document: 2,
            self._deepl: 4,
            self._html: 4,
            self._slow: 2,
            self._bad: 6,
            self._hang_up: 8,
        }
        with contextlib.closing(Client(self._load.port)) as client:
            while time.monotonic() < end:
                (act,) = draw.choices([*acts], [*acts.values()])
                await act(client, draw, pick)

    async def _single(self, client: Client, draw: random.Random, pick: Pick) -> None:
        (text,) = pick(1)
        answer = await client.ask("/translate", self._load.body(text))
        self._check("sentence", answer, answer.text == self._load.expected[text])

    async def _list(self, client: Client, draw: random.Random, pick: Pick) -> None:
        texts = pick(draw.randint(2, 10))
        answer = await client.ask("/translate", self._load.body(texts))
        self._check("list", answer, answer.text == self._expect(texts))

    async def _document(self, client: Client, draw: random.Random, pick: Pick) -> None:
        texts = pick(draw.randint(10, 25))
        answer = await client.ask("/translate", self._load.body("\n".join(texts)))
        self._check("document", answer, answer.text == "\n".join(self._expect(texts)))

    async def _deepl(self, client: Client, draw: random.Random, pick: Pick) -> None:
        texts = pick(draw.randint(1, 5))
        source, target = (code.upper() for code in self._load.languages)
        asked = {"text": texts, "source_lang": source, "target_lang": target}
        answer = await client.ask("/v2/translate", json.dumps(asked).encode())
        found = None
        if answer.status == 200:
            found = [own["text"] for own in json.loads(answer.content)["translations"]]
        self._check("deepl", answer, found == self._expect(texts))

    async def _html(self, client: Client, draw: random.Random, pick: Pick) -> None:
        asked = json.loads(self._load.body("<p>One <b>new</b> file.</p>"))
        body = json.dumps({**asked, "format": "html"}).encode()
        answer = await client.ask("/translate", body)
        tags = str(answer.text)
        whole = tags.startswith("<p>") and tags.endswith("</p>") and "<b>" in tags
        self._check("html", answer, whole)

    async def _slow(self, client: Client, draw: random.Random, pick: Pick) -> None:
        (text,) = pick(1)
        body, pause = self._load.body(text), draw.uniform(0.1, 3)
        answer = await client.ask("/translate", body, pause=pause)
        self._check("slow body", answer, answer.text == self._load.expected[text])

    async def _bad(self, client: Client, draw: random.Random, pick: Pick) -> None:
        path, body, status = draw.choice(_BAD)
        method = "POST" if body else "GET"
        answer = await client.ask(path, body.encode(), method=method)
        self._check("bad", answer, True, status)

    async def _hang_up(self, client: Client, draw: random.Random, pick: Pick) -> None:
        """Leave before the answer, perhaps in the middle of the request."""
        pause = draw.choice([0.0, 0.0, math.inf])
        body = self._load.body(pick(draw.randint(1, 10)))
        try:
            await client.send("/translate", body, pause=pause)
            await asyncio.sleep(draw.uniform(0, 0.3))
        except OSError as error:
            self.faults.append(f"hang up: {error!r}")
        client.close()
        self.answers["hang up"] += 1

    async def _end(self, pid: int) -> None:
        """End the server: what it has begun is answered, and nothing else."""
        picks = [self._load.pick(seed)(20) for seed in range(_ENDING)]
        fleet = [Client(self._load.port) for _ in picks]
        asked = [
            asyncio.create_task(
                client.ask("/translate", self._load.body("\n".join(texts)))
            )
            for client, texts in zip(fleet, picks, strict=True)
        ]
        await self._load.until("queue_sentences", 10 * _ENDING)
        os.kill(pid, signal.SIGTERM)
        begun = time.monotonic()
        for number in itertools.count():
            with contextlib.closing(Client(self._load.port)) as late:
                answer = await late.ask("/translate", self._load.body("One."))
            if number:  # the first may come before the signal
                self._check("late", answer, True, 503, 0)
            if all(task.done() for task in asked) or time.monotonic() - begun > _GRACE:
                break
            await asyncio.sleep(0.1)
        answers = await asyncio.gather(*asked)
        for texts, answer in zip(picks, answers, strict=True):
            right = answer.text == "\n".join(self._expect(texts))
            self._check("in work at the end", answer, right)

    def _expect(self, texts: list[str]) -> list[str]:
        return [self._load.expected[text] for text in texts]

    def _check(self, kind: str, answer: Answer, right: bool, *statuses: int) -> None:
        """Count an answer, which must be right and of one of these statuses, 200 by
        default.
        """
        self.answers[f"{kind} {answer.status}"] += 1
        if answer.status not in (statuses or (200,)):
            self.faults.append(f"{kind}: {answer.status} {answer.content[:200]!r}")
        elif not right:
            self.faults.append(f"{kind}: wrong {answer.content[:400]!r}")
