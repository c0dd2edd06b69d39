"""What a shift does to sinusoidal positions: it turns each pair of a sine and a
cosine by an angle of its own.
"""

from __future__ import annotations

import numpy as np

from jaxformer.errors import InputError


def rotation(offset: int, d_model: int, base: float = 10_000.0) -> np.ndarray:
    """Return the matrix M with PE(p + k) = M PE(p) for every position p, in the paper's
    interleaved layout.

    M has one block of 2 by 2 for each frequency w, the rotation by the angle k w::

        sin(w (p + k))      cos(w k)  sin(w k)     sin(w p)
                        =                       *
        cos(w (p + k))     -sin(w k)  cos(w k)     cos(w p)

    It depends on k and not on p: this is what "can be represented as a linear function"
    means in Vaswani et al. 2017, section 3.5.

    Args:
        offset: k, of either sign.
        d_model: width; must be even.
        base: 10,000 in the paper.

    Returns:
        float64 ``[D, D]``, orthogonal.

    Raises:
        InputError: an odd width.

    Example:
        >>> np.round(rotation(1, 2), 4).tolist()
        [[0.5403, 0.8415], [-0.8415, 0.5403]]
    """
    if d_model % 2:
        raise InputError(
            f"sinusoidal positions need an even d_model, not {d_model}; try"
            f" {d_model + 1}"
        )
    sines = np.arange(0, d_model, 2)
    angles = offset * base ** (-sines / d_model)
    matrix = np.zeros((d_model, d_model))
    matrix[sines, sines] = matrix[sines + 1, sines + 1] = np.cos(angles)
    matrix[sines, sines + 1] = np.sin(angles)
    matrix[sines + 1, sines] = -np.sin(angles)
    return matrix
