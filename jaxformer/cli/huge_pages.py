"""Memory in large pages for what JAX computes on a CPU.

What the C library takes from the system for XLA is cleared page by page. With pages of
2 MB instead of 4 KB that takes a fraction of the time, and so does finding them later:
docs/training.md says what training steps gain. glibc (2.35 and newer) asks for large
pages when a variable says so before a process begins; so the process begins once more.
Systems that give them to all programs need nothing.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

VARIABLE, VALUE = "GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"
_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def use() -> None:
    """Begin this process anew with large pages, where the system gives them to those
    who ask and nobody has asked.

    Whoever sets the variable ``GLIBC_TUNABLES``, to whatever it be, decides alone. To
    be called before anything was done, and before ``jax`` is imported, since all that
    is done again.
    """
    if is_of_use():
        os.environ[VARIABLE] = VALUE
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def is_of_use() -> bool:
    """Return whether large pages can be had and are not asked for yet."""
    return (
        VARIABLE not in os.environ
        and sys.platform == "linux"
        and _SETTING.exists()
        and "[madvise]" in _SETTING.read_text()
        and _glibc() >= (2, 35)
    )


def _glibc() -> tuple[int, ...]:
    """Return the version of glibc; nothing where the C library is another."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except ValueError:
        return ()
    return (
        tuple(int(part) for part in version.split(".") if part.isdecimal())
        if name == "glibc"
        else ()
    )
