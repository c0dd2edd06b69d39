"""Which tensor of a file is which parameter; read in both directions."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from jaxformer.interop.huggingface.files import Tensors
from jaxformer.typing import Parameters


@dataclasses.dataclass(frozen=True)
class Entry:
    """A tensor of theirs and the parameter that it is.

    Most linear maps are transposed: [outputs, inputs] there, inputs before outputs
    here.
    """

    name: str
    shape: tuple[int, ...]
    path: tuple[str, ...]
    ours: tuple[int, ...]
    transposed: bool = False

    def to_ours(self, tensor: np.ndarray) -> np.ndarray:
        """Return a view of a tensor as the parameter."""
        return (tensor.T if self.transposed else tensor).reshape(self.ours)

    def to_theirs(self, params: Parameters) -> np.ndarray:
        """Return the parameter as a tensor."""
        found: Any = functools.reduce(lambda tree, key: tree[key], self.path, params)
        if self.transposed:
            return found.reshape(self.shape[::-1]).T
        return found.reshape(self.shape)


def linear(
    name: str,
    path: tuple[str, ...],
    inputs: tuple[int, ...],
    outputs: tuple[int, ...],
    *,
    transposed: bool = True,
) -> Iterator[Entry]:
    """Map a linear map with its bias. Without ``transposed`` it is a ``Conv1D`` of
    transformers, [inputs, outputs] there too.
    """
    shape = (math.prod(inputs), math.prod(outputs))
    theirs, kernel = shape[::-1] if transposed else shape, (*path, "kernel")
    yield Entry(f"{name}.weight", theirs, kernel, inputs + outputs, transposed)
    yield Entry(f"{name}.bias", shape[1:], (*path, "bias"), outputs)


def norm(name: str, path: tuple[str, ...], width: int) -> Iterator[Entry]:
    """Map a layer normalization."""
    for theirs, ours in (("weight", "scale"), ("bias", "bias")):
        yield Entry(f"{name}.{theirs}", (width,), (*path, ours), (width,))


def table(name: str, path: tuple[str, ...], shape: tuple[int, int]) -> Entry:
    """Map a table of tokens, positions or segments."""
    return Entry(f"{name}.weight", shape, path, shape)


def take(entries: Iterable[Entry], tensors: Tensors, params: dict[str, Any]) -> None:
    """Put tensors where they are in the tree; parameters are views of them.

    Raises:
        InputError: a tensor is missing or has another shape.
    """
    for entry in entries:
        *path, last = entry.path
        tree: Any = functools.reduce(
            lambda tree, key: tree.setdefault(key, {}), path, params
        )
        tree[last] = entry.to_ours(tensors.take(entry.name, entry.shape))
