"""The layers of encoder and decoder: attention and feed-forward, each with its
residual, dropout and norm.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TypeVar

import jax.numpy as jnp
from flax import linen as nn

from jaxformer.errors import InputError
from jaxformer.functional import layers
from jaxformer.functional.attention import Mask
from jaxformer.functional.cache import KeyValueStore, Spans, extend
from jaxformer.nn.attention import MultiHeadAttention, check_heads
from jaxformer.nn.initializers import projection
from jaxformer.typing import Array, Bool, Float, Int

Aux = TypeVar("Aux")

NORM_ORDERS = ("post", "pre")
"""Where a sub-layer is normalised: its input plus its output (``post``), or its input
(``pre``).
"""


@dataclasses.dataclass(frozen=True)
class LayerConfig:
    """The hyper-parameters of a layer; the defaults are the paper's base model.

    Attributes:
        d_model: width of the residual stream.
        num_heads: heads of each attention.
        d_ff: width of the feed-forward layer.
        d_k: width of a head's queries and keys; d_model / num_heads where None.
        d_v: width of a head's values; d_model / num_heads where None.
        activation: ``relu``, ``gelu``, ``gelu_exact`` or ``silu``.
        norm_order: ``post``, LN(x + Dropout(f(x))), as in the paper, or ``pre``, x +
            Dropout(f(LN(x))).
        norm_epsilon: added to the variance.
        dropout_rate: on the output of each sub-layer (section 5.4).
        attention_dropout_rate: on attention weights.
        activation_dropout_rate: inside the feed-forward layer.

    Raises:
        InputError: an unknown activation or norm order, heads that do not divide
            d_model, or a dropout rate outside [0, 1).
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

    def __post_init__(self) -> None:
        """Check every value."""
        for name, choices in (
            ("activation", tuple(layers.ACTIVATIONS)),
            ("norm_order", NORM_ORDERS),
        ):
            if getattr(self, name) not in choices:
                raise InputError(
                    f"{name} must be one of {', '.join(choices)}, not"
                    f" {getattr(self, name)!r}"
                )
        check_heads(self.d_model, self.num_heads, self.d_k, self.d_v)
        for name in (
            "dropout_rate",
            "attention_dropout_rate",
            "activation_dropout_rate",
        ):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise InputError(
                    f"{name} must be at least 0 and below 1, not {getattr(self, name)}"
                )


class LayerNorm(nn.Module):
    """Layer normalization over the last axis, with scale and bias in float32."""

    width: int
    epsilon: float = 1e-6

    @nn.compact
    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        """Normalize, scale and shift."""
        scale = self.param(
            "scale", nn.initializers.ones_init(), (self.width,), jnp.float32
        )
        bias = self.param(
            "bias", nn.initializers.zeros_init(), (self.width,), jnp.float32
        )
        return layers.layer_norm(x, scale, bias, epsilon=self.epsilon)


class Dropout(nn.Module):
    """Dropout under ``train=True``, with keys from the stream ``dropout``."""

    rate: float

    @nn.compact
    def __call__(self, x: Float[Array, "..."], *, train: bool) -> Float[Array, "..."]:
        """Apply dropout, or return ``x``."""
        key = self.make_rng("dropout") if train and self.rate > 0.0 else None
        return layers.dropout(x, self.rate, key)


class FeedForward(nn.Module):
    """The position-wise feed-forward layer (section 3.3)."""

    d_model: int
    d_ff: int
    activation: str = "relu"
    dropout_rate: float = 0.0

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], *, train: bool = False
    ) -> Float[Array, "B T D"]:
        """Transform each position."""
        params = {
            "inner": self.param("inner", projection, (self.d_model, self.d_ff)),
            "outer": self.param("outer", projection, (self.d_ff, self.d_model)),
        }
        key = self.make_rng("dropout") if train and self.dropout_rate > 0.0 else None
        return layers.feed_forward(
            params,
            x,
            activation=self.activation,
            dropout_rate=self.dropout_rate,
            dropout_key=key,
        )


class Residual(nn.Module):
    """The residual connection, dropout and norm of a sub-layer f.

    Post: LN(x + Dropout(f(x))) (Vaswani et al. 2017, section 3.1; dropout:
    section 5.4).
    Pre: x + Dropout(f(LN(x))).
    """

    config: LayerConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T D"],
        sublayer: Callable[[Float[Array, "B T D"]], tuple[Float[Array, "B T D"], Aux]],
        *,
        train: bool,
    ) -> tuple[Float[Array, "B T D"], Aux]:
        """Apply ``sublayer``, which returns its output and, for example, attention
        weights.
        """
        norm = LayerNorm(self.config.d_model, self.config.norm_epsilon, name="norm")
        drop = Dropout(self.config.dropout_rate, name="dropout")
        if self.config.norm_order == "pre":
            output, more = sublayer(norm(x))
            return x + drop(output, train=train), more
        output, more = sublayer(x)
        return norm(x + drop(output, train=train)), more


def _attention(config: LayerConfig) -> MultiHeadAttention:
    return MultiHeadAttention(
        config.d_model,
        config.num_heads,
        config.d_k,
        config.d_v,
        config.attention_dropout_rate,
    )


