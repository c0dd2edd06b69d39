"""What a training step takes on devices that need not be there, as their compiler says
it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

import jax

from jaxformer.data.batching import round_down, round_up
from jaxformer.errors import InputError
from jaxformer.models.flops import Work, peak_flops, training_flops
from jaxformer.models.seq2seq import make_model
from jaxformer.runs.config import RunConfig
from jaxformer.training.engines import Engine, make_engine
from jaxformer.training.mesh import row_shards
from jaxformer.training.program import Program
from jaxformer.training.step import SEGMENTS
from jaxformer.training.topologies import Machine, Topology, devices_of

Shapes = dict[str, tuple[int, int]]

# Without a device to time them on, XLA gives some matmuls to Triton that have no tiles.
_UNTILED = "Couldn't find output tile sizes"
_WITHOUT_TRITON: dict[str, str | bool] = {"xla_gpu_enable_triton_gemm": False}


@dataclasses.dataclass(frozen=True)
class DeviceMemory:
    """Bytes on each device.

    Attributes:
        state: parameters, optimizer and average, and what else the step is given.
        temporary: gradients, activations and working memory.
        program: the instructions.
        total: all that the device needs at the same time.
        device: what the device has.
        available: what JAX takes of it unless it is told otherwise.
    """

    state: int
    temporary: int
    program: int
    total: int
    device: int
    available: int

    @property
    def fits(self) -> bool:
        """Whether JAX takes so much by default."""
        return self.total <= self.available


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A training step that was compiled, for each device and each step.

    Attributes:
        batch: rows and lengths of the batch, all devices together.
        compiler_options: of XLA, which the compiler fails without.
        memory: bytes on a device.
        flops: of the model's matmuls, forward and backward.
        compiler_flops: of the compiled program as its compiler counts them, without
            those of Pallas kernels; None on a GPU, whose compiler does not say, and
            where there is a loop, which it counts once.
        bytes_moved: between the device and its main memory.
        bytes_exchanged: of the whole arrays that collectives gather, sum or pass on, by
            kind (:meth:`~jaxformer.training.program.Program.exchanged`).
        kernels: programs that the device starts.
        seconds: the least time by the published peak and bandwidth.
        share_of_peak: flops / peak / seconds, which no run can exceed.
        compiled_in: seconds.
    """

    batch: Shapes
    compiler_options: Mapping[str, str | bool]
    memory: DeviceMemory
    flops: float
    compiler_flops: float | None
    bytes_moved: int
    bytes_exchanged: Mapping[str, int]
    kernels: int
    seconds: float
    share_of_peak: float
    compiled_in: float


