"""The hyper-parameters of a layer, and multi-head attention as a Linen module: it owns
the projections and calls the pure functions.
"""

from __future__ import annotations

import dataclasses
import functools

import jax.numpy as jnp
from flax import linen as nn

from jaxformer.errors import InputError
from jaxformer.functional import attention as functional
from jaxformer.functional import layers
from jaxformer.functional.attention import Mask, Rotation
from jaxformer.functional.masks import SegmentMask, combine, window_mask
from jaxformer.functional.positions import rotary
from jaxformer.kernels.attention import attend
from jaxformer.kernels.matmul import joint_linear
from jaxformer.nn.cache import (
    KeyValueStore,
    Spans,
    attend_to_spans,
    attend_to_store,
    extend,
    project_to_store,
    slot_positions,
)
from jaxformer.nn.dropout import make_drop
from jaxformer.nn.initializers import ones, projection
from jaxformer.typing import Array, Bool, Float, Int

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


def check_heads(layer: LayerConfig | MultiHeadAttention) -> None:
    """Check that heads have a width, and those of keys and values divide those of
    queries.

    Raises:
        InputError: no heads, heads that do not divide d_model without d_k and d_v, or
            other heads of keys and values.
    """
    d_model, num_heads, groups = (
        layer.d_model,
        layer.num_heads,
        layer.num_key_value_heads,
    )
    if num_heads < 1:
        raise InputError(f"num_heads must be at least 1, not {num_heads}")
    if (layer.d_k is None or layer.d_v is None) and d_model % num_heads:
        fitting = [heads for heads in range(1, d_model + 1) if d_model % heads == 0]
        near = min(fitting, key=lambda heads: abs(heads - num_heads))
        raise InputError(
            f"d_model {d_model} is not divisible by num_heads {num_heads}; try {near}"
            " heads, or set d_k and d_v"
        )
    if groups and num_heads % groups:
        raise InputError(
            f"num_key_value_heads {groups} must divide num_heads {num_heads}: take 1,"
            f" {num_heads} or a number between that does"
        )


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
        for name, choices in (
            ("activation", ACTIVATIONS),
            ("norm_order", NORM_ORDERS),
            ("norm", NORMS),
            ("position_bias", POSITION_BIASES),
        ):
            if getattr(self, name) not in choices:
                raise InputError(
                    f"{name} must be one of {', '.join(choices)}, not"
                    f" {getattr(self, name)!r}"
                )
        check_heads(self)
        width = self.d_k or self.d_model // self.num_heads
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


