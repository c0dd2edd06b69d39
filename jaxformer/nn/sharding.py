"""The sharding of activations over several devices."""

from __future__ import annotations

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
    mesh = jax.sharding.get_abstract_mesh()
    automatic = [
        name
        for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
        if kind == AxisType.Auto
    ]
    axes = tuple(axis for axis in ROW_AXES if axis in automatic)
    return jax.lax.with_sharding_constraint(x, PartitionSpec(axes)) if axes else x
