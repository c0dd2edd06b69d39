"""Strict settings for every test: shapes checked at run time, no silent broadcasting
or promotion, no warnings.
"""

import functools
import gc
import importlib.metadata
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

# Before jax is imported. Tests compile more than they compute: LLVM without
# optimization, XLA's older emitters and small programs in one part need a seventh of
# the time. The data-parallel engine runs on eight virtual devices. Flags of the
# environment come last and win. jaxlib 0.11 has no older emitters.
os.environ["XLA_FLAGS"] = (
    "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
    + " --xla_cpu_use_fusion_emitters=false"
    * (importlib.metadata.version("jaxlib") < "0.11")
    + " --xla_force_host_platform_device_count=8 "
    + os.environ.get("XLA_FLAGS", "")
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Batches are searched one after the other on any number of cores, unless a test asks.
os.environ["JAX_CPU_ENABLE_ASYNC_DISPATCH"] = "true"

import jax
import jaxtyping
import pytest
from jaxtyping import install_import_hook

pytest_plugins = ["browser"]

install_import_hook("jaxformer.functional", "beartype.beartype")

from jaxformer.cli import main as command_line  # noqa: E402 - after the hook

# Compiled programs are shared by all processes of the tests and kept for the next run,
# apart from those of the user.
PROGRAMS = Path(__file__).parent.parent / ".pytest_cache" / "xla"
PROGRAMS_OF_MACHINE = str(PROGRAMS / command_line.name_machine())
os.environ["JAX_COMPILATION_CACHE_DIR"] = PROGRAMS_OF_MACHINE
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
jax.config.update("jax_compilation_cache_dir", PROGRAMS_OF_MACHINE)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

# Tracing makes many objects, and little of it is garbage in cycles.
gc.set_threshold(20_000, 20, 20)

# As in a terminal: `nohup` and the shell's `&` have a process and its children ignore
# these signals.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_configure(config: pytest.Config) -> None:
    """Make the folder of all processes of a session, and remove the least recently
    used programs beyond a gibibyte.
    """
    if hasattr(config, "workerinput"):
        return
    folder = tempfile.mkdtemp(prefix="jaxformer-tests-")
    os.environ["JAXFORMER_TESTS"] = folder
    config.add_cleanup(functools.partial(shutil.rmtree, folder, ignore_errors=True))
    command_line.prune_programs(PROGRAMS, 2**30)


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions refuse what is wrong by themselves, as those do that are called
    outside the tests.
    """
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compute on the CPU what GPUs compute, where code differs by platform."""
    jax.clear_caches()
    monkeypatch.setattr(
        jax.lax,
        "platform_dependent",
        lambda *operands, default, **_: default(*operands),
    )
    yield
    jax.clear_caches()


@pytest.fixture(autouse=True, scope="module")
def _settings_stay() -> Iterator[None]:
    """No file of tests leaves JAX otherwise than it was: what follows in the same
    process would compute otherwise.
    """
    before = dict(jax.config.values)
    yield
    assert {
        key: value
        for key, value in jax.config.values.items()
        if value != before.get(key, value)
    } == {}


@pytest.fixture(autouse=True, scope="module")
def _small_heap() -> None:
    """Before each file, let compiled programs go before there are too many: Linux
    allows a process 65,530 maps of memory, each program on the CPU takes several, and
    the compiler dies of the one too many. What stays is left out of every garbage
    collection to come: with millions of objects these take a third of the time.
    """
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_text().count("\n") > 16_000:
        gc.unfreeze()
        jax.clear_caches()
    gc.collect()
    gc.freeze()
