from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path


def encode(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def write(path: Path, lines: Iterable[str]) -> Path:
    path.write_bytes(encode(lines))
    return path


def change(run: Path, section: str, **values: object) -> None:
    """Change keys in the configuration of a run."""
    config = json.loads((run / "config.json").read_text())
    config[section] |= values
    (run / "config.json").write_text(json.dumps(config))
