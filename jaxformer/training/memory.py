"""How many bytes of a training state each device holds, from the shapes of its arrays
after sharding. Nothing is compiled and no array is made.
"""

from __future__ import annotations

import dataclasses
import math

import jax
from jax.sharding import AbstractMesh, AxisType

from jaxformer.models.config import TransformerConfig
from jaxformer.models.make import make_model
from jaxformer.runs.training import TrainingConfig
from jaxformer.training.mesh import AXES, mesh_shape, shard
from jaxformer.training.optimizer import trained_part
from jaxformer.training.state import create_state
from jaxformer.typing import PyTree


@dataclasses.dataclass(frozen=True)
class StateMemory:
    """Bytes on each device.

    Attributes:
        parameters: float32; those of the base under LoRA too.
        optimizer: what the optimizer keeps: two moments for Adam, one for Lion, rows
            and columns for Adafactor.
        average: the moving average, or 0.
        gradients: of what is trained, sharded as the parameters; twice with
            accumulation, which keeps their sum too.
    """

    parameters: int
    optimizer: int
    average: int
    gradients: int

    @property
    def total(self) -> int:
        """All of it; activations and the compiler's working memory come on top."""
        return sum(dataclasses.astuple(self))


def abstract_mesh(engine: str, devices: int, config: TrainingConfig) -> AbstractMesh:
    """Return the mesh of an engine over devices that need not exist. ``jit`` uses one,
    ``pmap`` only the data axis.

    Raises:
        InputError: ``training.mesh_fsdp`` times ``training.mesh_tensor`` does not
            divide the number of devices.
    """
    shape = (1 if engine == "jit" else devices, 1, 1)
    if engine == "mesh":
        shape = mesh_shape(devices, config)
    return AbstractMesh(shape, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def count_bytes(
    model: TransformerConfig, config: TrainingConfig, mesh: AbstractMesh
) -> StateMemory:
    """Count the bytes on each device of a mesh.

    Raises:
        InputError: ``training.frozen`` or LoRA does not fit the model.
    """
    state = jax.eval_shape(lambda: create_state(make_model(model), config))
    shardings = shard(state, mesh, moments_over_data=config.shard_moments)
    parameters = _bytes(state.params, shardings.params)
    trained = [
        trained_part(tree, config.frozen) for tree in (state.params, shardings.params)
    ]
    gradients = _bytes(*trained)
    return StateMemory(
        parameters=parameters + _bytes(state.base, shardings.base),
        optimizer=_bytes(state.optimizer, shardings.optimizer),
        average=_bytes(state.average, shardings.average),
        gradients=gradients if config.accumulation_steps == 1 else 2 * gradients,
    )


def _bytes(tree: PyTree, shardings: PyTree) -> int:
    sizes = jax.tree.map(
        lambda leaf, sharding: (
            math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        ),
        tree,
        shardings,
    )
    return sum(jax.tree.leaves(sizes))
