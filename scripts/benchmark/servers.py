"""Start translation servers, each with a process of clients."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import http.client
import json
import os
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import clients
import turns
from jaxformer.errors import InputError
from turns import Process

OURS, THEIRS = "jaxformer", "libretranslate"

DECODING = {"beam_size": 4, "length_penalty": "average", "alpha": 0.2}
"""The search of Argos Translate, whose length penalty cannot be set."""

# It wants to download languages and a splitter of sentences.
_LAUNCH = """
import argostranslate.sbd, libretranslate.init
libretranslate.init.boot = lambda *_: None
argostranslate.sbd.MiniSBDSentencizer.split_sentences = lambda self, text: [text]
from libretranslate.main import main
main()
"""


@dataclasses.dataclass
class Server:
    """A server with clients of its own.

    Attributes:
        process: of the server.
        load: its clients, see :class:`clients.Load`.
        log: all that it writes.
        requests: how many it has been sent.
        failures: answers that were wrong or not 200.
        examples: of wrong answers: expected and given.
    """

    process: subprocess.Popen[bytes]
    load: Process
    log: Path
    requests: int = 0
    failures: int = 0
    examples: list[Any] = dataclasses.field(default_factory=list)

    def ask(self, kind: str, **arguments: Any) -> dict[str, Any]:
        """Load it; return what came of it."""
        answer = self.load.ask({"kind": kind, **arguments})
        answer["failed"] = sum(
            count for code, count in answer["statuses"].items() if code != "200"
        )
        self.requests += sum(answer["statuses"].values())
        self.failures += answer["failed"] + answer["wrong"]
        self.examples += answer["examples"]
        return answer

    def memory(self) -> float:
        """Return its resident memory in GiB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        (line,) = (own for own in status.splitlines() if own.startswith("VmRSS:"))
        return int(line.split()[1]) / 2**20


def start_ours(
    options: argparse.Namespace, folder: Path, expected: Mapping[str, str]
) -> contextlib.AbstractContextManager[Server]:
    """Start ``jaxformer serve``, and wait until all its programs are compiled."""
    settings = {"log": "off", "max_characters": 0, "max_body": 2**20, **DECODING}
    if options.searches:
        settings["searches"] = options.searches
    flags = [f"--{name}={value}" for name, value in settings.items()]
    command = [sys.executable, "-m", "jaxformer", "serve", *flags]
    command.append(f"--workdir={options.workdir.absolute()}")

    def is_ready(status: int, content: bytes) -> bool:
        if status != 200:
            return False
        state = json.loads(content)
        return state["done"] == state["of"]

    log = folder / f"{OURS}.log"
    return started(options, command, log, {}, expected, "/ready", is_ready)


def start_theirs(
    options: argparse.Namespace, folder: Path, expected: Mapping[str, str]
) -> contextlib.AbstractContextManager[Server]:
    """Write the run as a package of Argos Translate, and start LibreTranslate."""
    package, packages = folder / "run.argosmodel", folder / "packages"
    to_export = f"--workdir={options.workdir}", f"--out={package}", "--format=argos"
    command = [sys.executable, "-m", "jaxformer", "export", *to_export]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with zipfile.ZipFile(package) as archive:
        archive.extractall(packages)
    variables = {"ARGOS_PACKAGES_DIR": str(packages), "HOME": str(folder)}
    # Threads that spin take the cores from each other as soon as anything else runs.
    variables["OMP_WAIT_POLICY"] = "passive"
    python = str(options.libretranslate.absolute())
    command = [python, "-c", _LAUNCH, "--disable-files-translation"]
    log = folder / f"{THEIRS}.log"

    def is_ready(status: int, content: bytes) -> bool:
        return status == 200

    return started(options, command, log, variables, expected, "/languages", is_ready)


@contextlib.contextmanager
def started(
    options: argparse.Namespace,
    command: Sequence[str],
    log: Path,
    variables: Mapping[str, str],
    expected: Mapping[str, str],
    path: str,
    is_ready: Callable[[int, bytes], bool],
) -> Iterator[Server]:
    """Run a server for a block, which begins when a path's status and content say that
    it is ready.

    Raises:
        InputError: it ended instead.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, f"--port={port}"],
            env={**turns.ENVIRONMENT, **os.environ, **variables},
            stdout=output,
            stderr=output,
            cwd=log.parent,
        )
    languages = options.languages
    given = {"port": port, "languages": languages, "expected": expected}
    try:
        while not is_ready(*fetch(port, path)):
            if process.poll() is not None:
                said = log.read_text(encoding="utf-8", errors="replace")[-2000:]
                raise InputError(f"{log.stem} ended with {process.returncode}:\n{said}")
            time.sleep(0.2)
        with Process("the clients", clients.__file__, given) as load:
            yield Server(process, load, log)
    finally:
        process.terminate()
        process.wait()


def fetch(port: int, path: str) -> tuple[int, bytes]:
    """Return the status and the content of a path of a server; 0: it does not
    answer.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        with contextlib.closing(connection):
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
