"""Memory that tracing and compiling leave behind, given back to the system before the program runs.

To trace and to compile a step takes as much memory for a while as a small model's step does itself. The C library keeps
what was freed for a next time, which never comes, while the step takes its own: docs/training.md says how much that is.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

COMPILED = "/jax/core/compile/backend_compile_duration"
"""What JAX records whenever it has compiled a program, or found it compiled."""

WORTH_IT = 0.05
"""Seconds of a compilation that leaves something behind; small ones are many, and leave little."""


@functools.cache
def return_after_compiling() -> None:
    """From now on give memory back whenever JAX has compiled a large program, where the C library can."""
    import jax  # here, since the command line has something to do before

    trim = _trim()
    if trim is None:
        return

    def listen(event: str, duration_secs: float, **_: str | int) -> None:
        if event == COMPILED and duration_secs > WORTH_IT:
            trim(0)

    jax.monitoring.register_event_duration_secs_listener(listen)


def _trim() -> Callable[[int], int] | None:
    """Give glibc's function that returns free pages, however many bytes are to be kept; None in other C libraries."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # a system without the function, without a library, without names
        return None
