"""Programs for devices that are not there. ``make accelerators`` makes the environments
of the two compilers; a test skips where its own is missing.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import math
import re
import time
from collections.abc import Iterator
from typing import Any

import jax
import pytest

from jaxformer.cli import config_file
from jaxformer.models.make import make_model
from jaxformer.runs import config as configuration
from jaxformer.runs.config import RunConfig
from jaxformer.training.engines import Engine, make_engine
from jaxformer.training.mesh import row_shards
from topologies import compile_step, devices_of

COMPILERS = {"v": "libtpu", "h": "jax_cuda12_plugin"}


@dataclasses.dataclass(frozen=True)
class Step:
    """A compiled training step, what it was compiled from, and in how many seconds."""

    config: RunConfig
    engine: Engine
    shapes: dict[str, tuple[int, int]]
    compiled: Any
    compiled_in: float

    @functools.cached_property
    def text(self) -> str:
        return self.compiled.as_text()

    @property
    def rows(self) -> int:
        """Rows of a batch on each device."""
        rows, _ = self.shapes["target"]
        return rows // row_shards(self.engine.mesh)

    @property
    def shards(self) -> int:
        """Devices that share each row, its heads and the vocabulary."""
        return self.engine.devices // row_shards(self.engine.mesh)

    @property
    def state_bytes(self) -> int:
        """Bytes of the state on each device."""
        leaves = zip(
            jax.tree.leaves(self.engine.shapes),
            jax.tree.leaves(self.engine.shardings),
            strict=True,
        )
        return sum(
            leaf.dtype.itemsize * math.prod(sharding.shard_shape(leaf.shape))
            for leaf, sharding in leaves
        )


def arrays(text: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the type and shape of every array of a compiled program."""
    for dtype, lengths in re.findall(r"\b([a-z]\w*)\[([\d,]+)\]", text):
        yield dtype, tuple(map(int, lengths.split(",")))


def exchanges(text: str) -> set[str]:
    """Return the kinds of collectives of a compiled program."""
    kinds = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
    return set(re.findall(rf" ({kinds})(?:-start)?\(", text))


def host_calls(text: str) -> list[str]:
    """Return what goes to the host or comes from it."""
    return re.findall(
        r' (?:infeed|outfeed|send|recv)\(|custom_call_target="[^"]*(?:Host|callback)',
        text,
    )


def need(topology: str) -> None:
    """Skip without the compiler of a topology."""
    module = COMPILERS[topology[0]]
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed: make accelerators")


@functools.cache
def _compiled(
    name: str, topology: str, rows: int, length: int, packed: bool, flags: tuple
) -> Step:
    overrides = [
        f"--config.{key}={value}"
        for key, value in {
            "data.max_length": length,
            "data.packing": packed,
            "data.packed_length": length,
            "model.dtype": "bfloat16",
            "model.scan_layers": True,
            **dict(flags),
        }.items()
    ]
    config = configuration.parse(config_file.read(f"configs/{name}.py", overrides))
    if config.training.objective == "masked":
        # A run reads them from its vocabulary.
        model = dataclasses.replace(config.model, eos_id=3, mask_id=4)
        config = dataclasses.replace(config, model=model)
    engine = make_engine(
        make_model(config.model),
        config.training,
        devices_of(topology),
    )
    names = ["source", "target"]
    names += ["source_segments", "target_segments"] * packed
    # Of text of one side there is the target alone.
    names = names[1::2] if config.data.one_sided else names
    shapes = dict.fromkeys(names, (rows, length))
    begun = time.monotonic()
    compiled = compile_step(engine, shapes)
    return Step(config, engine, shapes, compiled, time.monotonic() - begun)


@pytest.fixture
def compile_for():
    """Return a function that compiles a training step once a process."""

    def compiled(
        name: str,
        topology: str,
        rows: int = 64,
        length: int = 256,
        *,
        packed: bool = False,
        **flags: Any,
    ) -> Step:
        need(topology)
        dotted = {key.replace("__", "."): value for key, value in flags.items()}
        with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
            return _compiled(
                name, topology, rows, length, packed, tuple(sorted(dotted.items()))
            )

    return compiled
