"""The engine ``pmap``: the state on every device of every host, and of each batch an
equal share of the rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxformer.models.seq2seq import Transformer
from jaxformer.runs.training import TrainingConfig
from jaxformer.training.placement import Placed, count_traces, cut, fill
from jaxformer.training.state import TrainState, create_state
from jaxformer.training.step import Batch, Metrics, make_eval_step, make_train_step
from jaxformer.typing import Array, PyTree

AXIS = "devices"


@dataclasses.dataclass(frozen=True)
class PmapEngine:
    """All devices, ``jax.pmap``; its states have a leading axis, one entry for each
    device of this host.
    """

    train_step: Any
    eval_step: Any
    first_state: Callable[[], TrainState]
    shapes: TrainState
    traces: Callable[[], int]
    pad_id: int
    accumulation_steps: int

    @classmethod
    def of(cls, model: Transformer, config: TrainingConfig) -> PmapEngine:
        """Build the steps."""
        train_step, traces = count_traces(
            make_train_step(model, config, axis_name=AXIS)
        )

        def first_state() -> TrainState:
            return create_state(model, config)

        return cls(
            jax.pmap(train_step, axis_name=AXIS, donate_argnums=0),
            jax.pmap(make_eval_step(model, config, axis_name=AXIS), axis_name=AXIS),
            first_state,
            jax.eval_shape(first_state),
            traces,
            model.config.pad_id,
            config.accumulation_steps,
        )

    @property
    def devices(self) -> int:
        """How many devices share each batch."""
        return jax.device_count()

    @property
    def share(self) -> tuple[int, int]:
        """Which host of how many this is."""
        return jax.process_index(), jax.process_count()

    def create(self) -> TrainState:
        """Make the first state on every device."""
        return self.place(self.first_state())

    def abstract(self) -> TrainState:
        """Return shapes and types, replicated over all devices."""
        everywhere = _replicated()
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, sharding=everywhere
            ),
            self.shapes,
        )

    def place(self, state: TrainState) -> TrainState:
        """Copy the state to every device."""
        count = jax.local_device_count()
        stacked = jax.tree.map(
            lambda leaf: np.broadcast_to(leaf, (count, *np.shape(leaf))), state
        )
        # By the axis name of the steps: by another one the first step would be compiled
        # twice.
        return jax.pmap(lambda leaf: leaf, axis_name=AXIS)(stacked)

    def collect(self, state: TrainState) -> TrainState:
        """Return the state without its leading axis; all copies are equal."""
        everywhere = _replicated()

        def whole(leaf: Array) -> Array:
            shape = leaf.shape[1:]
            copies = [copy.data.reshape(shape) for copy in leaf.addressable_shards]
            return jax.make_array_from_single_device_arrays(shape, everywhere, copies)

        return jax.tree.map(whole, state)

    def weights(self, state: TrainState) -> PyTree:
        """Return the parameters of the first device of this host."""
        return jax.tree.map(_first, state.weights)

    def put(self, batch: Batch) -> Placed:
        """Begin to copy each device's rows to it."""
        shared = self._shared(batch, self.accumulation_steps)
        # pmap itself knows which part of its whole the rows of this host are
        if jax.process_count() > 1:
            return Placed(shared)
        # On the same axis as the steps, so that nothing is copied again.
        return Placed(
            jax.device_put(
                shared,
                NamedSharding(Mesh(np.array(jax.devices()), AXIS), PartitionSpec(AXIS)),
            )
        )

    def step(
        self, state: TrainState, batch: Batch | Placed
    ) -> tuple[TrainState, Metrics]:
        """Update once on all devices together."""
        rows = (
            dict(batch)
            if isinstance(batch, Placed)
            else self._shared(batch, self.accumulation_steps)
        )
        state, metrics = self.train_step(state, rows)
        return state, jax.tree.map(_first, metrics)

    def evaluate(self, state: TrainState, batch: Batch) -> Metrics:
        """Sum the metrics of a batch over all devices."""
        own = cut(batch, *self.share, self.pad_id)
        return jax.tree.map(_first, self.eval_step(state.weights, self._shared(own)))

    def compilations(self) -> int:
        """Count the compiled training steps."""
        return self.traces()

    def _shared(self, batch: Batch, parts: int = 1) -> dict[str, np.ndarray]:
        """Give each device of this host an equal number of rows."""
        count = jax.local_device_count()
        filled = fill(batch, count * parts, self.pad_id)
        return {
            name: rows.reshape(count, -1, rows.shape[1])
            for name, rows in filled.items()
        }


def _replicated() -> NamedSharding:
    return NamedSharding(Mesh(np.array(jax.devices()), AXIS), PartitionSpec())


def _first(leaf: Array) -> Array:
    return leaf.addressable_shards[0].data.reshape(leaf.shape[1:])
