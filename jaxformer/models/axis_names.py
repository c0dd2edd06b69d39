"""Names for the axes of every parameter, from which an engine derives shardings."""

from __future__ import annotations

import fnmatch
from typing import Any

import jax

from jaxformer.typing import Parameters, PyTree

LAYERS = "layers"
"""The first axis of every parameter of scanned layers."""

DOWN, UP = "lora_a", "lora_b"
"""The two factors of an adapter, which take the place of their kernel in the tree
(:mod:`jaxformer.models.lora`).
"""

# Patterns of lower-case paths, a `/` before each name; the first match counts. They
# match only what distinguishes a parameter, so modules may have any names.
_NAMES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("*position*bias*/table", ("position", "heads")),
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
    ("*/gate/kernel", ("embed", "hidden")),
    ("*/gate/bias", ("hidden",)),
    ("*/outer/kernel", ("hidden", "embed")),
    ("*/outer/bias", ("embed",)),
    ("*/state/kernel", ("embed", "hidden")),
    ("*/memory/kernel", ("embed", "hidden")),
    ("*/energy/kernel", ("hidden", "score")),
    ("*/query_norm/scale", ("head_width",)),
    ("*/key_norm/scale", ("head_width",)),
    ("*/combined/kernel", ("embed", "hidden")),
    ("*/initial/kernel", ("embed", "hidden")),
    ("*/initial/bias", ("hidden",)),
    ("*/readout/kernel", ("embed", "hidden")),
    ("*/readout/bias", ("hidden",)),
    # A gate of one of Flax's cells: r, z and n, or i, f, g and o.
    ("*/[ih][rznifgo]/kernel", ("embed", "hidden")),
    ("*/[ih][rznifgo]/bias", ("hidden",)),
    ("*/dense/kernel", ("embed", "features")),
    ("*/dense/bias", ("features",)),
    ("*norm*/scale", ("embed",)),
    ("*norm*/bias", ("embed",)),
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
    kernel, factor = name, name.rpartition("/")[2]
    if factor in (DOWN, UP):
        kernel = name.rpartition("/")[0]
    for pattern, names in _NAMES:
        if fnmatch.fnmatchcase(f"/{kernel.lower()}", pattern):
            inputs = count_inputs(names)
            if factor == DOWN:
                names = (*names[:inputs], "rank")
            elif factor == UP:
                names = ("rank", *names[inputs:])
            axes = (LAYERS, *names) if f"/{LAYERS}/" in f"/{name}" else names
            if len(axes) != len(leaf.shape):
                raise ValueError(
                    f"the parameter {name} should have the axes {axes}, and has the"
                    f" shape {leaf.shape}"
                )
            return axes
    raise ValueError(
        f"the parameter {name} is not of a jaxformer module: pass only those, and name"
        " the axes of other parameters yourself"
    )
