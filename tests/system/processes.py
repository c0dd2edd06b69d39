"""``jaxformer train`` on the little run, in processes of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from training.little import LITTLE_RUN

import runs


def arguments(directory: Path, keys: Mapping[str, object]) -> list[str]:
    """Return what follows ``jaxformer``."""
    overrides = [f"--config.{key}={v}" for key, v in {**LITTLE_RUN, **keys}.items()]
    config = f"--config={runs.ROOT / 'configs' / 'reverse.py'}"
    return ["train", config, f"--workdir={directory}", *overrides]


class Processes:
    """Processes whose output goes to files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.all: list[subprocess.Popen[bytes]] = []
        # TensorBoard's writer would load it, which takes three seconds.
        (folder / "torch.py").write_text("raise ImportError\n")

    def environment(self, devices: int = 1) -> dict[str, str]:
        paths = [self.folder, runs.ROOT, runs.ROOT / "tests"]
        count = f"--xla_force_host_platform_device_count={devices}"
        return {
            **runs.environment(),
            "XLA_FLAGS": f"{runs.environment()['XLA_FLAGS']} {count}",
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "PYTHON": sys.executable,
        }

    def start(
        self, *line: object, devices: int = 1, **options: Any
    ) -> tuple[subprocess.Popen[bytes], Path]:
        """Return a process and the file of what it says."""
        said = self.folder / f"{len(self.all)}.said"
        with said.open("wb") as file:
            streams = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file}
            process = subprocess.Popen(
                list(map(str, line)),
                cwd=runs.ROOT,
                env=self.environment(devices),
                **{**streams, **options},
            )
        self.all.append(process)
        return process, said

    def kill(self) -> None:
        for process in self.all:
            process.kill()
            process.wait()
