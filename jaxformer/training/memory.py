"""How much memory of a device training takes, by arithmetic: nothing is compiled, and
no array is made.

What a state takes is exact: the shapes of its arrays after sharding. What a step takes
besides is counted from what JAX hands from the forward to the backward pass, which
compilers change: they fuse, keep less, and need working space.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType

from jaxformer.data.config import DataConfig
from jaxformer.models.config import TransformerConfig
from jaxformer.models.logical_axes import logical_axes
from jaxformer.models.seq2seq import Transformer
from jaxformer.runs.training import TrainingConfig
from jaxformer.training.mesh import AXES, DATA, FSDP, RULES, TENSOR, mesh_shape, shard
from jaxformer.training.state import TrainState, create_state
from jaxformer.training.step import make_loss
from jaxformer.typing import PyTree

GIGABYTE = 10**9

DEVICES = (16, 24, 40, 80, 141)
"""Memory of common devices in gigabytes: TPU v5e, P100 and T4; L4 and RTX 4090;
A100; A100 and H100; H200.
"""

USABLE = 0.75
"""The share of a device's memory that a step may plan with: what JAX takes of a GPU
unless it is told otherwise (``XLA_PYTHON_CLIENT_MEM_FRACTION``).
"""


class BatchShape(NamedTuple):
    """The shape of a batch, all devices together."""

    rows: int
    source: int
    target: int


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on each device.

    Attributes:
        parameters: float32.
        optimizer: what the optimizer keeps: two moments for Adam, one for Lion, rows
            and columns for Adafactor.
        average: the moving average, or 0.
        gradients: sharded as the parameters; twice with accumulation, whose sum is kept
            besides.
        gathered: parameters that are used whole over ``fsdp``: the vocabulary's tables
            with their gradients, and those of the largest layer. A mesh whose ``fsdp``
            is 1 gathers nothing.
        activations: what the forward pass keeps for the backward pass.
        logits: the same of the logits, and their gradient.
    """

    parameters: int
    optimizer: int
    average: int
    gradients: int
    gathered: int
    activations: int
    logits: int

    @property
    def total(self) -> int:
        """All of it, as if it were all there at one time: gradients come while
        activations go.
        """
        return sum(dataclasses.astuple(self))

    def fits(self) -> list[int]:
        """Give those of :data:`DEVICES` that hold it within :data:`USABLE`."""
        return [size for size in DEVICES if self.total <= USABLE * size * GIGABYTE]


