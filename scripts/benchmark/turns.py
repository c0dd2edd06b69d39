"""Measure systems against each other: each is a process of its own, and they take
turns.

The speed of a machine that others use varies by more than systems differ. So the
figures are medians of ratios within a turn, in which each system works once while the
others wait. All systems get the same :data:`ENVIRONMENT`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from jaxformer.cli import arguments
from jaxformer.data.encoding import cores
from jaxformer.errors import InputError
from jaxformer.table import align

FORM = argparse.RawDescriptionHelpFormatter
Message: TypeAlias = Mapping[str, Any]
Turn: TypeAlias = dict[str, float]
"""An answer with at least ``work`` done, in tokens or sentences, and ``seconds``."""

ENVIRONMENT: Mapping[str, str] = {
    # glibc keeps the memory of a step for the next one, in pages of 2 MB.
    "GLIBC_TUNABLES": (
        "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=1099511627776"
        ":glibc.malloc.hugetlb=1"
    ),
    # Programs run in the thread that calls them, whose heap keeps that memory.
    "JAX_CPU_ENABLE_ASYNC_DISPATCH": "false",
}
"""Variables of every system's process, except those set outside; docs/training.md says
what each is worth.
"""


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Build the parser of a script from its docstring."""
    return argparse.ArgumentParser(description=description, formatter_class=FORM)


def add_numbers(
    parser: argparse.ArgumentParser, *rows: tuple[str, int | None, str]
) -> None:
    """Declare options that are whole numbers from 1: name, default and help text."""
    whole = arguments.number(1)
    for name, default, meaning in rows:
        parser.add_argument(f"--{name}", type=whole, default=default, help=meaning)


def tell(text: str) -> None:
    """Report progress on standard error."""
    print(text, file=sys.stderr, flush=True)


def run(
    main: Callable[[], None],
    begin: Callable[[Message], Callable[[Message], Message]] | None = None,
) -> None:
    """Run a script, or serve as one of its systems, which ``begin`` starts."""
    if begin is not None and sys.argv[1:] == ["serve"]:
        serve(begin)
        return
    try:
        main()
    except InputError as error:
        sys.exit(f"error: {error}")


class Process:
    """A system that answers a line of JSON with a line of JSON."""

    def __init__(
        self,
        name: str,
        script: str,
        request: Message,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start ``python SCRIPT serve``, and wait for the answer to the first request.

        Args:
            name: of the system, for messages.
            script: calls :func:`serve`.
            request: the first message.
            environment: variables that all systems have, whatever is set outside.

        Raises:
            InputError: the process ended instead.
        """
        self._name = name
        begun = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, script, "serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**ENVIRONMENT, **os.environ, **(environment or {})},
        )
        self.ask(request)
        self.startup_seconds = time.perf_counter() - begun
        """From the start of the process to its first answer."""

    def ask(self, request: Message) -> dict[str, Any]:
        """Send a request, and return its answer.

        Raises:
            InputError: the process ended instead; its error is on standard error.
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
                f"{self._name} was killed, as happens without enough memory: measure"
                " fewer systems or a smaller model"
            )
        raise InputError(
            f"{self._name} ended with exit code {code}: fix the error above"
        )

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def started(
    systems: Iterable[str], script: str, request: Message
) -> Iterator[dict[str, Process]]:
    """Start systems for a block; each gets the request and its own name."""
    with contextlib.ExitStack() as stack:
        yield {
            system: stack.enter_context(
                Process(system, script, {"system": system, **request})
            )
            for system in systems
        }


def serve(begin: Callable[[Message], Callable[[Message], Message]]) -> None:
    """Be the process of a system, until no request comes.

    Args:
        begin: called with the first request; returns what answers the others.
    """
    answer = begin(json.loads(sys.stdin.readline()))
    say({})
    for line in sys.stdin:
        say(answer(json.loads(line)))


def say(message: Message) -> None:
    """Answer a request, and add the peak memory."""
    print(json.dumps({**message, "memory_gib": read_peak()}), flush=True)


def read_peak() -> float | None:
    """Return the peak memory of this process in GiB; None where the system does not
    tell it.

    ``getrusage`` may tell that of the parent.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 2**20
    return None


def take_turns(
    processes: Mapping[str, Process],
    requests: Sequence[Message],
    repeats: int,
    report: Callable[[str], None] = lambda _: None,
) -> dict[tuple[int, str], list[Turn]]:
    """Let the systems answer each request in turn, ``repeats`` times.

    A turn before, which compiles, does not count.

    Returns:
        The answers by the number of the request and the name of the system.
    """
    answers: dict[tuple[int, str], list[Turn]] = {}
    for number, request in enumerate(requests):
        for repeat in range(1 + repeats):
            for system, process in processes.items():
                turn = process.ask(request)
                if repeat:
                    answers.setdefault((number, system), []).append(turn)
                    report(f"turn {repeat} of {repeats}: {system} {_rate(turn):,.0f}/s")
    return answers


def _rate(turn: Turn) -> float:
    return turn["work"] / turn["seconds"]


def median_rate(turns: Sequence[Turn]) -> float:
    """Return the median of the work per second."""
    return statistics.median(map(_rate, turns))


def median_ratio(
    turns: Sequence[Turn], reference: Sequence[Turn] | None
) -> float | None:
    """Return the median of the ratios to the reference within a turn, above 1 where the
    reference is slower; None without a reference.
    """
    if reference is None:
        return None
    pairs = zip(turns, reference, strict=True)
    return statistics.median(_rate(own) / _rate(other) for own, other in pairs)


def format_table(
    columns: Mapping[str, tuple[str, str]], rows: Iterable[Mapping[str, Any]]
) -> str:
    """Lay out rows as text.

    Args:
        columns: heading and format of each key of a row.
        rows: in which None is shown as ``-``.
    """
    header = [heading for heading, _ in columns.values()]
    cells = (
        [
            "-" if row[key] is None else format(row[key], form)
            for key, (_, form) in columns.items()
        ]
        for row in rows
    )
    return "\n".join(align([header, *cells]))


def describe_machine(device: str = "cpu") -> str:
    """Describe the processor or the GPU (``cuda``), and the versions of what was
    measured, in one line.
    """
    versions = []
    for package in ("jaxformer", "jax", "torch", "transformers"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{package} {importlib.metadata.version(package)}")
    where = f"on the CPU: {_processor()}, {cores()} cores"
    if device == "cuda":
        asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        where = f"on a GPU: {subprocess.check_output(asked, text=True).splitlines()[0]}"
    return f"{where}, Python {platform.python_version()}, {', '.join(versions)}"


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        text = information.read_text(encoding="utf-8", errors="replace")
        for line in text.splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
