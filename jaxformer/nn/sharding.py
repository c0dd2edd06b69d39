"""Where the activations of a batch lie when a model runs over several devices."""

from __future__ import annotations

import jax
from jax.sharding import AxisType, PartitionSpec

from jaxformer.typing import Array

ROW_AXES = ("data", "fsdp")
"""Axes of a mesh that share out the rows of a batch."""


def keep_rows(x: Array) -> Array:
    """Say that each device keeps the whole width of its own rows, on a mesh that is set
    and has :data:`ROW_AXES`.

    Without such a mesh, or where its axes are not the compiler's to decide
    (``shard_map``, ``pmap``, explicit shardings), nothing is said. Left to itself, the
    compiler may carry activations through scanned layers in the sharding of the
    parameters, and gather them from all devices behind.

    Args:
        x: activations, rows first.
    """
    mesh = jax.sharding.get_abstract_mesh()
    automatic = [
        name
        for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
        if kind == AxisType.Auto
    ]
    axes = tuple(axis for axis in ROW_AXES if axis in automatic)
    return jax.lax.with_sharding_constraint(x, PartitionSpec(axes)) if axes else x
