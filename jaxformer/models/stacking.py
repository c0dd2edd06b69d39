"""Convert parameters between looped and scanned layers.

A stack of the looped model has ``layer_0``, ``layer_1``, .... A stack of the scanned
model (``model.scan_layers=True``) has ``layers``, whose arrays have a leading axis of
layers.
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
    """Stack the parameters of a looped model as the scanned model has them.

    The tree may be parameters, moments, gradients, or contain such trees, as an
    optimizer's state does. Leaves outside of layers stay. Leaves may be abstract
    (``jax.ShapeDtypeStruct``; they lose their sharding). Factored moments, as
    Adafactor's, fit the scanned model only if its optimizer factors the stacked arrays
    along the same axes.

    Raises:
        InputError: the layers of a stack have different parameters or shapes.

    Example:
        >>> layers = {f"layer_{i}": {"bias": jnp.zeros(3)} for i in range(2)}
        >>> stack_layers({"encoder": layers})["encoder"]["layers"]["bias"].shape
        (2, 3)
    """
    return jax.tree.map(
        lambda node: _stacked(node) if _is_looped(node) else node,
        tree,
        is_leaf=_is_looped,
    )


def unstack_layers(tree: PyTree) -> PyTree:
    """Undo :func:`stack_layers`.

    Raises:
        InputError: a stack without arrays, such as the moments of frozen parameters, or
            arrays with different numbers of layers.
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
                f"only equal layers can be stacked, and layer_{index} has other"
                " parameters than layer_0: keep model.scan_layers=False, or freeze all"
                " layers of a stack"
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
            "scanned layers have arrays with one leading axis, the number of layers,"
            f" not {sorted(counts)}: pass a tree whose stacks have such arrays"
        )

    def layer(index: int) -> PyTree:
        return jax.tree.map(
            lambda leaf: _call(lambda x: x[index], leaf), stack[_SCANNED]
        )

    rest = {name: part for name, part in stack.items() if name != _SCANNED}
    return {**rest, **{f"layer_{index}": layer(index) for index in range(counts.pop())}}


def _call(function: Callable[..., Array], *leaves: Any) -> Any:
    """Call a function of arrays, or evaluate its shape for abstract ones."""
    if isinstance(leaves[0], jax.ShapeDtypeStruct):
        return jax.eval_shape(function, *leaves)
    return function(*leaves)
