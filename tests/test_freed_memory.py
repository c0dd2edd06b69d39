"""Memory is given back after each large compilation, and only then."""

import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from jaxformer import freed_memory


@pytest.fixture
def calls(monkeypatch) -> Iterator[list[int]]:
    """Give what a stand-in for glibc's function is called with, and take the listener away afterwards."""
    found: list[int] = []
    listeners = []
    register = jax.monitoring.register_event_duration_secs_listener
    monkeypatch.setattr(freed_memory, "_trim", lambda: lambda keep: found.append(keep) or 1)
    monkeypatch.setattr(
        jax.monitoring,
        "register_event_duration_secs_listener",
        lambda listener: listeners.append(listener) or register(listener),
    )
    freed_memory.return_after_compiling.cache_clear()
    freed_memory.return_after_compiling()
    yield found
    freed_memory.return_after_compiling.cache_clear()
    for listener in listeners:
        jax.monitoring.unregister_event_duration_listener(listener)


def test_each_compilation_gives_back_once(calls, monkeypatch):
    """JAX says when it has compiled: a second call of the same program, or a second wish, adds nothing."""
    monkeypatch.setattr(freed_memory, "WORTH_IT", 0.0)
    freed_memory.return_after_compiling()
    twice = jax.jit(lambda x: 2 * x)
    x = jnp.arange(3.0)
    before = len(calls)
    twice(x).block_until_ready()
    assert calls[before:] == [0]
    twice(x).block_until_ready()
    assert calls[before:] == [0]
    twice(jnp.arange(4.0)[:4]).block_until_ready()
    assert len(calls) > before + 1


def test_small_compilations_give_nothing_back(calls):
    """What took no time to compile leaves nothing behind that were worth the search for it."""
    before = len(calls)
    jax.monitoring.record_event_duration_secs(freed_memory.COMPILED, 0.01)
    assert calls[before:] == []
    jax.monitoring.record_event_duration_secs(freed_memory.COMPILED, 1.0)
    assert calls[before:] == [0]


def test_a_library_that_cannot_is_left_alone(monkeypatch):
    """Where the C library has no such function, nothing listens."""
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert freed_memory._trim() is None
    registered = []
    monkeypatch.setattr(jax.monitoring, "register_event_duration_secs_listener", registered.append)
    freed_memory.return_after_compiling.cache_clear()
    freed_memory.return_after_compiling()
    freed_memory.return_after_compiling.cache_clear()
    assert registered == []


def test_what_lies_between_is_given_back():
    """Blocks that were freed below one that is held stay with the process, until they are asked for."""
    trim = freed_memory._trim()
    if trim is None or not sys.platform.startswith("linux"):
        pytest.skip("the C library is not glibc")

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    blocks = [bytearray(1 << 16) for _ in range(2000)]
    held = [blocks[number] for number in range(0, 2000, 100)]
    blocks.clear()
    before = resident()
    trim(0)
    assert before - resident() > 100 << 20
    assert len(held) == 20
