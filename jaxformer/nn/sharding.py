"""The sharding of activations over several devices."""

from __future__ import annotations

import math

import jax
from jax.sharding import PartitionSpec

from jaxformer.kernels.mesh import ROW_AXES, automatic_axes
from jaxformer.typing import Array


def keep_rows(x: Array) -> Array:
    """Shard activations by rows, each with its whole width, on a mesh with
    :data:`~jaxformer.kernels.mesh.ROW_AXES`.

    Without the constraint the compiler may carry activations through scanned layers in
    the sharding of the parameters, and gather them from all devices afterwards. Without
    such a mesh, or under ``shard_map``, ``pmap`` or explicit shardings, nothing is
    constrained.

    Args:
        x: activations [B, ...], rows first.
    """
    axes = tuple(_row_axes())
    return jax.lax.with_sharding_constraint(x, PartitionSpec(axes)) if axes else x


def sum_gradient_once(table: Array) -> Array:
    """Return a table for one of its uses, such that devices add up the gradients of all
    its uses before they exchange them.

    Otherwise the compiler scatters the gradient of a lookup into that of the output
    layer, which the devices sum before and again after. A constraint in between, even
    of nothing, keeps them apart until both are one sum.

    Args:
        table: of embeddings [V, D].
    """
    if count_row_shards() == 1:
        return table
    anything = PartitionSpec(*[PartitionSpec.UNCONSTRAINED] * table.ndim)
    return jax.lax.with_sharding_constraint(table, anything)


def count_row_shards() -> int:
    """Count the shards into which :func:`keep_rows` divides the rows; 1 where it
    constrains nothing.
    """
    return math.prod(_row_axes().values())


def _row_axes() -> dict[str, int]:
    automatic = automatic_axes()
    return {axis: automatic[axis] for axis in ROW_AXES if axis in automatic}
