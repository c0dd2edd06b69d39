#!/usr/bin/env python3
r"""Compile training steps ahead of time, and print their memory on each device next to
the exact bytes of the state.

    python scripts/benchmark/memory.py --models=base,big \
        --rematerialization=none,layer,dots
    python scripts/benchmark/memory.py --models=big --devices=8 \
        --meshes=8x1x1,2x4x1,2x2x2
    python scripts/benchmark/memory.py --models=big --platform=cuda \
        --config.model.dtype=bfloat16
    python scripts/benchmark/memory.py --models=big --topology=v5e:2x4 --meshes=pmap \
        --config.model.dtype=bfloat16

No parameter is allocated. The batch is the paper's: 25,000 tokens a side over all
devices, in rows of 128. A mesh is data x fsdp x tensor, and 1x1x1 is the engine `jit`;
`pmap` compiles the engine of that name. On CPU (the default) the devices are virtual.
The CPU's compiler computes attention's gradients and all of float16 in float32 and
undoes the rematerialisation of looped layers, so that its temporary memory is no GPU's:
on a machine with GPUs use --platform=cuda. --topology compiles for devices that need
not be there: h200:COUNT, or a slice of v5e, v5p or v6e. Any key of the configuration
can be set as for `jaxformer train`.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxformer.runs.config import RunConfig

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
    """Compile what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default="base,big")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument(
        "--meshes",
        default="1x1x1",
        help="data x fsdp x tensor, or pmap; several with commas",
    )
    parser.add_argument("--rematerialization", default="none")
    parser.add_argument("--length", type=int, default=128, help="tokens of a row")
    parser.add_argument("--platform", default="cpu")
    parser.add_argument("--topology", help="such as h200:8 or v5e:2x4")
    options, overrides = parser.parse_known_args()
    # Before JAX is imported.
    os.environ["JAX_PLATFORMS"] = options.platform
    if options.platform == "cpu":
        os.environ["XLA_FLAGS"] = (
            f"--xla_force_host_platform_device_count={options.devices}"
        )
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
    for model in options.models.split(","):
        for mesh in options.meshes.split(","):
            for kind in options.rematerialization.split(","):
                print(
                    f"| {model} | {mesh} | {kind} |"
                    f" {measure(options, overrides, model, mesh, kind)} |",
                    flush=True,
                )


def measure(
    options: argparse.Namespace, overrides: list[str], model: str, mesh: str, kind: str
) -> str:
    """Compile one step; return the last columns of its row, in gigabytes per device."""
    import jax

    from jaxformer.models.transformer import Transformer
    from jaxformer.training import memory
    from jaxformer.training.engines import make_engine
    from jaxformer.training.mesh import row_shards
    from jaxformer.training.train import largest_batch
    from topologies import compile_step, devices_of

    if options.topology:
        jax.config.update("jax_enable_compilation_cache", False)
        devices = devices_of(options.topology)
    elif jax.device_count() == options.devices:
        devices = jax.devices()
    else:
        raise SystemExit(
            f"--devices={options.devices}, and this machine has {jax.device_count()}:"
            " say how many it has"
        )
    config = read(options, overrides, model, mesh, kind)
    training = config.training
    expected = memory.count_bytes(
        config.model,
        training,
        memory.abstract_mesh(training.engine, len(devices), training),
    )
    begun = time.monotonic()
    engine = make_engine(Transformer(config.model), training, devices)
    multiple = row_shards(engine.mesh) * training.accumulation_steps
    shapes = largest_batch(config, multiple)
    found = compile_step(engine, shapes).memory_analysis()
    if found is None:
        raise SystemExit("the compiler of this device does not say what it needs")
    sizes = (
        found.argument_size_in_bytes,
        found.temp_size_in_bytes,
        expected.parameters + expected.optimizer + expected.average,
    )
    return " | ".join(
        [
            *(f"{size / GIGABYTE:.2f}" for size in sizes),
            f"{time.monotonic() - begun:.0f} s",
        ]
    )


def read(
    options: argparse.Namespace, overrides: list[str], model: str, mesh: str, kind: str
) -> RunConfig:
    """Read the configuration of one of the paper's models, and set what the row
    says.
    """
    from jaxformer.cli import config_file
    from jaxformer.errors import InputError
    from jaxformer.runs.config import parse

    changes = {"data.max_length": options.length, "model.rematerialization": kind}
    if mesh in ("1x1x1", "pmap"):
        changes["training.engine"] = "pmap" if mesh == "pmap" else "jit"
    else:
        _, fsdp, tensor = map(int, mesh.split("x"))
        changes |= {
            "training.engine": "mesh",
            "training.mesh_fsdp": fsdp,
            "training.mesh_tensor": tensor,
        }
    flags = [*overrides, *(f"--config.{key}={value}" for key, value in changes.items())]
    try:
        return parse(
            config_file.read(str(CONFIGS / "paper" / f"ende_{model}.py"), flags)
        )
    except InputError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
