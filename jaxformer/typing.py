"""The alphabet of axes and the names of array types used in every signature.

====== ==========================================
letter axis
====== ==========================================
``B``  batch: sentences
``S``  source positions, or keys
``T``  target positions, or queries
``D``  width of the model, d_model
``H``  heads
``K``  width of a head, d_k for queries and keys, d_v for values
``F``  width of the feed-forward layer, d_ff
``V``  vocabulary
``W``  beam
``N``  rows of a search, B times W
====== ==========================================
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

from jax import Array
from jaxtyping import Bool, Float, Int, PyTree, UInt32

Parameters: TypeAlias = Mapping[str, Any]
"""A plain dict of arrays, possibly nested: what Linen calls a parameter tree."""

Key: TypeAlias = Array
"""A random key from :func:`jax.random.key`."""

__all__ = ["Array", "Bool", "Float", "Int", "Key", "Parameters", "PyTree", "UInt32"]
