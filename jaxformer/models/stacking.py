"""Convert parameters between looped and scanned layers.

A stack of the looped model has ``layer_0``, ``layer_1``, .... A stack of the scanned
model (``model.scan_layers=True``) has ``layers``, whose arrays have a leading axis of
layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.errors import InputError
from jaxformer.typing import Array, PyTree

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
    return _map_stacks("layer_0", _stacked, tree)


def unstack_layers(tree: PyTree) -> PyTree:
    """Undo :func:`stack_layers`.

    Raises:
        InputError: a stack without arrays, such as the moments of frozen parameters, or
            arrays with different numbers of layers.
    """
    return _map_stacks(_SCANNED, _unstacked, tree)


def _map_stacks(
    name: str, function: Callable[[Mapping[str, Any]], PyTree], tree: PyTree
) -> PyTree:
    """Apply a function to every stack, which has layers of a name."""

    def is_stack(node: Any) -> bool:
        return isinstance(node, Mapping) and name in node

    def apply(node: Any) -> Any:
        return function(node) if is_stack(node) else node

    return jax.tree.map(apply, tree, is_leaf=is_stack)


def _stacked(stack: Mapping[str, Any]) -> dict[str, Any]:
    rest = dict(stack)
    layers = []
    while (name := f"layer_{len(layers)}") in rest:
        layers.append(rest.pop(name))
    shapes = [jax.tree.map(lambda leaf: leaf.shape, layer) for layer in layers]
    for index, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise InputError(
                f"only equal layers can be stacked, and layer_{index} has other"
                " parameters than layer_0: keep model.scan_layers=False, or freeze all"
                " layers of a stack"
            )
    return {**rest, _SCANNED: _call(lambda *x: jnp.stack(x), *layers)}


def _unstacked(stack: Mapping[str, Any]) -> dict[str, Any]:
    rest = dict(stack)
    layers = rest.pop(_SCANNED)
    counts = {leaf.shape[0] for leaf in jax.tree.leaves(layers)}
    if len(counts) != 1:
        raise InputError(
            "scanned layers have arrays with one leading axis, the number of layers,"
            f" not {sorted(counts)}: pass a tree whose stacks have such arrays"
        )
    for index in range(counts.pop()):
        rest[f"layer_{index}"] = _call(lambda x, index=index: x[index], layers)
    return rest


def _call(function: Callable[..., Array], *trees: PyTree) -> PyTree:
    """Map a function of arrays over trees, or evaluate its shape for abstract ones."""

    def call(*leaves: Any) -> Any:
        if isinstance(leaves[0], jax.ShapeDtypeStruct):
            return jax.eval_shape(function, *leaves)
        return function(*leaves)

    return jax.tree.map(call, *trees)