class MultiHeadAttention(nn.Module):
    """Several heads of attention in parallel (Vaswani et al. 2017, section 3.2.2).

    Parameters: ``query``, ``key`` and ``value`` with kernels [D, H, K] and biases [H,
    K], ``output`` with a kernel [H, K, D] and a bias [D], all float32. The computation
    is in the dtype of the input.

    Attributes:
        d_model: width of input and output.
        num_heads: heads.
        d_k: width of a head's queries and keys; d_model / num_heads where None.
        d_v: width of a head's values; d_model / num_heads where None.
        dropout_rate: of the attention weights; 0 in the paper.
        num_key_value_heads: G, which divides the heads: kernels of keys and values are
            [D, G, K], and each serves H / G heads of queries (Ainslie et al. 2023; 1:
            Shazeer 2019). None: as many as heads.
        biases: whether projections have biases.
        query_key_norm: whether queries and keys are normalized, with the scales
            ``query_norm`` and ``key_norm`` [K]; see
            :func:`~jaxformer.functional.attention.project_heads`.
        rotary_base: base of the angles of rotary positions (Su et al. 2021), for
            self-attention; None: none.
        window: each position attends to itself and ``window - 1`` positions on both
            sides, in self-attention; None: to all.

    Raises:
        InputError: heads that do not divide the width, or heads of keys that do not
            divide the heads.
    """

    d_model: int
    num_heads: int
    d_k: int | None = None
    d_v: int | None = None
    dropout_rate: float = 0.0
    num_key_value_heads: int | None = None
    biases: bool = True
    query_key_norm: bool = False
    rotary_base: float | None = None
    window: int | None = None

    def setup(self) -> None:
        """Create the four projections, and the scales of the norms."""
        check_heads(self)
        d_k = self.d_k or self.d_model // self.num_heads
        d_v = self.d_v or self.d_model // self.num_heads
        width, heads = self.d_model, self.num_heads
        groups = self.num_key_value_heads or heads
        shapes = {
            "query": ((width, heads, d_k), 1),
            "key": ((width, groups, d_k), 1),
            "value": ((width, groups, d_v), 1),
            "output": ((heads, d_v, width), 2),
        }
        projections = {
            name: self.param(name, projection, *shape, self.biases)
            for name, shape in shapes.items()
        }
        norms = ("query_norm", "key_norm") if self.query_key_norm else ()
        self.projections = projections | {
            name: self.param(name, ones, d_k) for name in norms
        }

    def __call__(
        self,
        x: Float[Array, "B T D"],
        memory: Float[Array, "B S D"],
        mask: Mask = None,
        *,
        bias: Float[Array, "#B #H #T #S"] | None = None,
        train: bool = False,
        backend: str = "plain",
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B H T S"] | None]:
        """Attend from ``x`` to ``memory``; return the output and the weights, which a
        ``backend`` other than ``plain`` does not compute.

        Args:
            x: the positions of the queries.
            memory: the positions of the keys and values; ``x`` for self-attention.
            mask: boolean, True = may attend, or segments.
            bias: added to the scaled scores.
            train: whether dropout is active.
            backend: how attention is computed.

        Raises:
            InputError: another memory than ``x`` with rotary positions or a window.
        """
        if memory is not x:
            self._check_other()
        maps = [self.projections[name] for name in ("key", "value")]
        if memory is x:
            maps.append(self.projections["query"])
        return functional.multi_head_attention(
            self.projections,
            x,
            memory,
            self._near(mask, x.shape[1]),
            rotate=self._rotation(jnp.arange(x.shape[1])),
            linear=joint_linear(memory, *maps),
            attend=functools.partial(attend, backend=backend),
            bias=bias,
            drop=make_drop(self, self.dropout_rate, train),
        )

    def _rotation(self, positions: Int[Array, "#T"]) -> Rotation | None:
        if self.rotary_base is None:
            return None
        return functools.partial(rotary, positions=positions, base=self.rotary_base)

    def _near(self, mask: Mask, length: int) -> Mask:
        """Restrict a mask to the window."""
        if self.window is None:
            return mask
        if isinstance(mask, SegmentMask):
            return dataclasses.replace(mask, window=self.window)
        return combine(mask, window_mask(length, self.window))

    def _check_other(self) -> None:
        if self.rotary_base is not None or self.window is not None:
            raise InputError(
                "rotary positions and windows are for self-attention: attend to x"
                " itself, or make the module without rotary_base and window"
            )

    def prefill(self, x: Float[Array, "B T D"]) -> KeyValueStore:
        """Project a sequence for later positions of its own to attend to."""
        rotate = self._rotation(jnp.arange(x.shape[1]))
        return project_to_store(self.projections, x, rotate)

    def store(self, memory: Float[Array, "B S D"]) -> KeyValueStore:
        """Project another sequence once, for many calls of :meth:`attend_to_store`."""
        self._check_other()
        return project_to_store(self.projections, memory)

    def attend_to_store(
        self,
        x: Float[Array, "B W D"],
        memory: KeyValueStore,
        mask: Bool[Array, "#B 1 #W M"],
    ) -> tuple[Float[Array, "B W D"], Float[Array, "B H W M"]]:
        """Attend from the new position of W hypotheses to stored keys and values;
        return the output and the weights.
        """
        return attend_to_store(self.projections, x, memory, mask)

    def extend(
        self, cache: Spans, x: Float[Array, "B W D"], position: Int[Array, ""]
    ) -> Spans:
        """Write the keys and values of the new position of W hypotheses into the
        cache.
        """
        rotate = self._rotation(position[None])
        fresh = project_to_store(self.projections, x, rotate)
        return extend(cache, fresh, position)

    def attend_to_spans(
        self,
        x: Float[Array, "B W D"],
        memory: Spans,
        mask: Bool[Array, "#B 1 #W M"],
        position: Int[Array, ""],
        *,
        bias: Float[Array, "1 H 1 M"] | None = None,
    ) -> Float[Array, "B W D"]:
        """Attend from the new position of W hypotheses to the cache; return the
        output.
        """
        if self.window is not None:
            place = slot_positions(mask.shape[-1], x.shape[1])
            mask = mask & (place > position - self.window)[None, None, None]
        rotate = self._rotation(position[None])
        return attend_to_spans(
            self.projections, x, memory, mask, position, bias=bias, rotate=rotate
        )
