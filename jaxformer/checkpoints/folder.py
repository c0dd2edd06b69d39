"""One checkpoint on disk: a folder of trees of arrays, by name, and a JSON record."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from jaxformer.errors import InputError, require
from jaxformer.typing import PyTree


def write(path: Path, trees: Mapping[str, PyTree], record: Mapping[str, Any]) -> None:
    """Write a checkpoint where there is none; it is there whole or not at all."""
    orbax = require("orbax.checkpoint", "train").v1
    orbax.save_checkpointables(path.absolute(), dict(trees), custom_metadata=dict(record))


def read_record(path: Path) -> dict[str, Any]:
    """Read what was recorded beside the arrays."""
    return _metadata(path).custom_metadata


def read_shapes(path: Path, name: str) -> PyTree:
    """Give a tree of a checkpoint as shapes and types."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), _metadata(path).metadata[name], is_leaf=_is_array
    )


def restore(path: Path, like: Mapping[str, PyTree], where: str, *, partial: bool = False) -> dict[str, PyTree]:
    """Read trees of a checkpoint in the shapes and types of the trees given by name.

    On several processes all of them call it together.

    Args:
        path: the folder.
        like: trees of arrays or of ``jax.ShapeDtypeStruct``. One of these that has a sharding is read straight into it,
            each process its own shards; everything else comes to the first device of this process.
        where: what the checkpoint is called, for errors.
        partial: whether the trees there may have entries beside those asked for; they are not read.

    Raises:
        InputError: the checkpoint is of another model.
    """
    saved = _metadata(path).metadata
    for name, tree in like.items():
        _check_shapes(
            {key: saved[name][key] for key in tree if key in saved[name]} if partial else saved[name], tree, where
        )
    single = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])

    def place(leaf: Any) -> jax.ShapeDtypeStruct:
        given = leaf.sharding if isinstance(leaf, jax.ShapeDtypeStruct) else None
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=given or single)

    wanted = {name: jax.tree.map(place, tree) for name, tree in like.items()}
    if partial:
        wanted = {name: {**_placeholders(saved[name]), **tree} for name, tree in wanted.items()}
    found = require("orbax.checkpoint", "train").v1.load_checkpointables(path.absolute(), wanted)
    return {name: {key: found[name][key] for key in like[name]} for name in like} if partial else found


def _metadata(path: Path) -> Any:
    return require("orbax.checkpoint", "train").v1.checkpointables_metadata(path.absolute())


def _is_array(node: Any) -> bool:
    return hasattr(node, "shape")


def _placeholders(saved: PyTree) -> PyTree:
    """Give what tells orbax to leave each array of a tree where it is."""
    return jax.tree.map(lambda leaf: ..., saved, is_leaf=_is_array)


def _check_shapes(saved: PyTree, wanted: PyTree, where: str) -> None:
    there, here = _shapes(saved), _shapes(wanted)
    for name in sorted(there.keys() | here.keys()):
        if there.get(name) != here.get(name):
            raise InputError(
                f"{where} is of another model: {name} is {there.get(name, 'absent')} there and "
                f"{here.get(name, 'absent')} by the configuration"
            )


def _shapes(tree: PyTree) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=_is_array)
    return {
        "/".join(str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in path): tuple(leaf.shape)
        for path, leaf in leaves
    }
