"""The little run as a command, in processes of its own."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import pytest
from training.little import LITTLE_RUN, write_corpus

ROOT = Path(__file__).parents[2]
STEPS = 40
# It saves often, so that many a kill meets a save.
CHANGES = {
    "training.steps": STEPS,
    "training.log_every": 5,
    "training.evaluate_every": 10,
    "training.checkpoint_every": 2,
    "training.engine": "auto",
    "data.num_buckets": 1,
}


class Command:
    """``jaxformer train`` on the little run; processes that are still there in the
    end are killed.
    """

    def __init__(self, folder: Path) -> None:
        """Write the text into a folder and keep compiled programs there, so that
        later processes start quickly.
        """
        self.keys = {**LITTLE_RUN, **CHANGES, **write_corpus(folder)}
        self.environment = {
            **os.environ,
            "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
            "JAX_PLATFORMS": "cpu",
            # One device, and quick rather than good code.
            "XLA_FLAGS": "--xla_backend_optimization_level=0",
        }
        self.processes: list[subprocess.Popen[bytes]] = []

    def arguments(
        self, directory: Path, changes: dict[str, object] | None = None
    ) -> list[str]:
        """Return what follows ``jaxformer``."""
        keys = {**self.keys, **(changes or {})}
        overrides = [f"--config.{key}={value}" for key, value in keys.items()]
        return [
            "train",
            f"--config={ROOT / 'configs' / 'reverse.py'}",
            f"--workdir={directory}",
            *overrides,
        ]

    def start(
        self, directory: Path, changes: dict[str, object] | None = None, first: str = ""
    ) -> subprocess.Popen[bytes]:
        """Start the command; ``first`` is Python that it runs before, and what it says
        goes to a file beside its directory.
        """
        program = (
            f"import sys\n{first}\nfrom jaxformer.cli.main import"
            " main\nsys.exit(main(sys.argv[1:]))"
        )
        with self.said(directory).open("wb") as said:
            process = subprocess.Popen(
                [sys.executable, "-c", program, *self.arguments(directory, changes)],
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
            )
        self.processes.append(process)
        return process

    def finish(self, directory: Path, changes: dict[str, object] | None = None) -> None:
        """Run the command to its end."""
        assert self.start(directory, changes).wait() == 0, self.words(directory)

    def said(self, directory: Path) -> Path:
        """Return the file of what the last process on a directory said."""
        return directory.with_suffix(".said")

    def words(self, directory: Path) -> str:
        """Return what the last process on a directory said."""
        return self.said(directory).read_text(encoding="utf-8")

    def interrupt(
        self,
        directory: Path,
        number: signal.Signals,
        when: Callable[[], bool],
        delay: float = 0.0,
        changes: dict[str, object] | None = None,
        first: str = "",
    ) -> subprocess.Popen[bytes]:
        """Start the command and send a signal as soon as something is true and a
        delay has passed.
        """
        process = self.start(directory, changes, first)
        while process.poll() is None and not when():
            time.sleep(0.002)
        time.sleep(delay)
        process.send_signal(number)
        process.wait()
        return process


@pytest.fixture(scope="session")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """Return the command."""
    command = Command(tmp_path_factory.mktemp("command"))
    yield command
    for process in command.processes:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.fixture(scope="session")
def straight(command: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a run that nothing interrupted."""
    directory = tmp_path_factory.mktemp("straight") / "run"
    command.finish(directory)
    return directory


@pytest.fixture
def chance() -> random.Random:
    """Give the same random numbers to each test."""
    return random.Random(2017)


@pytest.fixture(autouse=True)
def _promotion() -> Iterator[None]:
    """Let optax promote types: its bias correction is a float to the power of an
    integer.
    """
    with jax.numpy_dtype_promotion("standard"):
        yield
