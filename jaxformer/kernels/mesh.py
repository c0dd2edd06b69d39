"""The axes of the mesh that computations run on."""

from __future__ import annotations

from typing import TypeVar

import jax

from jaxformer.errors import InputError
from jaxformer.typing import PyTree

_Tree = TypeVar("_Tree")

ROW_AXES = ("data", "fsdp")
"""Mesh axes over which the rows of a batch are sharded."""

TENSOR_AXIS = "tensor"
"""The mesh axis over which heads, hidden units and the vocabulary are sharded."""


def automatic_axes() -> dict[str, int]:
    """Return the axes of the current mesh that are left to the compiler, and their
    lengths; none under ``shard_map``, ``pmap`` or explicit shardings.
    """
    mesh = jax.sharding.get_abstract_mesh()
    return {name: mesh.shape[name] for name in mesh.auto_axes}


def check_mesh(arrays: PyTree) -> None:
    """Refuse arrays that are sharded over explicit axes of a mesh, over which no
    function here says how its results are sharded.

    Raises:
        InputError: an array is.
    """
    if any(any(jax.typeof(x).sharding.spec) for x in jax.tree.leaves(arrays)):
        raise InputError(
            "an array is sharded over explicit axes of a mesh: make the mesh by"
            " jax.make_mesh with axis_types=(jax.sharding.AxisType.Auto,) * n"
        )


def match_varying(tree: _Tree, *like: PyTree) -> _Tree:
    """Make the arrays of a tree vary over the axes of ``shard_map`` over which one of
    them, or of ``like``, varies. It changes no value, and nothing elsewhere.

    Loops need it of their first carry. So do custom rules of derivatives: JAX sums the
    gradient of an array that does not vary over the devices, and takes that sum from no
    rule.
    """
    arrays = jax.tree.leaves((tree, like))
    axes = frozenset[str]().union(*(jax.typeof(x).mat.varying for x in arrays))

    return jax.tree.map(
        lambda x: jax.lax.pcast(
            x, tuple(sorted(axes - jax.typeof(x).mat.varying)), to="varying"
        ),
        tree,
    )
