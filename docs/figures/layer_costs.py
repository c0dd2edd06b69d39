"""Table 1 of the paper in numbers: what a layer costs, what of it must wait, and how
far apart it leaves two words.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from jaxformer.errors import InputError


@dataclass(frozen=True)
class LayerCost:
    """Count what a kind of layer needs for one sequence.

    Attributes:
        kind: of layer, in the paper's words.
        multiplications: of matrix products in one layer.
        sequential: operations that have to wait for each other, at least.
        path: layers, or steps of a recurrence, from the first input to the output at
            the last position.
    """

    kind: str
    multiplications: int
    sequential: int
    path: int


def layer_costs(
    length: int, width: int, *, kernel: int = 3, reach: int = 64
) -> tuple[LayerCost, ...]:
    """Count the operations of the four kinds of layers in the paper's Table 1.

    Self-attention multiplies queries with keys and weights with values, n^2 d each; its
    projections, d^2 a position as in any layer, are not counted, as in the paper. A
    recurrence multiplies state and input with a matrix each, 2 n d^2. A convolution has
    ``kernel`` matrices, k n d^2; its path is that of a stack dilated by the powers of
    k. Restricted self-attention sees ``reach`` positions around each, half of them on
    either side.

    Args:
        length: n, positions of the sequence.
        width: d, of a representation.
        kernel: k, positions that a convolution sees, at least 2.
        reach: r, positions that restricted self-attention sees, at least 2.

    Raises:
        InputError: a number too small.

    Example:
        >>> attention, recurrent, *_ = layer_costs(32, 512)
        >>> (attention.multiplications, attention.path), recurrent.path
        ((1048576, 1), 32)
    """
    for name, value, least in (
        ("length", length, 1),
        ("width", width, 1),
        ("kernel", kernel, 2),
        ("reach", reach, 2),
    ):
        if value < least:
            raise InputError(f"{name} must be at least {least}, not {value}")
    layers, seen = 1, kernel
    while seen < length:
        layers, seen = layers + 1, seen * kernel
    seen = min(reach, length)
    return (
        LayerCost("self-attention", 2 * length**2 * width, 1, 1),
        LayerCost("recurrent", 2 * length * width**2, length, length),
        LayerCost("convolutional", kernel * length * width**2, 1, layers),
        LayerCost(
            "restricted",
            2 * seen * length * width,
            1,
            max(1, math.ceil((length - 1) / (reach // 2))),
        ),
    )
