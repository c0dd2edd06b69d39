"""A process that serves, for the tests of ``jaxformer serve``."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx

import runs

SENTENCES = runs.sentences(24, longest=14)


def lines(count: int) -> str:
    """Return a text of as many lines, each a sentence."""
    return "\n".join(SENTENCES[number % len(SENTENCES)] for number in range(count))


class Server:
    """A process that serves."""

    def __init__(self, folder: Path, *options: object, **variables: str) -> None:
        line = [sys.executable, "-m", "jaxformer", "serve", "--port=0", *options]
        self.log = folder / "log"
        self._file = self.log.open("wb")
        self.process = subprocess.Popen(
            list(map(str, line)),
            cwd=runs.ROOT,
            env={**runs.environment(), **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._file,
        )
        self.url = self.line("listening")

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.url.removeprefix("http://").partition("/")[0].split(":")
        return host, int(port)

    def line(self, word: str) -> str:
        """Wait for a line of standard output, and return its second word."""
        assert self.process.stdout is not None
        said = self.process.stdout.readline().decode()
        assert said.startswith(f"{word} "), said + self.log.read_text()
        return said.split()[1]

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=60)

    def post(self, path: str, body: object) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=60)

    def translate(self, *texts: str, **options: object) -> list[str]:
        answer = self.post("/v1/translate", {"texts": texts, **options})
        assert answer.status_code == 200, answer.text
        return [each["text"] for each in answer.json()["translations"]]

    def metric(self, line: str) -> float:
        """Return the value of a line of the metrics."""
        shown = dict(
            each.rsplit(" ", 1) for each in self.get("/metrics").text.splitlines()
        )
        return float(shown[line])

    def is_warm(self) -> bool:
        ready = self.get("/ready").json()
        return ready["done"] == ready["of"]

    def wait_for(self, condition: Callable[[], object], seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.02)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._file.close()
