"""Names for the axes of every parameter, from which an engine derives shardings."""

from __future__ import annotations

import re
from typing import Any

import jax

from jaxformer.typing import Parameters, PyTree

LAYERS = "layers"
"""The first axis of every parameter of scanned layers."""

DOWN, UP = "lora_a", "lora_b"
"""The two factors of an adapter, which take the place of their kernel in the tree
(:mod:`jaxformer.models.lora`).
"""

# Patterns of the lower-case name of a kernel, whose bias has its output axes, and of
# the lower-case path of another parameter; the first match counts. They match only what
# distinguishes a parameter, so modules may have any names.
_KERNELS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("query|key|value", ("embed", "heads", "head_width")),
    ("output", ("heads", "head_width", "embed")),
    ("outer", ("hidden", "embed")),
    ("energy", ("hidden", "score")),
    ("dense", ("embed", "features")),
    ("inner|gate|state|memory|summary|combined|initial|readout", ("embed", "hidden")),
    # A gate of one of Flax's cells: r, z and n, or i, f, g and o.
    ("[ih][rznifgo]", ("embed", "hidden")),
)
_OTHERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (".*position.*bias.*/table", ("position", "heads")),
    (".*position.*/table", ("position", "embed")),
    (".*embedding.*/table", ("vocabulary", "embed")),
    ("/output", ("vocabulary", "embed")),
    ("/logits/bias", ("vocabulary",)),
    (".*/(query|key)_norm/scale", ("head_width",)),
    (".*norm.*/(scale|bias)", ("embed",)),
)


def logical_axes(params: Parameters) -> PyTree:
    """Name the axes of every parameter of a model, looped or scanned.

    The names are ``vocabulary``, ``position``, ``embed`` (d_model), ``heads``,
    ``head_width`` (d_k or d_v), ``hidden`` (d_ff, or the units of a recurrent layer),
    ``features`` (of heads that read an encoder), ``score`` (a single one), ``rank`` (of
    adapters) and, first for scanned layers, ``layers``.

    Args:
        params: of a :class:`jaxformer.Transformer`, or of modules of
            :mod:`jaxformer.nn`. The names of ``Embedding``, ``Positions`` and norm
            modules must contain ``embedding``, ``position`` and ``norm``, those of
            ``PositionBias`` ``position_bias``, as Flax's own ``PositionBias_0``.
            Arrays or ``jax.ShapeDtypeStruct``.

    Returns:
        The tree of ``params`` with a tuple of names in place of each parameter. To map
        over it, make tuples leaves by ``is_leaf``.

    Raises:
        ValueError: an unknown parameter, or one with another number of axes.

    Example:
        >>> table = jax.ShapeDtypeStruct((37_000, 512), "float32")
        >>> logical_axes({"embedding": {"table": table}})
        {'embedding': {'table': ('vocabulary', 'embed')}}
    """
    return jax.tree_util.tree_map_with_path(_axes, params)


def count_inputs(names: tuple[str, ...]) -> int:
    """Count the input axes of a kernel, from the names of its axes without layers: a
    kernel has d_model inputs, or d_model outputs.
    """
    return 1 if names[0] == "embed" else len(names) - 1


def _axes(path: tuple[Any, ...], leaf: Any) -> tuple[str, ...]:
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    names = _name(f"/{name.lower()}")
    if names is None:
        raise ValueError(
            f"the parameter {name} is not of a jaxformer module: pass only those, and"
            " name the axes of other parameters yourself"
        )
    axes = (LAYERS, *names) if f"/{LAYERS}/" in f"/{name}" else names
    if len(axes) != len(leaf.shape):
        raise ValueError(
            f"the parameter {name} should have the axes {axes}, and has the shape"
            f" {leaf.shape}"
        )
    return axes


def _name(path: str) -> tuple[str, ...] | None:
    """Name the axes of a parameter without layers."""
    for pattern, names in _KERNELS:
        found = re.fullmatch(f".*/({pattern})/(bias|kernel(/{DOWN}|/{UP})?)", path)
        if found:
            inputs = count_inputs(names)
            return {
                "kernel": names,
                "bias": names[inputs:],
                DOWN: (*names[:inputs], "rank"),
                UP: ("rank", *names[inputs:]),
            }[path.rpartition("/")[2]]
    return next((names for way, names in _OTHERS if re.fullmatch(way, path)), None)
