"""What each axis of each parameter means, by name: from it an engine derives how parameters lie on its devices."""

from __future__ import annotations

import fnmatch
from typing import Any

import jax

from jaxformer.typing import Parameters, PyTree

LAYERS = "layers"
"""The first axis of every parameter of scanned layers."""

# Patterns of paths, each name behind a `/`; the first that fits holds.
_NAMES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("*embedding/table", ("vocabulary", "embed")),
    ("/output", ("vocabulary", "embed")),
    ("/logits/bias", ("vocabulary",)),
    ("*_positions/table", ("position", "embed")),
    ("*_attention/query/kernel", ("embed", "heads", "head_width")),
    ("*_attention/query/bias", ("heads", "head_width")),
    ("*_attention/key/kernel", ("embed", "heads", "head_width")),
    ("*_attention/key/bias", ("heads", "head_width")),
    ("*_attention/value/kernel", ("embed", "heads", "head_width")),
    ("*_attention/value/bias", ("heads", "head_width")),
    ("*_attention/output/kernel", ("heads", "head_width", "embed")),
    ("*_attention/output/bias", ("embed",)),
    ("*/feed_forward/inner/kernel", ("embed", "hidden")),
    ("*/feed_forward/inner/bias", ("hidden",)),
    ("*/feed_forward/outer/kernel", ("hidden", "embed")),
    ("*/feed_forward/outer/bias", ("embed",)),
    ("*/norm/scale", ("embed",)),
    ("*/norm/bias", ("embed",)),
)


def logical_axes(params: Parameters) -> PyTree:
    """Name the axes of every parameter of a model, looped or scanned.

    The names are ``vocabulary``, ``position``, ``embed`` (d_model), ``heads``, ``head_width`` (d_k or d_v), ``hidden``
    (d_ff) and, in front for scanned layers, ``layers``.

    Args:
        params: of a :class:`jaxformer.Transformer`, or of a module of :mod:`jaxformer.nn` that holds others, such as an
            ``Encoder``; arrays or ``jax.ShapeDtypeStruct``.

    Returns:
        The tree of ``params`` with a tuple of names in the place of each parameter, one name an axis. To map over it,
        let ``is_leaf`` say that a tuple is a leaf.

    Raises:
        ValueError: a parameter that the table does not know, or one with another number of axes.

    Example:
        >>> logical_axes({"embedding": {"table": jax.ShapeDtypeStruct((37_000, 512), "float32")}})
        {'embedding': {'table': ('vocabulary', 'embed')}}
    """
    return jax.tree_util.tree_map_with_path(_axes, params)


def _axes(path: tuple[Any, ...], leaf: Any) -> tuple[str, ...]:
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    for pattern, names in _NAMES:
        if fnmatch.fnmatchcase(f"/{name}", pattern):
            axes = (LAYERS, *names) if f"/{LAYERS}/" in f"/{name}" else names
            if len(axes) != len(leaf.shape):
                raise ValueError(f"the parameter {name} should have the axes {axes}, and has the shape {leaf.shape}")
            return axes
    raise ValueError(f"the parameter {name} has no logical axes: add a pattern of its path to the table of {__name__}")