def longest_batch(data: DataConfig) -> BatchShape:
    """Return the batch that needs the most memory: of all with so many slots, that
    with the longest rows.
    """
    longest = data.packed_length if data.packing else data.max_length
    return BatchShape(max(data.tokens_per_batch // longest, 1), longest, longest)


def abstract_mesh(engine: str, devices: int, config: TrainingConfig) -> AbstractMesh:
    """Return the mesh of an engine over devices that need not be there; ``jit`` uses
    one, ``pmap`` the data axis alone.

    Raises:
        InputError: ``training.mesh_fsdp`` times ``training.mesh_tensor`` does not
            divide the number of devices.
    """
    shapes = {
        "jit": lambda: (1, 1, 1),
        "pmap": lambda: (devices, 1, 1),
        "mesh": lambda: mesh_shape(devices, config),
    }
    return AbstractMesh(shapes[engine](), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def estimate(
    model: TransformerConfig,
    config: TrainingConfig,
    batch: BatchShape,
    mesh: AbstractMesh,
) -> Memory:
    """Count the bytes on each device of a mesh.

    Raises:
        InputError: ``training.frozen`` does not fit the model.
    """
    state = jax.eval_shape(lambda: create_state(Transformer(model), config))
    shardings = shard(state, mesh, moments_over_data=config.shard_moments)
    parameters = _bytes(state.params, shardings.params)
    parts = config.accumulation_steps
    rows = math.ceil(batch.rows / (mesh.shape[DATA] * mesh.shape[FSDP] * parts))
    share = _tensor_share(model, mesh.shape[TENSOR])
    activations, logits = _kept(
        share, config, BatchShape(rows, batch.source, batch.target)
    )
    return Memory(
        parameters=parameters,
        optimizer=_bytes(state.optimizer, shardings.optimizer),
        average=_bytes(state.average, shardings.average),
        gradients=parameters if parts == 1 else 2 * parameters,
        gathered=_gathered(state, mesh),
        # Parameters in a half-precision type are kept too, as they are sharded.
        activations=activations + (0 if model.dtype == "float32" else parameters // 2),
        logits=logits,
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


def _tensor_share(model: TransformerConfig, tensor: int) -> TransformerConfig:
    """Return the model that one device computes: its share of what the axis ``tensor``
    divides.
    """

    def share(length: int) -> int:
        return length // tensor if length % tensor == 0 else length

    return dataclasses.replace(
        model,
        num_heads=share(model.num_heads),
        d_k=model.d_k or model.d_model // model.num_heads,
        d_v=model.d_v or model.d_model // model.num_heads,
        d_ff=share(model.d_ff),
        vocabulary_size=share(model.vocabulary_size),
        source_vocabulary_size=None
        if model.source_vocabulary_size is None
        else share(model.source_vocabulary_size),
    )


def _kept(
    model: TransformerConfig, config: TrainingConfig, batch: BatchShape
) -> tuple[int, int]:
    """Count what the backward pass is handed besides parameters: all but the logits,
    and the logits.

    The function that ``jax.vjp`` gives holds just that, and tracing it needs no memory.
    """
    state = jax.eval_shape(lambda: create_state(Transformer(model), config))
    total_loss = make_loss(Transformer(model), config, lambda params: params)

    def backward(params: PyTree, source: Any, target: Any) -> Any:
        rows, key = {"source": source, "target": target}, jax.random.key(0)
        return jax.vjp(
            lambda params: total_loss(params, rows, key), params, has_aux=True
        )[1]

    sides = [
        jax.ShapeDtypeStruct((batch.rows, length), jnp.int32)
        for length in (batch.source, batch.target)
    ]
    traced = jax.make_jaxpr(backward)(state.params, *sides).jaxpr
    # Each value once; not those that were given, nor parameters in another type.
    given, shapes = (
        set(traced.invars),
        {leaf.shape for leaf in jax.tree.leaves(state.params)},
    )
    variables = {
        variable
        for variable in traced.outvars
        if not isinstance(variable, jax.extend.core.Literal)
    }
    values: list[Any] = [variable.aval for variable in variables - given]
    values = [value for value in values if value.shape not in shapes]
    end = (batch.target, model.vocabulary_size)
    logits = [
        value for value in values if len(value.shape) == 3 and value.shape[1:] == end
    ]
    passes = 2 if config.r_drop else 1
    gradient = passes * batch.rows * math.prod(end) * np.dtype(np.float32).itemsize
    kept, of_logits = (
        sum(value.size * value.dtype.itemsize for value in some)
        for some in (values, logits)
    )
    return kept - of_logits, of_logits + gradient


def _gathered(state: TrainState, mesh: AbstractMesh) -> int:
    if mesh.shape[FSDP] == 1:
        return 0
    tables, layers = 0, [0]
    names = jax.tree.leaves(
        logical_axes(state.params), is_leaf=lambda node: isinstance(node, tuple)
    )
    by_layer: dict[str, int] = {}
    for (path, leaf), axes in zip(
        jax.tree_util.tree_leaves_with_path(state.params), names, strict=True
    ):
        # As it is sharded but for fsdp, whether that divides it or not.
        over_tensor = any(
            RULES[name] == TENSOR and n % mesh.shape[TENSOR] == 0
            for name, n in zip(axes, leaf.shape, strict=True)
        )
        size = (
            leaf.size
            * leaf.dtype.itemsize
            // (mesh.shape[TENSOR] if over_tensor else 1)
        )
        if "vocabulary" in axes:
            tables += size
        else:
            layer = jax.tree_util.keystr(path[:2], simple=True, separator="/")
            by_layer[layer] = by_layer.get(layer, 0) + size // (
                leaf.shape[0] if axes[0] == "layers" else 1
            )
    layers += by_layer.values()
    return 2 * tables + max(layers)
