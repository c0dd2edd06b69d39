"""A process that trains, watched from outside, and the comparison of what two of them
left.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxformer.checkpoints.saved import open_to_read
from jaxformer.cli.main import DONE
from jaxformer.errors import InputError
from jaxformer.models.transformer import Transformer
from jaxformer.runs import config as configuration
from jaxformer.runs.records import MEASURED
from jaxformer.runs.training import TrainingConfig
from jaxformer.training.state import create_state

POLL = 0.003  # seconds between two looks at a process


class Watch:
    """Follows a process that trains, from outside: by what it says, and by what lies
    in its directory.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        run: Path,
        said: Path,
        config: TrainingConfig,
    ) -> None:
        """Follow a process that says what it does in a file of its own."""
        self.process = process
        self.introduced = False
        self._checkpoints, self._said, self._config = run / "checkpoints", said, config
        self.step = self._newest()
        self._read = 0
        self._stepped = self._evaluating = False

    def phase(self) -> str:
        """Say what the process is doing."""
        for line in self._new_lines():
            self._take(line)
        if not self.introduced:
            return "starting"
        newest = self._newest()
        self._stepped = self._stepped or newest > self.step
        self.step = max(self.step, newest)
        if self._evaluating:  # maybe while the last checkpoint is still being written
            return "evaluating"
        if count_unfinished(self._checkpoints):
            return "saving"
        return "training" if self._stepped else "compiling"

    def is_alive(self) -> bool:
        """Return whether the process still runs."""
        return self.process.poll() is None

    def _newest(self) -> int:
        return max(
            (int(name) for name in list_names(self._checkpoints) if name.isdecimal()),
            default=0,
        )

    def _new_lines(self) -> list[str]:
        with self._said.open("rb") as file:
            file.seek(self._read)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read += len(whole) + len(newline)
        return whole.decode(errors="replace").split("\n")

    def _take(self, line: str) -> None:
        if line.startswith("validation: "):
            self.introduced = True
        elif resumed := re.match(r"resuming at step (\d+) of", line):
            self.step = int(resumed[1])
        elif stepped := re.match(r"step (\d+)/\d+  ", line):
            self.step, self._stepped = int(stepped[1]), True
            self._evaluating = (
                self.step % self._config.evaluate_every == 0
                or self.step >= self._config.steps
            )
        elif line.startswith("evaluation at step "):
            self._evaluating = False


@dataclasses.dataclass(frozen=True)
class Command:
    """The command that trains in the directory ``run``; ``arguments`` are all
    others.
    """

    arguments: list[str]
    run: Path
    config: TrainingConfig

    @property
    def said(self) -> Path:
        """What the last process said."""
        return self.run.with_name(f"{self.run.name}.said")

    @property
    def compiled(self) -> Path:
        """Programs that were compiled, for the processes after; not those of other
        runs, since kills meet them too.
        """
        return self.run.with_name("compiled")

    @contextlib.contextmanager
    def start(self) -> Iterator[Watch]:
        """Start a process, which does not outlive the block."""
        with self.said.open("wb") as said:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "jaxformer.cli.main",
                    "train",
                    f"--workdir={self.run}",
                    *self.arguments,
                ],
                env={**os.environ, "JAX_COMPILATION_CACHE_DIR": str(self.compiled)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
            )
        try:
            yield Watch(process, self.run, self.said, self.config)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()

    def finish(self) -> dict[str, list[float]]:
        """Train to the end, and give the seconds of every stretch of each phase.

        Raises:
            InputError: it fails.
        """
        stretches: dict[str, list[float]] = collections.defaultdict(list)
        with self.start() as watch:
            now, since = "starting", time.monotonic()
            while watch.is_alive():
                time.sleep(POLL)
                before, now = now, watch.phase()
                if now != before:
                    stretches[before].append(time.monotonic() - since)
                    since = time.monotonic()
        if watch.process.returncode != DONE:
            raise InputError(
                f"the command ended with exit code {watch.process.returncode};"
                f" {self.said} says why"
            )
        return stretches


def count_unfinished(checkpoints: Path) -> int:
    """Count the checkpoints that are not whole, or that are being replaced."""
    return sum(not name.isdecimal() for name in list_names(checkpoints))


def list_names(folder: Path) -> list[str]:
    """List the checkpoints in a folder, whole or not; none where there is no folder."""
    try:
        return [
            name for name in os.listdir(folder) if name.partition(".")[0].isdecimal()
        ]
    except FileNotFoundError:
        return []


def compare(found: Path, expected: Path) -> list[str]:
    """List how two finished runs differ; empty if they are the same bit for bit."""
    one, other = read_checkpoints(found), read_checkpoints(expected)
    differences = [
        f"{name}: {one[name]} and {other[name]}"
        for name in ("step", "best", "scores")
        if one[name] != other[name]
    ]
    for name, value in other["progress"].items():
        if one["progress"].get(name) != value:
            differences.append(
                f"counter {name}: {one['progress'].get(name)} and {value}"
            )
    for path, a in one["arrays"].items():
        b = other["arrays"][path]
        if a.tobytes() != b.tobytes():
            differences.append(f"{path}: {np.sum(a != b)} of {a.size} numbers differ")
    for name in ("metrics.jsonl", "samples.jsonl"):
        differences += compare_records(found / name, expected / name)
    return differences


def read_checkpoints(run: Path) -> dict[str, Any]:
    """Read the last checkpoint of a run, and which is the best."""
    config = configuration.load(run / "config.json")
    state = jax.eval_shape(
        lambda: create_state(Transformer(config.model), config.training)
    )
    checkpoints = open_to_read(run / "checkpoints", config.evaluation.best_metric)
    last = checkpoints.find("latest")
    parts = checkpoints.restore(last, params=state.weights, training=state.rest())
    return {
        "step": last,
        "best": checkpoints.find("best"),
        "scores": checkpoints.scores(last),
        "progress": checkpoints.progress(last),
        "arrays": {
            jax.tree_util.keystr(path): np.asarray(leaf)
            for path, leaf in jax.tree_util.tree_leaves_with_path(parts)
        },
    }


def compare_records(found: Path, expected: Path) -> list[str]:
    """Name the first line in which two records differ, but for what the machine
    decides.
    """
    one, other = read_lines(found), read_lines(expected)
    for number, (a, b) in enumerate(zip(one, other, strict=False), 1):
        names = [name for name in a.keys() | b.keys() if a.get(name) != b.get(name)]
        if names:
            return [f"{found.name}, line {number}: {', '.join(sorted(names))}"]
    return (
        []
        if len(one) == len(other)
        else [f"{found.name}: {len(one)} and {len(other)} lines"]
    )


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read a record without what the machine decides; there may be none."""
    if not path.exists():
        return []
    # What is not a number equals itself here.
    records = (
        json.loads(line, parse_constant=str)
        for line in path.read_text(encoding="utf-8").splitlines()
    )
    return [
        {name: value for name, value in record.items() if name not in MEASURED}
        for record in records
    ]
