"""What a run takes of its machine: compilations and memory."""

from __future__ import annotations

import jax

# JAX's own name of the event that a program is ready for its devices: compiled, or read
# from the persistent cache.
_EVENT = "/jax/core/compile/backend_compile_duration"


class Compilations:
    """Counts the programs that this process compiles, and the seconds that it takes;
    one read from the cache is short.

    A number that grows after the first epoch tells of shapes that change.
    """

    def __init__(self) -> None:
        """Nothing was compiled yet."""
        self.count, self.seconds = 0, 0.0

    def __enter__(self) -> Compilations:
        """Begin to listen."""
        jax.monitoring.register_event_duration_secs_listener(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        """Listen no longer."""
        jax.monitoring.unregister_event_duration_listener(self._note)

    def read(self) -> dict[str, float]:
        """Return ``train/compilations`` and ``train/compile_seconds``, both since the
        process began to train.
        """
        return {
            "train/compilations": float(self.count),
            "train/compile_seconds": self.seconds,
        }

    def _note(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == _EVENT:
            self.count += 1
            self.seconds += duration_secs


def read_memory() -> dict[str, float]:
    """Return ``train/memory_bytes``: the most that any device of this host has held at
    a time, where devices tell it.
    """
    statistics = (device.memory_stats() or {} for device in jax.local_devices())
    peaks = [
        found["peak_bytes_in_use"]
        for found in statistics
        if "peak_bytes_in_use" in found
    ]
    return {"train/memory_bytes": float(max(peaks))} if peaks else {}
