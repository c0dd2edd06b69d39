"""Devices that need not be there, and programs that are compiled for them.

A slice of TPU needs ``pip install 'jaxformer[tpu]'``, GPUs ``jaxformer[cuda12]``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import jax
from jax.experimental import topologies

from jaxformer.training.engines import Engine

# An H200 as XLA's message GpuTargetConfigProto describes it.
_H200 = """
gpu_device_info {
  name: "NVIDIA H200"
  device_vendor: "NVIDIA Corporation"
  cuda_compute_capability {
    major: 9 minor: 0 feature_extension: ACCELERATED_FEATURES
  }
  core_count: 132
  fpus_per_core: 128
  clock_rate_ghz: 1.98
  memory_bandwidth: 4800000000000
  device_memory_size: 151397597184
  l2_cache_size: 52428800
  shared_memory_per_core: 233472
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
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
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
device_description_str: "NVIDIA H200"
"""
# The TPU's library would ask the cloud for its host, and lock the devices of this one.
_NO_HOST = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_HOST_BOUNDS": "1,1,1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
# Without a device to time them on, XLA gives some matmuls to Triton that have no tiles.
_UNTILED = "Couldn't find output tile sizes"


def devices_of(name: str) -> Sequence[Any]:
    """Return the devices of ``h200:COUNT``, or of a slice of TPU such as ``v5e:2x4``,
    ``v5p:2x2x1`` or ``v6e:1x1``.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    kind, _, shape = name.partition(":")
    if kind == "h200":
        found = topologies.get_topology_desc(
            "gpu", "cuda", target_config=_H200, topology=f"1x1x{shape}"
        )
        return found.devices
    for variable, value in _NO_HOST.items():
        os.environ.setdefault(variable, value)
    # The default is the four chips of a host.
    host = {"chips_per_host_bounds": [1, 1, 1]} if shape == "1x1" else {}
    return topologies.get_topology_desc(
        platform="tpu", topology_name=name, **host
    ).devices


def compile_step(engine: Engine, shapes: dict[str, tuple[int, int]]) -> Any:
    """Compile the training step of an engine for a batch of these shapes."""
    lowered = engine.lower(shapes)
    try:
        return lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if _UNTILED not in str(error):
            raise
    return lowered.compile({"xla_gpu_enable_triton_gemm": False})
