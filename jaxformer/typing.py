"""The axes and array types of signatures.

====== ==========================================
letter axis
====== ==========================================
``B``  batch: sentences
``S``  source positions, or keys
``T``  target positions, or queries
``D``  width of the model, d_model
``H``  heads
``G``  heads of keys and values, where they are fewer
``K``  width of a head's queries and keys, d_k
``K2`` width of a head's values, d_v
``F``  width of the feed-forward layer, d_ff
``V``  vocabulary
``W``  beam
``N``  rows of a search, B times W
``M``  slots of a cache
``L``  rows of a table of positions
====== ==========================================
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int, PyTree, UInt32

Parameters: TypeAlias = Mapping[str, Any]
"""A nested dict of arrays: the parameters of a Linen module."""

AnyArray: TypeAlias = Array | np.ndarray
"""An array of JAX or of numpy, where both may come in."""

Key: TypeAlias = Array
"""A random key from :func:`jax.random.key`."""

__all__ = [
    "AnyArray",
    "Array",
    "Bool",
    "Float",
    "Int",
    "Key",
    "Parameters",
    "PyTree",
    "UInt32",
]
