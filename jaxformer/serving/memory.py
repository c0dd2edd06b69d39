"""Garbage collection and heap memory of a long-running server."""

from __future__ import annotations

import contextlib
import ctypes
import gc


def freeze_heap() -> None:
    """Exclude all present objects from garbage collections, and trim the heap.

    Compiling creates so many objects that a full collection pauses all requests for
    about a second.
    """
    gc.collect()
    gc.freeze()
    trim_heap()


def trim_heap() -> None:
    """Return freed memory to the system, with the ``malloc_trim`` of glibc; elsewhere
    do nothing.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
