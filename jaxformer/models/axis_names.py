"""What each axis of each parameter means, by name: from it an engine derives how
parameters lie on its devices.
"""

from __future__ import annotations

import fnmatch
from typing import Any

import jax

from jaxformer.typing import Parameters, PyTree

LAYERS = "layers"
"""The first axis of every parameter of scanned layers."""

# Patterns of paths in small letters, each name behind a `/`; the first that fits holds.
# They ask for no more of a path than tells a parameter from others, so that modules may
# have names of their own, or those that Flax gives them.
_NAMES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("*position*/table", ("position", "embed")),
    ("*embedding*/table", ("vocabulary", "embed")),
    ("/output", ("vocabulary", "embed")),
    ("/logits/bias", ("vocabulary",)),
    ("*/query/kernel", ("embed", "heads", "head_width")),
    ("*/query/bias", ("heads", "head_width")),
    ("*/key/kernel", ("embed", "heads", "head_width")),
    ("*/key/bias", ("heads", "head_width")),
    ("*/value/kernel", ("embed", "heads", "head_width")),
    ("*/value/bias", ("heads", "head_width")),
    ("*/output/kernel", ("heads", "head_width", "embed")),
    ("*/output/bias", ("embed",)),
    ("*/inner/kernel", ("embed", "hidden")),
    ("*/inner/bias", ("hidden",)),
    ("*/outer/kernel", ("hidden", "embed")),
    ("*/outer/bias", ("embed",)),
    ("*norm*/scale", ("embed",)),
    ("*norm*/bias", ("embed",)),
)


def logical_axes(params: Parameters) -> PyTree:
    """Name the axes of every parameter of a model, looped or scanned.

    The names are ``vocabulary``, ``position``, ``embed`` (d_model), ``heads``,
    ``head_width`` (d_k or d_v), ``hidden`` (d_ff) and, in front for scanned layers,
    ``layers``.

    Args:
        params: of a :class:`jaxformer.Transformer`, or of modules of
            :mod:`jaxformer.nn` under any names, but that those of an ``Embedding``, of
            ``Positions`` and of a ``LayerNorm`` have to say what they are:
            ``embedding``, ``position`` and ``norm`` are in them. Arrays or
            ``jax.ShapeDtypeStruct``.

    Returns:
        The tree of ``params`` with a tuple of names in the place of each parameter, one
        name an axis. To map over it, let ``is_leaf`` say that a tuple is a leaf.

    Raises:
        ValueError: a parameter that the table does not know, or one with another number
            of axes.

    Example:
        >>> logical_axes({"embedding": {"table": jax.ShapeDtypeStruct((37_000, 512), "float32")}})
        {'embedding': {'table': ('vocabulary', 'embed')}}
    """
    return jax.tree_util.tree_map_with_path(_axes, params)


def _axes(path: tuple[Any, ...], leaf: Any) -> tuple[str, ...]:
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    for pattern, names in _NAMES:
        if fnmatch.fnmatchcase(f"/{name.lower()}", pattern):
            axes = (LAYERS, *names) if f"/{LAYERS}/" in f"/{name}" else names
            if len(axes) != len(leaf.shape):
                raise ValueError(
                    f"the parameter {name} should have the axes {axes}, and has the"
                    f" shape {leaf.shape}"
                )
            return axes
    raise ValueError(
        f"the parameter {name} is not known as one of jaxformer's modules: call this"
        " for those alone, and name the axes of your own parameters yourself"
    )
