"""Where the activations of a batch lie when a model runs over several devices."""

from __future__ import annotations

import jax
from jax.sharding import PartitionSpec

from jaxformer.typing import Array

ROW_AXES = ("data", "fsdp")
"""Axes of a mesh that share out the rows of a batch."""


def keep_rows(x: Array) -> Array:
    """Say that each device keeps the whole width of its own rows, on a mesh that is set and has :data:`ROW_AXES`.

    Without such a mesh nothing is said. Left to itself, the compiler may carry activations through scanned layers in
    the sharding of the parameters, and gather them from all devices behind.

    Args:
        x: activations, rows first.
    """
    mesh = jax.sharding.get_abstract_mesh()
    axes = tuple(axis for axis in ROW_AXES if axis in mesh.axis_names)
    return jax.lax.with_sharding_constraint(x, PartitionSpec(axes)) if axes else x
