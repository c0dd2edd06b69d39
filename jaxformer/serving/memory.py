"""Memory of a server that runs for long."""

from __future__ import annotations

import contextlib
import ctypes
import gc


def settle() -> None:
    """Leave what compiling has made out of later garbage collections, of which each
    would keep all requests waiting for a second, and give the rest back.
    """
    gc.collect()
    gc.freeze()
    give_back()


def give_back() -> None:
    """Give free memory back to the system, where the C library can (glibc): what
    compiling or reading a run needed for a moment is else kept.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