def largest_batch(config: RunConfig, multiple: int) -> Shapes:
    """Return the batch of a run with the longest rows, whose attention takes most.

    Args:
        config: of the run.
        multiple: of which the rows are one.
    """
    data = config.data
    length = (
        round_up(
            max(data.packed_length, data.max_length),
            data.shape_multiple,
            data.tokens_per_batch,
        )
        if data.packing
        else data.window or data.max_length
    )
    rows = max(round_down(data.tokens_per_batch // length, data.shape_multiple), 1)
    names = ("source", "target", *(SEGMENTS if data.packing else ()))
    if data.one_sided and data.labels_per_text is None:
        names = names[1::2]
    batch: Shapes = dict.fromkeys(names, (-(-rows // multiple) * multiple, length))
    if data.labels_per_text is not None:
        batch["target"] = (batch["target"][0], data.labels_per_text)
    if data.whole_words:
        batch["continues"] = batch.get("source", batch["target"])
    return batch


def compile_training_step(
    config: RunConfig, topology: Topology, shapes: Shapes | None = None
) -> Compiled:
    """Compile the training step of a configuration for a topology.

    Args:
        config: of the run.
        topology: the devices.
        shapes: of a batch of all devices; None: :func:`largest_batch`.

    Raises:
        InputError: the compiler is not installed, or refuses the step.
    """
    devices = devices_of(topology)
    peak = peak_flops(devices[0], config.model.dtype)
    if peak is None:
        raise InputError(
            f"{topology.name} has no published peak in {config.model.dtype}: set"
            " model.dtype"
        )
    engine = make_engine(make_model(config.model), config.training, devices)
    if shapes is None:
        parts = config.training.accumulation_steps
        shapes = largest_batch(config, row_shards(engine.mesh) * parts)
    begun = time.monotonic()
    compiled, options = _compile(engine, shapes)
    seconds = time.monotonic() - begun
    found = _describe(compiled, config, topology, shapes, engine, peak, seconds)
    return dataclasses.replace(found, compiler_options=options)


def compile_step(engine: Engine, shapes: Shapes) -> Any:
    """Compile the training step of an engine for a batch of these shapes.

    Raises:
        InputError: the program is larger than the device, or the compiler fails.
    """
    return _compile(engine, shapes)[0]


def _compile(engine: Engine, shapes: Shapes) -> tuple[Any, dict[str, str | bool]]:
    """Compile a step, and return the options that it takes."""
    lowered = engine.lower(shapes)
    try:
        try:
            return lowered.compile(), {}
        except jax.errors.JaxRuntimeError as error:
            if _UNTILED not in str(error):
                raise
        return lowered.compile(_WITHOUT_TRITON), _WITHOUT_TRITON
    except jax.errors.JaxRuntimeError as error:
        line = str(error).splitlines()[0]
        raise InputError(f"the compiler refuses the step: {line}") from error


def _describe(
    compiled: Any,
    config: RunConfig,
    topology: Topology,
    shapes: Shapes,
    engine: Engine,
    peak: float,
    seconds: float,
) -> Compiled:
    machine = topology.machine
    program = Program(compiled.as_text())
    kernels = program.kernels()
    moved = sum(kernel.times * kernel.bytes for kernel in kernels)
    flops = model_flops(config, shapes) / engine.devices
    costs = (compiled.cost_analysis() or {}) if topology.is_tpu else {}
    looped = any(kernel.times > 1 for kernel in kernels)
    known = None if looped else costs.get("flops")
    least = max(moved / machine.bandwidth, max(known or 0.0, flops) / peak)
    if not topology.is_tpu:
        # A GPU runs one kernel after another; a TPU fetches what is next meanwhile.
        each = (kernel.seconds(machine.bandwidth, peak) for kernel in kernels)
        least = max(least, sum(each))
    return Compiled(
        batch=shapes,
        compiler_options={},
        memory=_memory(compiled, machine),
        flops=flops,
        compiler_flops=known,
        bytes_moved=moved,
        bytes_exchanged=program.exchanged(),
        kernels=sum(kernel.times for kernel in kernels),
        seconds=least,
        share_of_peak=flops / peak / least,
        compiled_in=seconds,
    )


def _memory(compiled: Any, machine: Machine) -> DeviceMemory:
    found = compiled.memory_analysis()
    state, temporary, program = (
        found.argument_size_in_bytes,
        found.temp_size_in_bytes,
        found.generated_code_size_in_bytes,
    )
    # A donated argument and the result that replaces it share their memory.
    results = found.output_size_in_bytes - found.alias_size_in_bytes
    total = state + temporary + program + results
    # XLA_PYTHON_CLIENT_MEM_FRACTION is 0.75 unless it is set.
    available = machine.memory * 3 // 4 if machine.gpu else machine.memory
    return DeviceMemory(state, temporary, program, total, machine.memory, available)


def model_flops(config: RunConfig, shapes: Shapes) -> float:
    """Count the operations of the model's matmuls in an update, on all devices."""
    rows, target = shapes["target"]
    _, source = shapes.get("source", shapes["target"])
    masked = config.training.masks
    target = source if masked else target
    work = Work(
        rows * source,
        rows * target * (config.training.mask_rate if masked else 1.0),
        *(
            rows * queries * keys
            for queries, keys in ((source, source), (target, target), (target, source))
        ),
    )
    passes = 2 if config.training.r_drop else 1
    return training_flops(config.model, work, passes=passes)
