"""Checks of the manifest of a prepared folder; see :mod:`jaxformer.data.shards`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

FILES = "files"
"""The key of a request under which the files of the text are, each with its SHA-256."""

_KINDS = {
    "request": dict,
    "pairs": int,
    "hash": str,
    "shards": list,
    "vocabulary": str,
    "counts": dict,
    "lengths": list,
}


def find_fault(manifest: Mapping[str, Any]) -> str:
    """Name the first entry of a manifest that is missing or not what ``jaxformer
    prepare`` writes; "" if none is.
    """
    for name, kind in _KINDS.items():
        if type(manifest.get(name)) is not kind:
            return f"{name!r} is no {kind.__name__}"
    parts = {
        "request": isinstance(manifest["request"].get(FILES, {}), dict),
        "shards": all(_is_shard(shard) for shard in manifest["shards"]),
        "counts": all(_is_count(count) for count in manifest["counts"].values()),
        "lengths": len(manifest["lengths"]) == 2
        and all(_are_sizes(numbers) for numbers in manifest["lengths"]),
    }
    return next(
        (f"{name!r} is incomplete" for name, whole in parts.items() if not whole), ""
    )


def _is_shard(shard: object) -> bool:
    return (
        isinstance(shard, dict)
        and _are_sizes([shard.get("pairs"), shard.get("bytes")])
        and re.fullmatch(r"\d{5,}\.records", str(shard.get("file"))) is not None
    )


def _is_count(count: object) -> bool:
    """Check that a record has the fields of :class:`jaxformer.data.cleaning.Counts`
    and nothing else.
    """
    if not isinstance(count, dict) or count.keys() != {"read", "changed", "dropped"}:
        return False
    parts = count["changed"], count["dropped"]
    return all(
        isinstance(part, dict) and _are_sizes([count["read"], *part.values()])
        for part in parts
    )


def _are_sizes(numbers: object) -> bool:
    return isinstance(numbers, list) and all(
        type(number) is int and 0 <= number < 2**63 for number in numbers
    )
