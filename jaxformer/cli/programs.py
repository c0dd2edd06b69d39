"""Compiled programs, kept between processes, so that a second start is quick."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import platform
from pathlib import Path

CACHE_BYTES = 2**29
"""Most bytes of compiled programs that are kept; at a start the least recently used
beyond them are removed.
"""


def keep() -> None:
    """Let JAX keep compiled programs in the user's cache folder; JAX's own variables
    take precedence.

    Nothing is kept where the user has no home.
    """
    import jax

    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        # no HOME, and a user whom the system does not know
        with contextlib.suppress(RuntimeError):
            home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
            folder = Path(home) / "jaxformer" / "xla"
            prune(folder, CACHE_BYTES)
            jax.config.update("jax_compilation_cache_dir", str(folder / name_machine()))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        # Of all programs, however small: a first state is drawn by many.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


def name_machine() -> str:
    """Return a name of jaxlib's version and the CPU: a program compiled for another CPU
    may crash.
    """
    words = [platform.system(), platform.machine(), platform.processor()]
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        starts = ("model name", "flags", "Features", "CPU part")
        words += sorted({x for x in text.splitlines() if x.startswith(starts)})
    digest = hashlib.sha256(repr(words).encode()).hexdigest()
    return f"{importlib.metadata.version('jaxlib')}-{digest[:12]}"


def prune(folder: Path, most: int) -> None:
    """Remove the least recently used programs of a folder and its folders until the
    rest has at most so many bytes.
    """
    found = []
    for path in folder.rglob("*-cache"):
        with contextlib.suppress(OSError):  # another process may remove it
            status = path.stat()
            found.append((max(status.st_atime, status.st_mtime), status.st_size, path))
    for _, size, path in sorted(found, reverse=True):
        most -= size
        if most < 0:
            with contextlib.suppress(OSError):
                path.unlink()
