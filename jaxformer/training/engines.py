"""The engine: where the state and the batches are, and how a step runs on them.

One class serves one device, copies on all devices under ``jax.pmap``, and a mesh under
``jax.jit``. They differ in the compiled steps and in the shardings, which
:func:`make_engine` puts together.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxformer.data.encoding import cores
from jaxformer.errors import InputError
from jaxformer.models.base import Model
from jaxformer.models.lora import merged
from jaxformer.runs.training import TrainingConfig
from jaxformer.training import mesh as meshes
from jaxformer.training import pmap
from jaxformer.training.objectives import Batch
from jaxformer.training.state import TrainState, create_state
from jaxformer.training.step import SEGMENTS, Metrics
from jaxformer.typing import Array, PyTree


class PlacedBatch(dict[str, Array]):
    """A batch on the devices that run the steps, as :meth:`Engine.put` returns it."""


@dataclasses.dataclass(frozen=True)
class Engine:
    """Runs steps on the devices of a mesh.

    Attributes:
        mesh: the devices of all hosts.
        train_step: compiled; it consumes the state that it is given.
        eval_step: compiled; takes the parameters only.
        create: draws the state that a run begins with, each array where it stays.
        shapes: of the state.
        shardings: of the state.
        rows: sharding of a batch.
        split: local devices over which ``pmap`` maps a leading axis of each batch;
            None: batches have no such axis.
        share: which share of the rows of each batch this host computes, and of how
            many.
        pad_id: the padding token.
        accumulation_steps: parts of a batch in one update.
        compiler: threads that compile, since the compiler does not hold Python's lock.
        programs: what they compile, by step and shape.
    """

    mesh: Mesh
    train_step: Any
    eval_step: Any
    create: Any
    shapes: TrainState
    shardings: TrainState
    rows: NamedSharding
    split: int | None
    share: tuple[int, int]
    pad_id: int
    accumulation_steps: int
    compiler: ThreadPoolExecutor = dataclasses.field(
        default_factory=lambda: ThreadPoolExecutor(max(2, cores() // 2), "compiler")
    )
    programs: dict[Any, Future[Any]] = dataclasses.field(default_factory=dict)

    @property
    def devices(self) -> int:
        """The number of devices that work together."""
        return self.mesh.size

    def abstract(self) -> TrainState:
        """Return shapes, types and shardings of a collected state."""
        return jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, sharding=sharding
            ),
            self.shapes,
            self.shardings,
        )

    def place(self, state: TrainState) -> TrainState:
        """Copy a collected state, or one of local arrays, to where the steps run."""

        def copy(leaf: Array, sharding: NamedSharding) -> Array:
            if jax.process_count() > 1 and leaf.is_fully_addressable:
                whole = np.asarray(leaf)
                return jax.make_array_from_callback(
                    leaf.shape, sharding, lambda index: whole[index]
                )
            # A copy, without a program for its shape.
            here = getattr(leaf, "sharding", None)
            copied = jax.device_put(leaf, here, may_alias=False)
            return jax.device_put(copied, sharding)

        return jax.tree.map(copy, state, self.shardings)

    def collect(self, state: TrainState) -> TrainState:
        """Return the state as arrays over the devices of all hosts, as checkpoints hold
        it.
        """

        def collected(leaf: Array, sharding: NamedSharding) -> Array:
            if leaf.sharding == sharding:
                return leaf
            # With several hosts, pmap returns arrays over the devices of this host.
            copies = [shard.data for shard in leaf.addressable_shards]
            return jax.make_array_from_single_device_arrays(
                leaf.shape, sharding, copies
            )

        return jax.tree.map(collected, state, self.shardings)

    def weights(self, state: TrainState) -> PyTree:
        """Return the parameters to translate with, whole and with adapters merged, on
        one device of this host.
        """
        weights = state.evaluated
        if not all(leaf.is_fully_replicated for leaf in jax.tree.leaves(weights)):
            everywhere = NamedSharding(self.mesh, PartitionSpec())
            weights = _gather(weights, everywhere)
        return merged(
            jax.tree.map(lambda leaf: leaf.addressable_shards[0].data, weights)
        )

    def put(self, batch: Batch) -> PlacedBatch:
        """Begin to copy this host's rows of a batch to the devices; rows of padding may
        be added.
        """
        return self._place(batch, self.accumulation_steps)

    def step(
        self, state: TrainState, batch: Batch | PlacedBatch
    ) -> tuple[TrainState, Metrics]:
        """Update once; the old state is consumed."""
        placed = batch if isinstance(batch, PlacedBatch) else self.put(batch)
        return self.train_step(state, dict(placed))

    def evaluate(self, state: TrainState, batch: Batch) -> Metrics:
        """Sum the metrics of a batch, of which every host has all rows."""
        return self.eval_step(state.evaluated, dict(self._put_own(batch)))

    def compile(self, batch: Batch, *, train: bool = True) -> Future[Any]:
        """Begin to compile :meth:`step` for batches of this shape, or
        :meth:`evaluate`, unless that is begun. Whoever waits for the end then calls a
        step that JAX has compiled. With several hosts the call compiles it.
        """
        if jax.process_count() > 1:
            return self.compiler.submit(lambda: None)
        key = train, *((name, rows.shape) for name, rows in batch.items())
        if key not in self.programs:
            state, step = self.abstract(), self.train_step if train else self.eval_step
            given = state if train else state.evaluated
            placed = self.put(batch) if train else self._put_own(batch)
            # What it is traced to depends on settings of JAX that only its thread has.
            lowered = step.lower(given, dict(placed))
            self.programs[key] = self.compiler.submit(lowered.compile)
        return self.programs[key]

    def lower(self, shapes: dict[str, tuple[int, int]]) -> jax.stages.Lowered:
        """Lower the training step for a batch of these shapes, without any array.

        Args:
            shapes: of ``source`` and ``target``, all devices together.
        """

        def whole(rows: int, length: int) -> jax.ShapeDtypeStruct:
            lead = (
                (rows,) if self.split is None else (self.devices, rows // self.devices)
            )
            return jax.ShapeDtypeStruct(
                (*lead, length), jax.numpy.int32, sharding=self.rows
            )

        batch = {name: whole(*shape) for name, shape in shapes.items()}
        return self.train_step.lower(self.abstract(), batch)

    def _put_own(self, batch: Batch) -> PlacedBatch:
        """Put this host's share of a batch that it has all rows of."""
        index, count = self.share
        own = {
            name: np.split(rows, count)[index]
            for name, rows in self._fill(batch, count).items()
        }
        return self._place(own, 1)

    def _place(self, batch: Batch, parts: int) -> PlacedBatch:
        _, count = self.share
        shards = meshes.row_shards(self.mesh)

        def place(rows: np.ndarray) -> Array:
            if self.split is not None:
                rows = rows.reshape(self.split, -1, rows.shape[1])
            shape = (rows.shape[0] * count, *rows.shape[1:])
            return jax.make_array_from_process_local_data(self.rows, rows, shape)

        filled = self._fill(batch, shards // count * parts)
        return PlacedBatch({name: place(rows) for name, rows in filled.items()})

    def _fill(self, batch: Batch, multiple: int) -> dict[str, np.ndarray]:
        """Add rows of padding, which weigh nothing, up to a multiple."""

        def filled(name: str, rows: Array | np.ndarray) -> np.ndarray:
            missing = -rows.shape[0] % multiple
            if not missing:
                return np.asarray(rows)  # without a copy
            padding = 0 if name in SEGMENTS else self.pad_id
            return np.pad(rows, ((0, missing), (0, 0)), constant_values=padding)

        return {name: filled(name, rows) for name, rows in batch.items()}


@functools.partial(jax.jit, static_argnums=1)
def _gather(leaves: PyTree, sharding: NamedSharding) -> PyTree:
    return jax.lax.with_sharding_constraint(leaves, sharding)


def make_engine(
    model: Model,
    config: TrainingConfig,
    devices: Sequence[Any] | None = None,
) -> Engine:
    """Compile the steps for the engine that ``training.engine`` names.

    Args:
        model: what is trained.
        config: the recipe.
        devices: that work together, of all hosts; None: all that JAX sees. Those of a
            topology, which need not be there, serve only :meth:`Engine.lower`.

    Raises:
        InputError: the engine does not fit the hosts or devices.
    """
    found = jax.devices() if devices is None else devices
    model = model.copy(device=found[0])
    name = _choose_engine(config, several=len(found) > 1)

    @jax.jit
    def first_state() -> TrainState:
        return create_state(model, config)

    shapes = jax.eval_shape(first_state)
    if name == "pmap":
        mesh = pmap.make_mesh(found)
        train_step, eval_step = pmap.make_steps(model, config, mesh)
        everywhere = NamedSharding(mesh, PartitionSpec())
        shardings = jax.tree.map(lambda _: everywhere, shapes)
        rows = NamedSharding(mesh, PartitionSpec(pmap.AXIS))
        split = jax.local_device_count()
        share = jax.process_index(), jax.process_count()
    else:
        mesh = meshes.make_mesh(found[:1] if name == "jit" else found, config)
        meshes.check_divisible(model, mesh)
        shardings = meshes.shard(shapes, mesh, moments_over_data=config.shard_moments)
        rows = NamedSharding(mesh, meshes.ROWS)
        train_step, eval_step = meshes.make_steps(model, config, mesh, shardings)
        split, share = None, meshes.share_of(mesh)
    return Engine(
        mesh=mesh,
        train_step=train_step,
        eval_step=eval_step,
        create=jax.jit(first_state, out_shardings=shardings),
        shapes=shapes,
        shardings=shardings,
        rows=rows,
        split=split,
        share=share,
        pad_id=model.config.pad_id,
        accumulation_steps=config.accumulation_steps,
    )


def _choose_engine(config: TrainingConfig, *, several: bool) -> str:
    """Return the name of the engine, by whether there are several devices."""
    name = ("pmap" if several else "jit") if config.engine == "auto" else config.engine
    if name == "jit" and jax.process_count() > 1:
        raise InputError(
            f"training.engine=jit is for one host, and there are {jax.process_count()}:"
            " set training.engine=pmap or mesh"
        )
    return name
