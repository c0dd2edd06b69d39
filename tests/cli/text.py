from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def encode(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def write(path: Path, lines: Iterable[str]) -> Path:
    path.write_bytes(encode(lines))
    return path