def _feed_forward(config: LayerConfig) -> FeedForward:
    return FeedForward(
        config.d_model, config.d_ff, config.activation, config.activation_dropout_rate
    )


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward (section 3.1)."""

    config: LayerConfig

    def setup(self) -> None:
        """Create the two sub-layers and their residuals."""
        self.self_attention = _attention(self.config)
        self.self_attention_residual = Residual(self.config)
        self.feed_forward = _feed_forward(self.config)
        self.feed_forward_residual = Residual(self.config)

    def __call__(
        self,
        x: Float[Array, "B S D"],
        mask: Mask = None,
        *,
        train: bool = False,
        backend: str = "plain",
    ) -> tuple[Float[Array, "B S D"], Float[Array, "B H S S"] | None]:
        """Return the output and the attention weights, which only the ``backend``
        ``plain`` computes.
        """
        attend = functools.partial(self.self_attention, train=train, backend=backend)
        x, weights = self.self_attention_residual(
            x, lambda y: attend(y, y, mask), train=train
        )
        x, _ = self.feed_forward_residual(
            x, lambda y: (self.feed_forward(y, train=train), None), train=train
        )
        return x, weights


class DecoderLayer(nn.Module):
    """Masked self-attention, attention to the encoder's output, then feed-forward
    (section 3.1).
    """

    config: LayerConfig

    def setup(self) -> None:
        """Create the three sub-layers and their residuals."""
        self.self_attention = _attention(self.config)
        self.self_attention_residual = Residual(self.config)
        self.cross_attention = _attention(self.config)
        self.cross_attention_residual = Residual(self.config)
        self.feed_forward = _feed_forward(self.config)
        self.feed_forward_residual = Residual(self.config)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        memory: Float[Array, "B S D"],
        mask: Mask,
        memory_mask: Mask = None,
        *,
        train: bool = False,
        backend: str = "plain",
    ) -> tuple[
        Float[Array, "B T D"],
        tuple[Float[Array, "B H T T"] | None, Float[Array, "B H T S"] | None],
    ]:
        """Return the output and the weights of self-attention and cross-attention.

        Args:
            x: the target.
            memory: the encoder's output.
            mask: of the self-attention; it must be causal in an autoregressive model.
            memory_mask: which positions of the memory may be attended to.
            train: whether dropout is active.
            backend: how attention is computed; only ``plain`` computes weights.
        """
        own, other = (
            functools.partial(attention, train=train, backend=backend)
            for attention in (self.self_attention, self.cross_attention)
        )
        x, self_weights = self.self_attention_residual(
            x, lambda y: own(y, y, mask), train=train
        )
        x, cross_weights = self.cross_attention_residual(
            x, lambda y: other(y, memory, memory_mask), train=train
        )
        x, _ = self.feed_forward_residual(
            x, lambda y: (self.feed_forward(y, train=train), None), train=train
        )
        return x, (self_weights, cross_weights)

    def store_memory(self, memory: Float[Array, "B S D"]) -> KeyValueStore:
        """Project the encoder's output once, for many calls of :meth:`step`."""
        return self.cross_attention.store(memory)

    def step(
        self,
        x: Float[Array, "N 1 D"],
        cache: Spans,
        position: Int[Array, ""],
        seen: Bool[Array, "B 1 W M"],
        memory: KeyValueStore,
        memory_mask: Bool[Array, "B2 1 1 S"],
    ) -> tuple[Float[Array, "N 1 D"], Spans, Float[Array, "B2 H W2 S"]]:
        """Compute one position from the cached keys and values of those before it.

        Args:
            x: the input of the position for N hypotheses; those of a sentence are
                adjacent.
            cache: keys and values of the positions before, with empty slots.
            position: of ``x``, counted from 0.
            seen: which slots of the cache each hypothesis reads, its own included.
            memory: projected encoder output, one row a sentence. The hypotheses of a
                sentence query it like positions, so it is never repeated.
            memory_mask: which positions of the memory may be attended to.

        Returns:
            The output, the cache with this position, and the weights of the
            cross-attention, W = N / B. ``jit`` prunes weights that are not used.
        """

        def attend_self(y: Array) -> tuple[Array, Spans]:
            beams = y.reshape(seen.shape[0], seen.shape[2], -1)
            grown = extend(cache, self.self_attention.keys_values(beams), position)
            return (
                self.self_attention.attend_to_spans(
                    beams, grown, seen, position
                ).reshape(y.shape),
                grown,
            )

        def attend_memory(y: Array) -> tuple[Array, Array]:
            beams = y.reshape(memory.keys.shape[0], -1, y.shape[-1])
            output, weights = self.cross_attention.attend_to_store(
                beams, memory, memory_mask
            )
            return output.reshape(y.shape), weights

        x, grown = self.self_attention_residual(x, attend_self, train=False)
        x, weights = self.cross_attention_residual(x, attend_memory, train=False)
        x, _ = self.feed_forward_residual(
            x, lambda y: (self.feed_forward(y), None), train=False
        )
        return x, grown, weights
