"""What a run takes of its machine: compilations and memory."""

from __future__ import annotations

import threading

import jax

from jaxformer.training.display import Display

# JAX's own name of the event that a program is ready for its devices: compiled, or read
# from the persistent cache.
_EVENT = "/jax/core/compile/backend_compile_duration"

_WORDS = {
    "first_state": "the initialization of parameters",
    "train_step": "the training step",
    "eval_step": "the evaluation step",
    "search": "the search",
    "_fun": "a step of pmap",
}


class Compilations:
    """Counts the programs that this process compiles, and the seconds that it takes;
    one read from the cache is short.

    A number that grows after the first epoch tells of shapes that change. What takes
    more than a second is shown while it lasts.
    """

    def __init__(self, display: Display) -> None:
        """Nothing was compiled yet."""
        self.count, self.seconds = 0, 0.0
        self._display = display
        self._running: dict[int, str] = {}  # what each thread compiles

    def __enter__(self) -> Compilations:
        """Begin to listen."""
        jax.monitoring.register_scalar_listener(self._begin)
        jax.monitoring.register_event_duration_secs_listener(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        """Listen no longer."""
        jax.monitoring.unregister_scalar_listener(self._begin)
        jax.monitoring.unregister_event_duration_listener(self._note)

    def read(self) -> dict[str, float]:
        """Return ``train/compilations`` and ``train/compile_seconds``, both since the
        process began to train.
        """
        return {
            "train/compilations": float(self.count),
            "train/compile_seconds": self.seconds,
        }

    def _begin(self, event: str, value: float, **kwargs: str | int) -> None:
        if event == _EVENT:
            given, thread = str(kwargs.get("fun_name")), threading.get_ident()
            name = next((_WORDS[word] for word in _WORDS if word in given), given)
            self._running[thread] = name = f"compiling {name}"
            alarm = threading.Timer(1.0, self._announce, (thread, name))
            alarm.daemon = True
            alarm.start()

    def _announce(self, thread: int, name: str) -> None:
        if self._running.get(thread) == name:
            if not self._display.live:
                self._display.say(f"{name} ...")
            self._display.doing(name)

    def _note(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event != _EVENT:
            return
        self.count += 1
        self.seconds += duration_secs
        name = self._running.pop(threading.get_ident(), "compiling")
        if duration_secs > 1.0:
            self._display.say(f"{name} ... {duration_secs:.0f} s")
            self._display.doing(next(iter(self._running.values()), ""))


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
