"""The sharding of activations over several devices."""

from __future__ import annotations

import math

import jax
from jax.sharding import AxisType, PartitionSpec

from jaxformer.typing import Array

ROW_AXES = ("data", "fsdp")
"""Mesh axes over which the rows of a batch are sharded."""


def keep_rows(x: Array) -> Array:
    """Shard activations by rows, each with its whole width, on a mesh with
    :data:`ROW_AXES`.

    Without the constraint the compiler may carry activations through scanned layers in
    the sharding of the parameters, and gather them from all devices afterwards. Without
    such a mesh, or under ``shard_map``, ``pmap`` or explicit shardings, nothing is
    constrained.

    Args:
        x: activations [B, ...], rows first.
    """
    axes = tuple(_row_axes())
    return jax.lax.with_sharding_constraint(x, PartitionSpec(axes)) if axes else x


def count_row_shards() -> int:
    """Count the shards into which :func:`keep_rows` divides the rows; 1 where it
    constrains nothing.
    """
    return math.prod(_row_axes().values())


def _row_axes() -> dict[str, int]:
    """Return the lengths of those :data:`ROW_AXES` that the current mesh has and leaves
    to the compiler.
    """
    mesh = jax.sharding.get_abstract_mesh()
    automatic = [
        name
        for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
        if kind == AxisType.Auto
    ]
    return {axis: mesh.shape[axis] for axis in ROW_AXES if axis in automatic}
