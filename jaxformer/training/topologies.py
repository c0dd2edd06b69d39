"""Devices that need not be there: slices of TPU and nodes of GPUs, for whose compilers
a step can be compiled on any machine.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from jax.experimental import topologies

from jaxformer.errors import InputError


class Gpu(NamedTuple):
    """What XLA's compiler asks about a GPU.

    Attributes:
        kind: its name.
        capability: CUDA's compute capability; with ``a`` its accelerated features.
        multiprocessors: how many.
        clock: of a multiprocessor, in GHz.
        lanes: float32 units of a multiprocessor.
        shared: bytes of shared memory of a multiprocessor.
        cache: bytes of the second-level cache.
    """

    kind: str
    capability: str
    multiprocessors: int
    clock: float
    lanes: int
    shared: int
    cache: int


class Machine(NamedTuple):
    """What the vendor publishes about one device.

    Attributes:
        bandwidth: of its memory, in bytes per second.
        memory: in bytes.
        shapes: the slices that exist, smallest first; none for GPUs, which are counted.
        gpu: of GPUs.
    """

    bandwidth: float
    memory: int
    shapes: tuple[str, ...] = ()
    gpu: Gpu | None = None


_SQUARES = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8")
_AMPERE = "8.0", 108, 1.41, 64, 167_936, 41_943_040
_HOPPER = "9.0a", 132, 1.98, 128, 233_472, 52_428_800

MACHINES = {
    "v5e": Machine(0.819e12, 16 * 2**30, _SQUARES),
    "v5p": Machine(2.765e12, 95 * 2**30, _CUBES),
    "v6e": Machine(1.64e12, 32 * 2**30, _SQUARES),
    "a100": Machine(
        2.039e12, 85_100_068_864, gpu=Gpu("NVIDIA A100-SXM4-80GB", *_AMPERE)
    ),
    "h100": Machine(
        3.352e12, 84_942_979_072, gpu=Gpu("NVIDIA H100 80GB HBM3", *_HOPPER)
    ),
    "h200": Machine(4.8e12, 151_397_597_184, gpu=Gpu("NVIDIA H200", *_HOPPER)),
}
"""The machines by the names that ``--compile_for`` takes. Memory and bandwidth of TPUs
are those of Google's "Cloud TPU system architecture", the numbers of GPUs (SXM) those
of the descriptions that XLA has of them.
"""


_NO_HOST = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_HOST_BOUNDS": "1,1,1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


class Topology(NamedTuple):
    """Several devices of one machine, such as ``v5e:2x4`` or ``h200:8``."""

    name: str
    machine: Machine
    shape: str

    @property
    def is_tpu(self) -> bool:
        """Whether this is a slice of TPU, and not a number of GPUs."""
        return self.machine.gpu is None


def parse_topology(text: str) -> Topology:
    """Read ``NAME:SHAPE`` for TPUs, ``NAME:COUNT`` for GPUs; without a colon one
    device, or the smallest slice. Google's ``v6e-16`` is refused with the shape.

    Raises:
        InputError: an unknown machine, or a shape that it does not have.
    """
    name, _, shape = text.lower().replace("-", ":", 1).partition(":")
    if name not in MACHINES:
        known = ", ".join(MACHINES)
        raise InputError(
            f"the topology {text!r} begins with no known machine: name one of {known},"
            " as in v5e:2x4 or h200:8"
        )
    machine = MACHINES[name]
    shape = shape or (machine.shapes[0] if machine.shapes else "1")
    if machine.shapes and shape not in machine.shapes:
        each = 2 if name == "v5p" else 1  # Google counts cores, or chips
        for known in machine.shapes:
            if shape == str(each * math.prod(map(int, known.split("x")))):
                raise InputError(f"{text} is named by its shape: give {name}:{known}")
        raise InputError(
            f"{name} has no slice {shape}: it is one of {', '.join(machine.shapes)}"
        )
    if not machine.shapes and not re.fullmatch(r"[1-9][0-9]{0,3}", shape):
        raise InputError(f"{name} takes a number of devices, as in {name}:8: {text!r}")
    return Topology(name, machine, shape)


def devices_of(topology: Topology) -> Sequence[Any]:
    """Return the devices to compile for.

    Raises:
        InputError: the compiler is not installed; the line names the extra.
    """
    # Only errors: for a device that is not there XLA warns of much.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        if topology.is_tpu:
            return _tpus(topology)
        return _gpus(topology)
    except InputError:
        raise
    except (RuntimeError, ValueError) as error:
        line = str(error).splitlines()[0]
        raise InputError(
            f"the compiler refuses the topology {topology.name}:{topology.shape}:"
            f" {line}"
        ) from error


def _tpus(topology: Topology) -> Sequence[Any]:
    _need("libtpu", "tpu", topology)
    # The library would ask the cloud's metadata server, for minutes, complain that it
    # knows no host, and lock the devices of this machine, of which none is used.
    for name, value in _NO_HOST.items():
        os.environ.setdefault(name, value)
    # The default is the four chips of a host.
    host = {"chips_per_host_bounds": [1, 1, 1]} if topology.shape == "1x1" else {}
    found = topologies.get_topology_desc(
        platform="tpu", topology_name=f"{topology.name}:{topology.shape}", **host
    )
    return found.devices


def _gpus(topology: Topology) -> Sequence[Any]:
    _need("jax_cuda12_plugin", "cuda12", topology)
    found = topologies.get_topology_desc(
        "gpu",
        "cuda",
        target_config=_target_config(topology.machine),
        topology=f"1x1x{topology.shape}",
    )
    return found.devices


def _target_config(machine: Machine) -> str:
    """Describe a GPU in the text form of XLA's message ``GpuTargetConfigProto``."""
    assert machine.gpu is not None
    gpu = machine.gpu
    major, minor = gpu.capability.rstrip("a").split(".")
    features = "ACCELERATED_FEATURES" if gpu.capability.endswith("a") else "NONE"
    return f"""
gpu_device_info {{
  name: "{gpu.kind}"
  device_vendor: "NVIDIA Corporation"
  cuda_compute_capability {{
    major: {major} minor: {minor} feature_extension: {features}
  }}
  core_count: {gpu.multiprocessors}
  fpus_per_core: {gpu.lanes}
  clock_rate_ghz: {gpu.clock}
  memory_bandwidth: {machine.bandwidth:.0f}
  device_memory_size: {machine.memory}
  l2_cache_size: {gpu.cache}
  shared_memory_per_core: {gpu.shared}
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: {gpu.shared - 1024}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  threads_per_warp: 32
  threads_per_block_limit: 1024
  threads_per_core_limit: 2048
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  device_address_bits: 64
  driver_version: "12.8.0"
  runtime_version: "12.8.0"
  compile_time_toolkit_version: "12.8.0"
  dnn_version: "9.10.0"
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "{gpu.kind}"
"""


def _need(module: str, extra: str, topology: Topology) -> None:
    if importlib.util.find_spec(module) is None:
        raise InputError(
            f"compiling for {topology.name} needs its compiler, which is not"
            f" installed: pip install 'jaxformer[{extra}]'"
        )
