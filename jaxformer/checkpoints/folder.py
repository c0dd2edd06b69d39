"""One checkpoint on disk: a folder of trees of arrays, by name, and a JSON record;
with a checksum of every file.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import shutil
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer import bucket, signals
from jaxformer.errors import InputError, first_line, require
from jaxformer.files import write_whole
from jaxformer.typing import PyTree

CHECKSUMS = bucket.SEAL
"""The file of a checkpoint that holds the size and the CRC-32 of each of its other
files.
"""

TEMPORARY = ".orbax-checkpoint-tmp"
"""Part of the name of a checkpoint that is not yet whole."""

# Files of orbax: the record of a checkpoint, and its scores.
_RECORD, _SCORES = "_CHECKPOINT_METADATA", "metrics/metrics"

_CURE = (
    "restore it from a copy, choose another by --checkpoint, or remove it to resume"
    " from the one before"
)


@functools.cache
def open_orbax() -> ModuleType:
    """Import orbax with its log silenced: its failures are raised as well. After one,
    each array that is still written would print that the event loop is closed.

    Raises:
        InputError: orbax is not installed.
    """
    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    orbax, report = require("orbax.checkpoint", "train").v1, sys.unraisablehook

    def report_others(raised: Any) -> None:
        # A callback of tensorstore's threads has no object; a coroutine of the user's
        # program is one.
        closed = str(raised.exc_value) == "Event loop is closed"
        if raised.object is not None or not closed:
            report(raised)

    sys.unraisablehook = report_others
    return orbax


def write(
    path: Path,
    trees: Mapping[str, PyTree],
    record: Mapping[str, Any],
    *,
    at_once: int | None = None,
) -> None:
    """Write a checkpoint where there is none; it is there whole or not at all.

    Args:
        path: the folder.
        trees: of arrays, by name.
        record: JSON.
        at_once: bytes of the arrays that are written at a time, at least those of the
            largest; None: all.

    Raises:
        InputError: it cannot be written.
    """
    orbax, limit = open_orbax(), contextlib.nullcontext()
    if at_once is not None:
        memory = orbax.options.MemoryOptions(write_concurrent_bytes=at_once + 1)
        limit = orbax.Context(memory_options=memory)
    try:
        with limit:
            orbax.save_checkpointables(
                path.absolute(), dict(trees), custom_metadata=dict(record)
            )
    except Exception as error:
        for unfinished in path.parent.glob(f"{path.name}{TEMPORARY}*"):
            shutil.rmtree(unfinished, ignore_errors=True)
        raise InputError(f"cannot write {path}: {first_line(error)}") from error
    seal(path)
    signals.check()


def seal(path: Path) -> None:
    """Write the checksums of a checkpoint that is whole.

    Raises:
        InputError: the file cannot be written.
    """
    write_whole(path / CHECKSUMS, json.dumps(_compute_sums(path)))


def hash_tree(path: Path, name: str) -> str:
    """Return a SHA-256 of the names, sizes and checksums of the files of a tree; they
    are computed where a checkpoint has none.

    Raises:
        InputError: the checkpoint is damaged, or was removed.
    """
    if (path / CHECKSUMS).exists():
        sums = _read_json(path, CHECKSUMS)
    else:
        bucket.fetch(path, [name])
        sums = _compute_sums(path)
    of_tree = sorted(item for item in sums.items() if item[0].split("/")[0] == name)
    return hashlib.sha256(json.dumps(of_tree).encode()).hexdigest()


def verify(path: Path, names: Iterable[str] = ()) -> None:
    """Compare the checksums of the record of a checkpoint and of some of its trees. One
    of earlier versions, or of a process killed while it saved, has none.

    Raises:
        InputError: a file is missing, has changed or cannot be read.
    """
    bucket.fetch(path, [*names])
    with _reading(path):
        if not (path / CHECKSUMS).exists():
            return
        for file, saved in _read_json(path, CHECKSUMS).items():
            if file.split("/")[0] in (_RECORD, *names):
                if not (path / file).is_file():
                    raise damaged(path, f"{file} is missing")
                if _sum(path / file) != saved:
                    raise damaged(path, f"{file} has changed since it was saved")


def read_record(path: Path) -> dict[str, Any]:
    """Read the JSON record of a checkpoint.

    Raises:
        InputError: it is damaged, or the checkpoint was removed.
    """
    verify(path)
    return _read_json(path, _RECORD).get("custom_metadata") or {}


def read_scores(path: Path) -> dict[str, float]:
    """Read the scores that a checkpoint was saved with; empty where there are none.

    Raises:
        InputError: the file is damaged.
    """
    return _read_json(path, _SCORES) if (path / _SCORES).exists() else {}


def read_shapes(path: Path, name: str) -> PyTree:
    """Return a tree of a checkpoint as shapes and types.

    Raises:
        InputError: it is damaged, or the checkpoint was removed.
    """
    verify(path, [name])
    with _reading(path):
        tree = _metadata(path, [name])[name]
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype),
        tree,
        is_leaf=_is_array,
    )


def restore(
    path: Path,
    like: Mapping[str, PyTree],
    *,
    partial: bool = False,
    checked: bool = False,
) -> dict[str, PyTree]:
    """Read trees of a checkpoint in the shapes and types of the trees given by name.

    On several processes all of them call it together.

    Args:
        path: the folder.
        like: trees of arrays or of ``jax.ShapeDtypeStruct``. One of these that has a
            sharding is read straight into it, each process its own shards; everything
            else goes to the first device of this process.
        partial: whether the saved trees may have further entries, which are not read.
        checked: whether :func:`verify` was called before.

    Raises:
        InputError: the checkpoint is of another model, it is damaged, it was removed,
            or a parameter is not finite.
    """
    if not checked:
        verify(path, like)
    with _reading(path):
        saved = _metadata(path, like)
        for name, tree in like.items():
            there = saved[name]
            if partial:
                there = {key: there[key] for key in tree if key in there}
            check_shapes(path, there, tree)
        single = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])

        def place(leaf: Any) -> jax.ShapeDtypeStruct:
            given = leaf.sharding if isinstance(leaf, jax.ShapeDtypeStruct) else None
            return jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, sharding=given or single
            )

        wanted = {name: jax.tree.map(place, tree) for name, tree in like.items()}
        if partial:  # `...` tells orbax to leave an array where it is
            rest = jax.tree.map(lambda leaf: ..., saved, is_leaf=_is_array)
            wanted = {name: {**rest[name], **tree} for name, tree in wanted.items()}
        found = open_orbax().load_checkpointables(path.absolute(), wanted)
        signals.check()
    if partial:
        found = {name: {key: found[name][key] for key in like[name]} for name in like}
    for parameters in (found.get("params"), found.get("training", {}).get("params")):
        _check_finite(path, parameters)
    return found


def _where(path: Path) -> str:
    """Return what errors call a checkpoint."""
    return f"checkpoint {path.name} in {path.parent}"


def damaged(path: Path, what: str) -> InputError:
    """Build the error for a checkpoint that is damaged."""
    return InputError(f"{_where(path)} is damaged: {what}; {_CURE}")


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Word what goes wrong while a checkpoint is read."""
    try:
        yield
    except (InputError, MemoryError, jax.errors.JaxRuntimeError):
        raise
    except Exception as error:
        reason = f"cannot read {_where(path)}: {first_line(error)}"
        if not isinstance(error, OSError) or isinstance(error, FileNotFoundError):
            reason += f"; {_CURE}"
        raise InputError(reason) from error


