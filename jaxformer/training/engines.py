"""How a step runs: on one device, replicated over the devices of all hosts, or
sharded over a mesh of them.
"""

from __future__ import annotations

from typing import Protocol

import jax
import numpy as np

from jaxformer.errors import InputError
from jaxformer.models.seq2seq import Transformer
from jaxformer.runs.training import TrainingConfig
from jaxformer.training.mesh import MeshEngine, make_mesh
from jaxformer.training.placement import Placed
from jaxformer.training.pmap import PmapEngine
from jaxformer.training.state import TrainState
from jaxformer.training.step import Batch, Metrics
from jaxformer.typing import PyTree


class Engine(Protocol):
    """Runs steps on devices. A state has the engine's own form; :meth:`place` and
    :meth:`collect` change it.

    A collected state is made of arrays over the devices of all hosts, as checkpoints
    hold them.
    """

    @property
    def devices(self) -> int:
        """How many devices work together."""
        ...

    @property
    def share(self) -> tuple[int, int]:
        """Which share of the rows of each batch this host makes, and of how many."""
        ...

    def create(self) -> TrainState:
        """Make the state of a run that begins, each array where it stays."""
        ...

    def abstract(self) -> TrainState:
        """Return shapes, types and shardings of a collected state."""
        ...

    def place(self, state: TrainState) -> TrainState:
        """Put a collected state, or one of plain arrays, where the steps run; the
        given one may be kept.
        """
        ...

    def collect(self, state: TrainState) -> TrainState:
        """Return the state as checkpoints hold it."""
        ...

    def weights(self, state: TrainState) -> PyTree:
        """Return the parameters to translate with, whole, on one device of this
        host.
        """
        ...

    def put(self, batch: Batch) -> Placed:
        """Begin to copy this host's rows of a batch to where the steps run; rows of
        padding may be added.
        """
        ...

    def step(
        self, state: TrainState, batch: Batch | Placed
    ) -> tuple[TrainState, Metrics]:
        """Update once; the old state is used up. The batch is as the data give it,
        or as :meth:`put` placed it.
        """
        ...

    def evaluate(self, state: TrainState, batch: Batch) -> Metrics:
        """Sum the metrics of a batch without any change; every host gives the whole
        of it.
        """
        ...

    def compilations(self) -> int:
        """Count how often the training step was compiled: once for each shape of a
        batch.
        """
        ...


def make_engine(model: Transformer, config: TrainingConfig) -> Engine:
    """Compile the steps for the engine that ``training.engine`` names.

    Raises:
        InputError: the engine does not fit the hosts or devices.
    """
    several = jax.device_count() > 1  # of all hosts
    name = ("pmap" if several else "jit") if config.engine == "auto" else config.engine
    if name == "jit" and jax.process_count() > 1:
        raise InputError(
            f"training.engine=jit is for one host, and there are {jax.process_count()}:"
            " set training.engine=pmap or mesh"
        )
    if name == "pmap":
        return PmapEngine.of(model, config)
    devices = jax.local_devices()[:1] if name == "jit" else jax.devices()
    return MeshEngine.of(model, config, make_mesh(np.array(devices), config))
