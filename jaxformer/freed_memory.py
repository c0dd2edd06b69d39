"""Memory that JAX frees on a CPU: what compiling leaves goes back to the system, what a
step leaves is the next one's.

To trace and to compile a step takes as much memory for a while as a small model's step
does itself. The C library keeps what was freed for a next time, which never comes,
while the step takes its own: so it is given back.

XLA takes the working memory of a step from the C library and frees it after the step.
So large a piece comes from the system, which clears it page by page, and goes back at
once: every step waits for the same pages anew. Kept, it costs nothing, if the next step
finds it. For that, a program must run in the thread that calls it. XLA's own threads
have heaps too small for such pieces, and free what one step took only after the next
one has taken as much.

docs/training.md says how much memory and time that is.
"""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any

LOWERED, COMPILED = (
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
    "/jax/core/compile/backend_compile_duration",
)
"""What JAX records before it compiles a program, and when it has compiled it, or
found it compiled.
"""

WORTH_IT = 0.05
"""Seconds of a compilation that leaves something behind; small ones are many, and
leave little.
"""

VARIABLE = "JAX_CPU_ENABLE_ASYNC_DISPATCH"
"""JAX's own name for running programs in other threads; whoever sets it decides alone,
and what is freed is not kept then.
"""

# Of glibc's malloc.h, for mallopt.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4


@functools.cache
def manage() -> None:
    """From now on give back what compilations leave, and keep what programs on a CPU
    leave, where the C library can.

    To be called before JAX looks for its devices, in a process whose free memory is
    nobody else's.
    """
    import jax  # here, since the command line has something to do before

    library = _library()
    if library is None:
        return
    kept = VARIABLE not in os.environ
    if kept:
        jax.config.update("jax_cpu_enable_async_dispatch", False)

    def listen(event: str, duration_secs: float, **_: str | int) -> None:
        if event in (LOWERED, COMPILED) and duration_secs > WORTH_IT:
            library.malloc_trim(0)
        if (
            event == COMPILED
            and kept
            and jax.default_backend() == "cpu"
            and jax.local_device_count() == 1
        ):
            _keep(library)

    jax.monitoring.register_event_duration_secs_listener(listen)


def _keep(library: Any) -> None:
    """Take large pieces from the heap like small ones, and never shorten it but
    where it is asked for.
    """
    library.mallopt(_MMAP_MAX, 0)
    library.mallopt(_TRIM_THRESHOLD, -1)


def _library() -> Any:
    """Return the C library if it has what is needed of glibc, else None."""
    try:
        library = ctypes.CDLL(None)
    except (OSError, TypeError):  # a system without a library, or without names
        return None
    return (
        library
        if hasattr(library, "malloc_trim") and hasattr(library, "mallopt")
        else None
    )
