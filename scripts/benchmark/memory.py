#!/usr/bin/env python3
r"""Compile training steps for devices that need not be there, and print their memory on
each device next to the exact bytes of the state.

    python scripts/benchmark/memory.py --models=base,big \
        --rematerialization=none,layer,dots
    python scripts/benchmark/memory.py --models=big --topology=h200:8 \
        --meshes=8x1x1,2x4x1,2x2x2
    python scripts/benchmark/memory.py --models=big --topology=v5e:2x4 --meshes=pmap \
        --config.model.dtype=bfloat16

No array is made. The batch is the paper's: 25,000 tokens a side over all devices, in
rows of 128. A mesh is data x fsdp x tensor, and 1x1x1 is the engine `jit`; `pmap`
compiles the engine of that name. Any key of the configuration can be set as for
`jaxformer train`.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import jax

import turns
from jaxformer.cli import config_file
from jaxformer.models.make import make_model
from jaxformer.runs.config import RunConfig, parse
from jaxformer.training import memory
from jaxformer.training.engines import make_engine
from jaxformer.training.mesh import row_shards
from jaxformer.training.train import largest_batch
from topologies import compile_step, devices_of

CONFIGS = Path(__file__).parents[2] / "configs"
COLUMNS = (
    "model",
    "engine",
    "rematerialization",
    "arguments",
    "temporary",
    "state",
    "compiled in",
)
GIGABYTE = 10**9


def main() -> None:
    """Compile what the command line asks for; a row for each."""
    parser = turns.make_parser(__doc__)
    for name, default, meaning in (
        ("models", "base,big", "of the paper"),
        ("topology", "h200:1", "h200:COUNT, or a slice of TPU such as v5e:2x4"),
        ("meshes", "1x1x1", "data x fsdp x tensor, or pmap"),
        ("rematerialization", "none", "several separated by commas, as of the others"),
        ("length", "128", "tokens of a row"),
    ):
        parser.add_argument(f"--{name}", default=default, help=meaning)
    options, overrides = parser.parse_known_args()
    jax.config.update("jax_enable_compilation_cache", False)
    overrides += [f"--config.data.max_length={options.length}"]
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
    asked = options.models, options.meshes, options.rematerialization
    for row in itertools.product(*(each.split(",") for each in asked)):
        begun = time.monotonic()
        sizes = measure(read(overrides, *row), options.topology)
        cells = [*row, *(f"{size / GIGABYTE:.2f}" for size in sizes)]
        print(f"| {' | '.join(cells)} | {time.monotonic() - begun:.0f} s |", flush=True)


def measure(config: RunConfig, topology: str) -> tuple[int, int, int]:
    """Compile one step; return the bytes of its arguments, of its temporary arrays and
    of the state, on each device.
    """
    training, devices = config.training, devices_of(topology)
    mesh = memory.abstract_mesh(training.engine, len(devices), training)
    expected = memory.count_bytes(config.model, training, mesh)
    engine = make_engine(make_model(config.model), training, devices)
    multiple = row_shards(engine.mesh) * training.accumulation_steps
    found = compile_step(engine, largest_batch(config, multiple)).memory_analysis()
    return (
        found.argument_size_in_bytes,
        found.temp_size_in_bytes,
        expected.parameters + expected.optimizer + expected.average,
    )


def read(overrides: list[str], model: str, mesh: str, kind: str) -> RunConfig:
    """Read the configuration of one of the paper's models, and set what the row
    says.
    """
    changes: dict[str, object] = {"model.rematerialization": kind}
    if mesh in ("1x1x1", "pmap"):
        changes["training.engine"] = "pmap" if mesh == "pmap" else "jit"
    else:
        _, fsdp, tensor = mesh.split("x")
        changes |= {
            "training.engine": "mesh",
            "training.mesh_fsdp": fsdp,
            "training.mesh_tensor": tensor,
        }
    flags = [*overrides, *(f"--config.{key}={value}" for key, value in changes.items())]
    return parse(config_file.read(str(CONFIGS / "paper" / f"ende_{model}.py"), flags))


if __name__ == "__main__":
    turns.run(main)
