"""How a step runs: compiled for one device, or replicated over all local devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxformer.errors import InputError
from jaxformer.models.seq2seq import Transformer
from jaxformer.training.config import TrainingConfig
from jaxformer.training.state import TrainState
from jaxformer.training.step import SEGMENTS, Batch, Metrics, TrainStep, make_eval_step, make_train_step
from jaxformer.typing import Array

AXIS = "devices"


class Placed(dict[str, Array | np.ndarray]):
    """A batch where the steps run, as an engine's ``put`` gives it."""


class Engine(Protocol):
    """Runs steps on devices; state goes in by :meth:`place` and comes out by :meth:`collect`."""

    @property
    def devices(self) -> int:
        """How many devices share each batch."""
        ...

    def place(self, state: TrainState) -> TrainState:
        """Put a state where the steps run."""
        ...

    def collect(self, state: TrainState) -> TrainState:
        """Give the state as plain arrays of one device."""
        ...

    def put(self, batch: Batch) -> Placed:
        """Begin to copy a batch to where the steps run, for :meth:`step`; rows of padding may be added."""
        ...

    def step(self, state: TrainState, batch: Batch | Placed) -> tuple[TrainState, Metrics]:
        """Update once; the old state is used up. The batch is as the data give it, or as :meth:`put` placed it."""
        ...

    def evaluate(self, state: TrainState, batch: Batch) -> Metrics:
        """Sum the metrics of a batch without any change."""
        ...

    def compilations(self) -> int:
        """Count how often the training step was compiled: once for each shape of a batch."""
        ...


@dataclasses.dataclass(frozen=True)
class JitEngine:
    """One device, ``jax.jit``."""

    train_step: Any
    eval_step: Any
    traces: Callable[[], int]
    devices: int = 1

    def place(self, state: TrainState) -> TrainState:
        """Copy the state, since the first step uses up what it is given."""
        # Bound to its device as a restored state is, so that a resumed run finds the compiled steps of the first.
        device = jax.local_devices()[0]
        return jax.tree.map(lambda leaf: jax.device_put(jax.numpy.array(leaf), device), state)

    def collect(self, state: TrainState) -> TrainState:
        """Give the state as it is."""
        return state

    def put(self, batch: Batch) -> Placed:
        """Begin to copy a batch to the device."""
        return Placed(jax.device_put(dict(batch), jax.local_devices()[0]))

    def step(self, state: TrainState, batch: Batch | Placed) -> tuple[TrainState, Metrics]:
        """Update once."""
        return self.train_step(state, dict(batch))

    def evaluate(self, state: TrainState, batch: Batch) -> Metrics:
        """Sum the metrics of a batch."""
        return self.eval_step(state.params, batch)

    def compilations(self) -> int:
        """Count the compiled training steps."""
        return self.traces()


@dataclasses.dataclass(frozen=True)
class PmapEngine:
    """All local devices, ``jax.pmap``: the state on each, and of each batch an equal share of the rows."""

    train_step: Any
    eval_step: Any
    traces: Callable[[], int]
    devices: int
    pad_id: int

    def place(self, state: TrainState) -> TrainState:
        """Copy the state to every device."""
        stacked = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (self.devices, *np.shape(leaf))), state)
        # By the axis name of the steps: by another one the first step would be compiled twice.
        return jax.pmap(lambda leaf: leaf, axis_name=AXIS)(stacked)

    def collect(self, state: TrainState) -> TrainState:
        """Give the first device's copy; all are equal."""
        return jax.tree.map(lambda leaf: leaf.addressable_shards[0].data.reshape(leaf.shape[1:]), state)

    def put(self, batch: Batch) -> Placed:
        """Begin to copy each device's rows to it."""
        if jax.process_count() > 1:  # pmap itself knows which part of its whole the rows of this host are
            return Placed(self._share(batch))
        # On the same axis as the steps, so that nothing is copied again.
        sharding = NamedSharding(Mesh(np.array(jax.local_devices()), AXIS), PartitionSpec(AXIS))
        return Placed(jax.device_put(self._share(batch), sharding))

    def step(self, state: TrainState, batch: Batch | Placed) -> tuple[TrainState, Metrics]:
        """Update once on all devices together."""
        state, metrics = self.train_step(state, dict(batch) if isinstance(batch, Placed) else self._share(batch))
        return state, _first(metrics)

    def evaluate(self, state: TrainState, batch: Batch) -> Metrics:
        """Sum the metrics of a batch over all devices."""
        return _first(self.eval_step(state.params, self._share(batch)))

    def compilations(self) -> int:
        """Count the compiled training steps."""
        return self.traces()

    def _share(self, batch: Batch) -> dict[str, np.ndarray]:
        """Give each device an equal number of rows; rows of padding, which weigh nothing, fill up the last ones."""

        def split(rows: Array | np.ndarray, padding: int) -> np.ndarray:
            missing = -rows.shape[0] % self.devices
            filled = np.pad(rows, ((0, missing), (0, 0)), constant_values=padding)
            return filled.reshape(self.devices, -1, rows.shape[1])

        return {name: split(rows, 0 if name in SEGMENTS else self.pad_id) for name, rows in batch.items()}


def _first(metrics: Metrics) -> Metrics:
    return jax.tree.map(lambda leaf: leaf.addressable_shards[0].data.reshape(()), metrics)


def make_engine(model: Transformer, optimizer: optax.GradientTransformation, config: TrainingConfig) -> Engine:
    """Compile the steps for the engine that ``training.engine`` names.

    Raises:
        InputError: the model and the engine do not fit each other.
    """
    several = jax.device_count() > 1  # of all hosts
    name = ("pmap" if several else "jit") if config.engine == "auto" else config.engine
    if name == "jit" and jax.process_count() > 1:
        raise InputError(
            f"training.engine=jit is for one host, and there are {jax.process_count()}: set training.engine=pmap"
        )
    axis_name = AXIS if name == "pmap" else None
    smoothing, convention = config.label_smoothing, config.smoothing_convention
    train_step = make_train_step(model, optimizer, smoothing=smoothing, convention=convention, axis_name=axis_name)
    eval_step = make_eval_step(model, smoothing=smoothing, convention=convention, axis_name=axis_name)
    train_step, traces = _count_traces(train_step)
    if name == "jit":
        return JitEngine(jax.jit(train_step, donate_argnums=0), jax.jit(eval_step), traces)
    return PmapEngine(
        jax.pmap(train_step, axis_name=AXIS, donate_argnums=0),
        jax.pmap(eval_step, axis_name=AXIS),
        traces,
        jax.local_device_count(),
        model.config.pad_id,
    )


def _count_traces(step: TrainStep) -> tuple[TrainStep, Callable[[], int]]:
    """Give the step and what tells how often it was traced: neither engine says how often it compiled."""
    traces = 0

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        nonlocal traces
        traces += 1
        return step(state, batch)

    return train_step, lambda: traces
