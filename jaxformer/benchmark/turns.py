"""Systems that are measured against each other: each a process of its own, and they
take turns.

Speed on a machine that others use wanders by far more than systems differ. What is
quoted is therefore the median of ratios within a turn, in which each system worked once
while the others waited.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from jaxformer.errors import InputError

Message: TypeAlias = Mapping[str, Any]


class Process:
    """A system that answers a line of JSON with a line of JSON."""

    def __init__(
        self,
        name: str,
        module: str,
        request: Message,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start ``python -m module``; it has begun when it has answered the first
        request.

        Args:
            name: of the system, for what is said of it.
            module: calls :func:`serve`.
            request: the first message.
            environment: variables beside this process's own.

        Raises:
            InputError: it ended instead.
        """
        self._name = name
        begun = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self.first = self.ask(request)
        """Its answer to the first request."""
        self.startup_seconds = time.perf_counter() - begun
        """From the start of the process to that answer."""

    def ask(self, request: Message) -> dict[str, Any]:
        """Send a request, and wait for its answer.

        Raises:
            InputError: the process ended instead; what it said is on standard error.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        code = self._process.wait()
        self.close()
        if code == -signal.SIGKILL:
            raise InputError(
                f"{self._name} was killed, as happens where memory runs out: choose"
                " fewer --systems"
            )
        raise InputError(
            f"{self._name} ended with exit code {code}: mend what it wrote above, or"
            " leave it out of --systems"
        )

    def close(self) -> None:
        """End it."""
        self._process.communicate()

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def serve(begin: Callable[[Message], Callable[[Message], Message]]) -> None:
    """Be such a system, until there are no more requests.

    Args:
        begin: takes the first request, whose answer is the memory alone, and gives what
            answers the others.
    """
    answer = begin(json.loads(sys.stdin.readline()))
    _say({})
    for line in sys.stdin:
        _say(answer(json.loads(line)))


def _say(message: Message) -> None:
    sys.stdout.write(json.dumps({**message, "memory_gib": read_peak()}) + "\n")
    sys.stdout.flush()


def read_peak() -> float | None:
    """Return the most memory that this process held, in GiB; None where the system does
    not say.

    What ``getrusage`` says may be that of the process that started this one.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 2**20
    return None


def take_turns(
    processes: Mapping[str, Process], requests: Sequence[Message], repeats: int
) -> Iterator[tuple[int, int, str, dict[str, Any]]]:
    """Let each system answer a request once a repeat, then the next one; a repeat more
    goes before, which is not given.

    Yields:
        The repeat, the number of the request, the system, and its answer.
    """
    for number, request in enumerate(requests):
        for repeat in range(1 + repeats):
            for system, process in processes.items():
                answer = process.ask(request)
                if repeat:  # the first compiles, and fills caches
                    yield repeat - 1, number, system, answer
