"""Parameters of looped layers, one sub-tree each, and of scanned layers, one sub-tree
with an axis more: either way.

A stack of the looped model holds ``layer_0``, ``layer_1``, ...; one of the scanned
model (``model.scan_layers=True``) holds ``layers``, whose arrays have the layers as
their first axis.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.errors import InputError
from jaxformer.typing import Array, PyTree

_LOOPED = re.compile(r"layer_(\d+)")
_SCANNED = "layers"


def stack_layers(tree: PyTree) -> PyTree:
    """Give the parameters of a looped model those names and axes that the scanned model
    has.

    The tree may be parameters, a moving average, moments, gradients, or anything that
    holds such trees, as an optimizer's state does; what belongs to no layer stays.
    Leaves may be abstract (``jax.ShapeDtypeStruct``; they lose their sharding). Moments
    that are no longer per element, as Adafactor's, fit the scanned model only where its
    optimizer would factor the stacked arrays along the same axes.

    Raises:
        InputError: the layers of a stack have different parameters or shapes.

    Example:
        >>> tree = {"encoder": {"layer_0": {"bias": jnp.zeros(3)}, "layer_1": {"bias": jnp.ones(3)}}}
        >>> stack_layers(tree)["encoder"]["layers"]["bias"].shape
        (2, 3)
    """
    return jax.tree.map(
        lambda node: _stacked(node) if _is_looped(node) else node,
        tree,
        is_leaf=_is_looped,
    )


def unstack_layers(tree: PyTree) -> PyTree:
    """Undo :func:`stack_layers`: give the parameters of a scanned model those names
    that the looped model has.

    Raises:
        InputError: a stack holds no array from which the number of layers could be
            read, such as the moments of parameters that are frozen, or arrays that
            disagree on it.
    """
    return jax.tree.map(
        lambda node: _unstacked(node) if _is_scanned(node) else node,
        tree,
        is_leaf=_is_scanned,
    )


def _is_looped(node: Any) -> bool:
    return isinstance(node, Mapping) and "layer_0" in node


def _is_scanned(node: Any) -> bool:
    return isinstance(node, Mapping) and _SCANNED in node


def _stacked(stack: Mapping[str, Any]) -> dict[str, Any]:
    layers = [
        stack[f"layer_{index}"]
        for index in range(sum(_LOOPED.fullmatch(name) is not None for name in stack))
    ]
    kinds = [
        (jax.tree.structure(layer), [leaf.shape for leaf in jax.tree.leaves(layer)])
        for layer in layers
    ]
    for index, kind in enumerate(kinds):
        if kind != kinds[0]:
            raise InputError(
                f"only layers that are alike can be stacked, and layer_{index} has"
                " other parameters than layer_0: keep model.scan_layers=False, or"
                " freeze all layers of a stack alike"
            )
    rest = {
        name: part for name, part in stack.items() if _LOOPED.fullmatch(name) is None
    }
    return {
        **rest,
        _SCANNED: jax.tree.map(
            lambda *leaves: _call(lambda *x: jnp.stack(x), *leaves), *layers
        ),
    }


def _unstacked(stack: Mapping[str, Any]) -> dict[str, Any]:
    counts = {leaf.shape[0] for leaf in jax.tree.leaves(stack[_SCANNED])}
    if len(counts) != 1:
        raise InputError(
            "scanned layers are unstacked along the first axis of their arrays, and it"
            f" says {sorted(counts)} layers: give a tree whose stacks hold arrays, all"
            " with one first axis"
        )

    def layer(index: int) -> PyTree:
        return jax.tree.map(
            lambda leaf: _call(lambda x: x[index], leaf), stack[_SCANNED]
        )

    rest = {name: part for name, part in stack.items() if name != _SCANNED}
    return {**rest, **{f"layer_{index}": layer(index) for index in range(counts.pop())}}


def _call(function: Callable[..., Array], *leaves: Any) -> Any:
    """Call a function of arrays, or say what it would give for abstract ones."""
    if isinstance(leaves[0], jax.ShapeDtypeStruct):
        return jax.eval_shape(function, *leaves)
    return function(*leaves)
