"""The hyper-parameters of a layer."""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxformer.errors import InputError
from jaxformer.functional import layers

NORM_ORDERS = ("post", "pre")
"""Where a sub-layer is normalised: its input plus its output (``post``), or its input
(``pre``).
"""

NORMS = ("layer", "rms")
"""Layer normalization, or RMSNorm."""

POSITION_BIASES = ("none", "relative", "alibi")
"""Biases of scores by the distance of two positions: none, learned by buckets (T5), or
linear (ALiBi).
"""

ACTIVATIONS = (*layers.ACTIVATIONS, *layers.GATED)
"""Activations of the feed-forward layer, plain and gated."""

_CHOICES = {
    "activation": ACTIVATIONS,
    "norm_order": NORM_ORDERS,
    "norm": NORMS,
    "position_bias": POSITION_BIASES,
}


def head_widths(layer: Any) -> tuple[int, int]:
    """Return the width of a head's queries and keys, and of its values.

    Raises:
        InputError: no heads, heads that do not divide d_model without d_k and d_v, or
            other heads of keys and values.
    """
    d_model, heads, groups = layer.d_model, layer.num_heads, layer.num_key_value_heads
    if heads < 1:
        raise InputError(f"num_heads must be at least 1, not {heads}")
    if (layer.d_k is None or layer.d_v is None) and d_model % heads:
        fitting = [n for n in range(1, d_model + 1) if d_model % n == 0]
        near = min(fitting, key=lambda n: abs(n - heads))
        raise InputError(
            f"d_model {d_model} is not divisible by num_heads {heads}; try {near}"
            " heads, or set d_k and d_v"
        )
    if groups and heads % groups:
        raise InputError(
            f"num_key_value_heads {groups} must divide num_heads {heads}: take 1,"
            f" {heads} or a number between that does"
        )
    return layer.d_k or d_model // heads, layer.d_v or d_model // heads


@dataclasses.dataclass(frozen=True)
class LayerConfig:
    """The hyper-parameters of a layer; the defaults are the paper's base model.

    Attributes:
        d_model: width of the residual stream.
        num_heads: heads of each attention.
        d_ff: width of the feed-forward layer.
        d_k: width of a head's queries and keys; d_model / num_heads where None.
        d_v: width of a head's values; d_model / num_heads where None.
        activation: ``relu``, ``gelu``, ``gelu_exact`` or ``silu``, or gated, with a
            third kernel: ``reglu``, ``geglu``, ``geglu_exact`` or ``swiglu``.
        norm_order: ``post``, LN(x + Dropout(f(x))), as in the paper, or ``pre``, x +
            Dropout(f(LN(x))).
        norm_epsilon: added to the variance.
        dropout_rate: on the output of each sub-layer (section 5.4).
        attention_dropout_rate: on attention weights.
        activation_dropout_rate: inside the feed-forward layer.
        norm: ``layer`` or ``rms``.
        biases: whether projections and norms have biases.
        num_key_value_heads: heads of keys and values; num_heads where None.
        query_key_norm: whether queries and keys are normalized.
        rotary_base: of the angles of rotary positions in self-attention; None: none.
        position_bias: of the scores of self-attention: ``none``, ``relative`` or
            ``alibi``. A stack has one for all its layers.
        attention_window: self-attention sees so many positions, its own included, on
            both sides; None: all.
        layer_drop_rate: of whole sub-layers in training (stochastic depth).

    Raises:
        InputError: an unknown name, heads that do not divide d_model, heads of keys
            that do not divide the heads, rotary positions of an odd width, an empty
            window, or a dropout rate outside [0, 1).
    """

    d_model: int = 512
    num_heads: int = 8
    d_ff: int = 2048
    d_k: int | None = None
    d_v: int | None = None
    activation: str = "relu"
    norm_order: str = "post"
    norm_epsilon: float = 1e-6
    dropout_rate: float = 0.1
    attention_dropout_rate: float = 0.0
    activation_dropout_rate: float = 0.0
    norm: str = "layer"
    biases: bool = True
    num_key_value_heads: int | None = None
    query_key_norm: bool = False
    rotary_base: float | None = None
    position_bias: str = "none"
    attention_window: int | None = None
    layer_drop_rate: float = 0.0

    def __post_init__(self) -> None:
        """Check every value."""
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise InputError(
                    f"{name} must be one of {', '.join(choices)}, not {value!r}"
                )
        width, _ = head_widths(self)
        if self.rotary_base is not None and width % 2:
            raise InputError(
                f"positions=rotary needs an even d_k, the width of a head, not {width}"
            )
        if self.attention_window is not None and self.attention_window < 1:
            raise InputError(
                f"attention_window must be at least 1, not {self.attention_window}"
            )
        for name, value in vars(self).items():
            if name.endswith("_rate") and not 0.0 <= value < 1.0:
                raise InputError(f"{name} must be at least 0 and below 1, not {value}")
