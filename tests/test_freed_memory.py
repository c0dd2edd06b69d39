"""Memory is given back after each large compilation, and only then; what programs on
a CPU leave is kept, once.
"""

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from jaxformer import freed_memory


@pytest.fixture
def settings() -> dict[int, int]:
    """Return what a stand-in for ``mallopt`` has set."""
    return {}


@pytest.fixture
def calls(monkeypatch, settings) -> Iterator[list[int]]:
    """Return what a stand-in for ``malloc_trim`` is called with, and take the listener
    away afterwards.
    """
    found: list[int] = []
    library = SimpleNamespace(
        malloc_trim=lambda keep: found.append(keep) or 1, mallopt=settings.__setitem__
    )
    monkeypatch.delenv(freed_memory.VARIABLE, raising=False)
    listeners = []
    register = jax.monitoring.register_event_duration_secs_listener
    monkeypatch.setattr(freed_memory, "_library", lambda: library)
    # too late for this process
    monkeypatch.setattr(jax.config, "update", lambda name, value: None)
    monkeypatch.setattr(
        jax.monitoring,
        "register_event_duration_secs_listener",
        lambda listener: listeners.append(listener) or register(listener),
    )
    freed_memory.manage.cache_clear()
    freed_memory.manage()
    yield found
    freed_memory.manage.cache_clear()
    for listener in listeners:
        jax.monitoring.unregister_event_duration_listener(listener)


def test_each_compilation_gives_back_before_and_after(calls, monkeypatch):
    """JAX says when it compiles: a second call of the same program, or a second
    wish, adds nothing.
    """
    monkeypatch.setattr(freed_memory, "WORTH_IT", 0.0)
    freed_memory.manage()
    twice = jax.jit(lambda x: 2 * x)
    x = jnp.arange(3.0)
    before = len(calls)
    twice(x).block_until_ready()
    assert calls[before:] == [0, 0]
    twice(x).block_until_ready()
    assert calls[before:] == [0, 0]
    twice(jnp.arange(4.0)[:4]).block_until_ready()
    assert len(calls) > before + 2


def test_small_compilations_give_nothing_back(calls):
    """What took no time to compile leaves nothing behind that were worth the search
    for it.
    """
    before = len(calls)
    jax.monitoring.record_event_duration_secs(freed_memory.COMPILED, 0.01)
    assert calls[before:] == []
    jax.monitoring.record_event_duration_secs(freed_memory.COMPILED, 1.0)
    assert calls[before:] == [0]


@pytest.mark.parametrize(
    ("platform", "devices", "kept"),
    [("cpu", 1, True), ("gpu", 1, False), ("cpu", 8, False)],
)
def test_memory_is_kept_for_one_cpu(
    platform, devices, kept, calls, settings, monkeypatch
):
    """Other devices have memory of their own, and several CPU devices compute in
    threads of XLA's.
    """
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    monkeypatch.setattr(jax, "local_device_count", lambda: devices)
    assert settings == {}
    jax.monitoring.record_event_duration_secs(freed_memory.COMPILED, 0.01)
    m_trim_threshold, m_mmap_max = -1, -4  # of glibc's malloc.h
    assert settings == ({m_trim_threshold: -1, m_mmap_max: 0} if kept else {})


@pytest.mark.parametrize("functions", [(), ("malloc_trim",), ("mallopt",)])
def test_a_library_that_cannot_is_left_alone(functions, monkeypatch):
    """Where the C library lacks a function, nothing listens."""
    monkeypatch.setattr(
        ctypes, "CDLL", lambda name: SimpleNamespace(**dict.fromkeys(functions))
    )
    assert freed_memory._library() is None
    registered = []
    monkeypatch.setattr(
        jax.monitoring, "register_event_duration_secs_listener", registered.append
    )
    freed_memory.manage.cache_clear()
    freed_memory.manage()
    freed_memory.manage.cache_clear()
    assert registered == []


def test_what_lies_between_is_given_back():
    """Blocks that were freed below one that is held stay with the process, until
    they are asked for.
    """
    library = freed_memory._library()
    if library is None:
        pytest.skip("the C library is not glibc")

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf(
            "SC_PAGE_SIZE"
        )

    blocks = [bytearray(1 << 16) for _ in range(2000)]
    held = [blocks[number] for number in range(0, 2000, 100)]
    blocks.clear()
    before = resident()
    library.malloc_trim(0)
    assert before - resident() > 100 << 20
    assert len(held) == 20


_STEPS = """
import re
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp

from jaxformer import freed_memory

def held(name):
    return int(re.search(rf"{name}:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) >> 10

if "manage" in sys.argv:
    freed_memory.manage()

@jax.jit
def step(x, y):  # 256 MB of working memory: a product that another one reads whole
    return y + ((x @ x.T) @ x).sum()

x = jnp.ones((8192, 16))
y = step(x, jnp.zeros(())).block_until_ready()
before = held("VmHWM")
for _ in range(8):
    y = step(x, y)
y.block_until_ready()
time.sleep(0.5)  # the result may be there a moment before the memory is free
print(before, held("VmHWM"), held("VmRSS"))
"""


@pytest.mark.parametrize(
    ("managed", "given"),
    [(True, {}), (True, {freed_memory.VARIABLE: "true"}), (False, {})],
)
def test_working_memory_is_kept_and_held_once(managed, given):
    """After steps that nothing waits for, a process still holds the memory of one
    and never held that of two.
    """
    if freed_memory._library() is None:
        pytest.skip("the C library is not glibc")
    dropped = (freed_memory.VARIABLE, "GLIBC_TUNABLES", "XLA_FLAGS", "LD_PRELOAD")
    environment = {
        name: value for name, value in os.environ.items() if name not in dropped
    }
    command = [sys.executable, "-c", _STEPS, *(["manage"] if managed else [])]
    run = subprocess.run(
        command,
        env={**environment, "JAX_PLATFORMS": "cpu", **given},
        capture_output=True,
        check=True,
    )
    first, most, last = map(int, run.stdout.split())  # MB
    if managed and not given:
        assert last > most - 64
        assert most < first + 64
    else:
        assert last < most - 192
