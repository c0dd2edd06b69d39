"""Dropout as Linen modules: keys come from the stream ``dropout`` under
``train=True``.
"""

from __future__ import annotations

import functools

from flax import linen as nn

from jaxformer.functional.layers import Elementwise
from jaxformer.kernels.elementwise import dropout, stochastic_depth
from jaxformer.typing import Array, Float


def make_drop(module: nn.Module, rate: float, train: bool) -> Elementwise | None:
    """Return dropout with a key of the module, or None where nothing is dropped."""
    if not train or rate == 0.0:
        return None
    return functools.partial(dropout, rate=rate, key=module.make_rng("dropout"))


class Dropout(nn.Module):
    """Dropout of elements, or of the whole rows of a sub-layer's output.

    Attributes:
        rate: probability.
        rows: whether whole rows are dropped (stochastic depth).
    """

    rate: float
    rows: bool = False

    @nn.compact
    def __call__(self, x: Float[Array, "..."], *, train: bool) -> Float[Array, "..."]:
        """Apply dropout, or return ``x``."""
        if not train or self.rate == 0.0:
            return x
        drop = stochastic_depth if self.rows else dropout
        return drop(x, self.rate, self.make_rng("dropout"))
