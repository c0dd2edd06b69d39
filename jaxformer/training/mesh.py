"""Steps under ``jax.jit`` over a named mesh, the engines ``mesh`` and ``jit``. The
compiler adds what devices exchange.

=========== ============================================= ==============================
axis        shares out                                    devices
=========== ============================================= ==============================
``data``    the rows of a batch                           those that the others leave
``fsdp``    the rows, and every parameter by its width    ``training.mesh_fsdp``
``tensor``  heads, hidden units and the vocabulary        ``training.mesh_tensor``
=========== ============================================= ==============================
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from jaxformer.errors import InputError
from jaxformer.kernels.mesh import ROW_AXES, TENSOR_AXIS
from jaxformer.models.axis_names import logical_axes
from jaxformer.models.base import Model
from jaxformer.runs.training import TrainingConfig
from jaxformer.training.objectives import Batch
from jaxformer.training.state import TrainState
from jaxformer.training.step import make_eval_step, make_train_step
from jaxformer.typing import Array, PyTree

AXES = (*ROW_AXES, TENSOR_AXIS)
"""The axes of a mesh: batches and optimizer state are divided over the first two,
layers over the last.
"""

DATA, FSDP, TENSOR = AXES

ROWS = PartitionSpec(ROW_AXES)
"""The rows of a batch."""

RULES = {"vocabulary": TENSOR, "heads": TENSOR, "hidden": TENSOR, "embed": FSDP}
"""Over which axis of the mesh each logical axis of a parameter is sharded. Other axes
stay whole on every device, and so does a length that the axis does not divide.
"""


DETERMINISTIC = "xla_gpu_deterministic_ops"
"""The option of XLA that guarantees equal bits from run to run on a GPU."""


def mesh_shape(devices: int, config: TrainingConfig) -> tuple[int, int, int]:
    """Return the lengths of :data:`AXES` for so many devices.

    Raises:
        InputError: ``training.mesh_fsdp`` times ``training.mesh_tensor`` does not
            divide their number.
    """
    inner = config.mesh_fsdp * config.mesh_tensor
    if devices % inner:
        raise InputError(
            f"training.mesh_fsdp={config.mesh_fsdp} times"
            f" training.mesh_tensor={config.mesh_tensor} must divide the {devices}"
            f" devices: their product is to be {_either(devices, devices)}"
        )
    return devices // inner, config.mesh_fsdp, config.mesh_tensor


def make_mesh(devices: Sequence[Any], config: TrainingConfig) -> Mesh:
    """Arrange devices in the mesh that ``training.mesh_fsdp`` and
    ``training.mesh_tensor`` describe.

    Raises:
        InputError: they do not divide the number of devices.
    """
    shape = mesh_shape(len(devices), config)
    # With explicit axes, which are the default, every operation on sharded arrays would
    # have to name its sharding.
    types = (AxisType.Auto,) * len(AXES)
    return jax.make_mesh(shape, AXES, axis_types=types, devices=devices)


def compiler_options(config: TrainingConfig, mesh: Mesh) -> dict[str, bool]:
    """Return the options of XLA that ``training.deterministic`` needs on these devices.

    On a GPU scatters add in no fixed order, and the compiler chooses kernels by timing
    them. The option excludes both.
    """
    gpu = mesh.devices.flat[0].platform == "gpu"
    return {DETERMINISTIC: True} if config.deterministic and gpu else {}


def make_steps(
    model: Model,
    config: TrainingConfig,
    mesh: Mesh,
    shardings: TrainState,
) -> tuple[Any, Any]:
    """Compile ``train_step(state, batch)`` and ``eval_step(params, batch)``; the
    compiler adds what devices exchange.

    Args:
        model: what is trained.
        config: the recipe.
        mesh: with the axes :data:`AXES`; a mesh of one device is the engine ``jit``.
        shardings: of the state.
    """

    def place(params: PyTree) -> PyTree:
        return _gather_tables(params, mesh)

    def over_mesh(step: Any) -> Any:
        @functools.wraps(step)  # its name is the program's, in profiles
        def run(state: PyTree, batch: Batch) -> Any:
            with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
                return step(state, batch)

        return run

    rows, everywhere = NamedSharding(mesh, ROWS), NamedSharding(mesh, PartitionSpec())
    options = compiler_options(config, mesh)
    return (
        jax.jit(
            over_mesh(make_train_step(model, config, place=place)),
            in_shardings=(shardings, rows),
            out_shardings=(shardings, everywhere),
            donate_argnums=0,
            compiler_options=options,
        ),
        jax.jit(
            over_mesh(make_eval_step(model, config, place=place)),
            in_shardings=(shardings.evaluated, rows),
            out_shardings=everywhere,
            compiler_options=options,
        ),
    )


def row_shards(mesh: Mesh) -> int:
    """Count the parts into which the rows of a batch are cut, under ``pmap`` too."""
    return mesh.size // mesh.shape.get(TENSOR, 1)


def share_of(mesh: Mesh) -> tuple[int, int]:
    """Return which rows of a batch this host's devices hold, as one of how many equal
    shares.

    Hosts whose devices hold parts of the same rows, because ``tensor`` reaches over
    them, have the same share.
    """
    count = row_shards(mesh)
    held: dict[int, set[int]] = {}
    places = NamedSharding(mesh, ROWS).devices_indices_map((count,))
    for device, (rows,) in places.items():
        held.setdefault(device.process_index, set()).update(range(*rows.indices(count)))
    shares = sorted(set(map(frozenset, held.values())), key=min)
    return shares.index(frozenset(held[jax.process_index()])), len(shares)


def shard(
    state: TrainState, mesh: Mesh | AbstractMesh, *, moments_over_data: bool = False
) -> TrainState:
    """Return the sharding of every array of a state: parameters by :data:`RULES`,
    moments as their parameters.

    Args:
        state: shapes and types.
        mesh: with the axes :data:`AXES`.
        moments_over_data: whether the optimizer's arrays are sharded over the data axis
            too (ZeRO; Rajbhandari et al. 2020, section 5.1).
    """
    by_path: dict[tuple[str, ...], tuple[tuple[int, ...], PartitionSpec]] = {}

    def note(path: tuple[Any, ...], leaf: Any, axes: tuple[str, ...]) -> None:
        by_path[_keys(path)] = leaf.shape, _spec(leaf.shape, axes, mesh)

    for params in (state.params, state.base or {}):
        names = logical_axes(params)
        jax.tree_util.tree_map_with_path(note, params, names)

    def choose(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> NamedSharding:
        # A moment's path ends with that of its parameter.
        keys = _keys(path)
        ends = (keys[start:] for start in range(len(keys)))
        found = (by_path[end] for end in ends if end in by_path)
        shape, spec = next(found, (leaf.shape, PartitionSpec()))
        spec = spec if shape == leaf.shape else PartitionSpec()
        # Moments of adapters are small.
        if moments_over_data and keys[0] == "optimizer" and state.base is None:
            spec = _over_data(spec, leaf.shape, mesh)
        return NamedSharding(mesh, spec)

    return jax.tree_util.tree_map_with_path(choose, state)


def check_divisible(model: Model, mesh: Mesh) -> None:
    """Refuse a mesh whose axes do not divide the widths and heads that they shard. A
    vocabulary that they do not divide is replicated.

    Raises:
        InputError: an axis does not divide its size.
    """
    for axis, key in ((FSDP, "d_model"), (TENSOR, "num_heads"), (TENSOR, "d_ff")):
        length = getattr(model.config, key)
        if length % mesh.shape[axis]:
            raise InputError(
                f"training.mesh_{axis}={mesh.shape[axis]} must divide"
                f" model.{key}={length}: of {mesh.size} devices take"
                f" {_either(length, mesh.size)}, or change the model"
            )


def _either(length: int, devices: int) -> str:
    """Write the numbers that divide both."""
    return " or ".join(
        str(number)
        for number in range(1, devices + 1)
        if length % number == devices % number == 0
    )


def _spec(
    shape: tuple[int, ...], axes: tuple[str, ...], mesh: Mesh | AbstractMesh
) -> PartitionSpec:
    def choose(length: int, name: str) -> str | None:
        axis = RULES.get(name)
        parts = 1 if axis is None else mesh.shape[axis]
        return axis if parts > 1 and length % parts == 0 else None

    return PartitionSpec(*map(choose, shape, axes))


def _gather_tables(params: PyTree, mesh: Mesh) -> PyTree:
    """Gather the whole width of the vocabulary's tables on every device for their use.

    Otherwise the compiler gathers the embeddings of all rows of the batch, which are
    larger than the table.
    """

    def gather(leaf: Array, axes: tuple[str, ...]) -> Array:
        if "vocabulary" not in axes:
            return leaf
        cut = _spec(leaf.shape, axes, mesh)
        spec = PartitionSpec(*(None if axis == FSDP else axis for axis in cut))
        return jax.lax.with_sharding_constraint(leaf, NamedSharding(mesh, spec))

    if mesh.shape[FSDP] == 1:
        return params
    return jax.tree.map(gather, params, logical_axes(params))


def _over_data(
    spec: PartitionSpec, shape: tuple[int, ...], mesh: Mesh | AbstractMesh
) -> PartitionSpec:
    """Shard the longest axis that the data axis divides over it, in addition."""
    entries = [*spec, *([None] * (len(shape) - len(spec)))]

    def parts(number: int) -> int:
        return math.prod(
            mesh.shape[axis] for axis in (entries[number], DATA) if axis is not None
        )

    fitting = [
        number
        for number, length in enumerate(shape)
        if length % parts(number) == 0 and length >= parts(number)
    ]
    if not fitting or mesh.shape[DATA] == 1:
        return spec
    chosen = max(fitting, key=lambda number: shape[number])
    entries[chosen] = DATA if entries[chosen] is None else (entries[chosen], DATA)
    return PartitionSpec(*entries)


def _keys(path: tuple[Any, ...]) -> tuple[str, ...]:
    return tuple(jax.tree_util.keystr((key,), simple=True) for key in path)