def _read_json(path: Path, file: str) -> dict[str, Any]:
    content = None
    absent = contextlib.suppress(FileNotFoundError, ValueError, RecursionError)
    with _reading(path), absent:
        content = json.loads((path / file).read_bytes())
    if not isinstance(content, dict):
        raise damaged(path, f"{Path(file).name} is missing or no valid JSON")
    return content


def _compute_sums(path: Path) -> dict[str, list[Any]]:
    """Return the checksum of every file in a folder, by its path there."""
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return {file.relative_to(path).as_posix(): _sum(file) for file in files}


def _sum(file: Path) -> list[Any]:
    """Return the size and the CRC-32, in hex, of a file."""
    found = size = 0
    with file.open("rb") as content:
        for block in iter(lambda: content.read(1 << 20), b""):
            found, size = zlib.crc32(block, found), size + len(block)
    return [size, f"{found:08x}"]


def _check_finite(path: Path, parameters: PyTree) -> None:
    for keys, leaf in jax.tree_util.tree_leaves_with_path(parameters):
        # A CPU's arrays are read in place. A copy from another device would stay in
        # memory.
        local = leaf.is_fully_addressable and all(
            device.platform == "cpu" for device in leaf.devices()
        )
        if not (np if local else jnp).isfinite(leaf).all():
            raise InputError(
                f"{_where(path)} has parameters that are not finite: {_name(keys)};"
                " choose an earlier one by --checkpoint, or remove it to resume from"
                " the one before"
            )


def _metadata(path: Path, names: Iterable[str]) -> dict[str, PyTree]:
    """Read the shapes and types of some trees, and nothing of the others, which may
    be damaged.
    """
    return {
        name: open_orbax().metadata(path.absolute(), name).metadata for name in names
    }


def _is_array(node: Any) -> bool:
    return hasattr(node, "shape")


def check_shapes(path: Path, saved: PyTree, wanted: PyTree) -> None:
    """Check that a tree of a checkpoint has the shapes of another.

    Raises:
        InputError: a shape or a name differs.
    """
    there, here = _shapes(saved), _shapes(wanted)
    for name in sorted(there.keys() | here.keys()):
        if there.get(name) != here.get(name):
            raise InputError(
                f"{_where(path)} is of another model: {name} is"
                f" {there.get(name, 'absent')} there and {here.get(name, 'absent')} by"
                " the configuration"
            )


def _shapes(tree: PyTree) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=_is_array)
    return {_name(keys): tuple(leaf.shape) for keys, leaf in leaves}


def _name(keys: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(keys, simple=True, separator="/")
