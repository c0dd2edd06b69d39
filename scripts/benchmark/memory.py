#!/usr/bin/env python3
r"""Compile the training step of a configuration for devices that need not be there, and
print its memory on each device next to the exact bytes of the state.

    python scripts/benchmark/memory.py --config=configs/paper/ende_big.py \
        --topology=h200:8 --config.model.dtype=bfloat16
    python scripts/benchmark/memory.py --config=configs/paper/ende_big.py \
        --topology=v5e:2x4 --config.training.engine=mesh \
        --config.training.mesh_fsdp=8 --config.model.rematerialization=layer

No array is made. The batch is the one with the longest rows.
"""

from __future__ import annotations

import time

import jax

import turns
from jaxformer.cli import config_file
from jaxformer.models.make import make_model
from jaxformer.runs.config import parse
from jaxformer.training import memory
from jaxformer.training.engines import make_engine
from jaxformer.training.mesh import row_shards
from jaxformer.training.train import largest_batch
from topologies import compile_step, devices_of


def main() -> None:
    """Compile what the command line asks for."""
    parser = turns.make_parser(__doc__)
    parser.add_argument("--config", required=True, help="a file, as of jaxformer train")
    parser.add_argument("--topology", default="h200:1", help="or such as v5e:2x4")
    options, overrides = parser.parse_known_args()
    jax.config.update("jax_enable_compilation_cache", False)
    config = parse(config_file.read(options.config, overrides))
    training, devices = config.training, devices_of(options.topology)
    mesh = memory.abstract_mesh(training.engine, len(devices), training)
    expected = memory.count_bytes(config.model, training, mesh)
    engine = make_engine(make_model(config.model), training, devices)
    batch = largest_batch(config, row_shards(engine.mesh) * training.accumulation_steps)
    begun = time.monotonic()
    found = compile_step(engine, batch).memory_analysis()
    seconds = time.monotonic() - begun
    for name, size in (
        ("arguments", found.argument_size_in_bytes),
        ("temporary", found.temp_size_in_bytes),
        ("state", expected.parameters + expected.optimizer + expected.average),
    ):
        print(f"{name:9} {size / 1e9:7.2f} GB")
    print(f"compiled in {seconds:.0f} s for {batch}")


if __name__ == "__main__":
    turns.run(main)
