"""The layers of encoder and decoder: attention and feed-forward, each with its
residual, dropout and norm.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

import jax.numpy as jnp
from flax import linen as nn

from jaxformer.functional import layers
from jaxformer.functional.attention import Mask
from jaxformer.kernels.elementwise import ACTIVATIONS
from jaxformer.kernels.matmul import joint_linear
from jaxformer.kernels.norm import layer_norm
from jaxformer.nn.attention import LayerConfig, MultiHeadAttention
from jaxformer.nn.cache import KeyValueStore, Spans
from jaxformer.nn.dropout import Dropout, make_drop
from jaxformer.nn.initializers import projection
from jaxformer.typing import Array, Bool, Float, Int

Aux = TypeVar("Aux")


class LayerNorm(nn.Module):
    """Layer normalization over the last axis, with scale and bias in float32.

    Attributes:
        width: of the last axis.
        epsilon: added to the variance.
        biased: whether there is a bias.
    """

    width: int
    epsilon: float = 1e-6
    biased: bool = True

    @nn.compact
    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        """Normalize, scale and shift."""
        scale = self.param(
            "scale", nn.initializers.ones_init(), (self.width,), jnp.float32
        )
        if not self.biased:
            return layer_norm(x, scale, epsilon=self.epsilon)
        bias = self.param(
            "bias", nn.initializers.zeros_init(), (self.width,), jnp.float32
        )
        return layer_norm(x, scale, bias, epsilon=self.epsilon)


class RMSNorm(nn.Module):
    """Root mean square normalization over the last axis, with a scale in float32.

    Attributes:
        width: of the last axis.
        epsilon: added to the mean square.
    """

    width: int
    epsilon: float = 1e-6

    @nn.compact
    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        """Normalize and scale."""
        scale = self.param(
            "scale", nn.initializers.ones_init(), (self.width,), jnp.float32
        )
        return layers.rms_norm(x, scale, epsilon=self.epsilon)


def make_norm(config: LayerConfig, name: str | None = None) -> LayerNorm | RMSNorm:
    """Make the norm of a configuration, of the width of the residual stream."""
    if config.norm == "rms":
        return RMSNorm(config.d_model, config.norm_epsilon, name=name)
    return LayerNorm(config.d_model, config.norm_epsilon, config.biases, name=name)


class FeedForward(nn.Module):
    """The position-wise feed-forward layer (section 3.3), plain or gated."""

    d_model: int
    d_ff: int
    activation: str = "relu"
    dropout_rate: float = 0.0
    biases: bool = True

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], *, train: bool = False
    ) -> Float[Array, "B T D"]:
        """Transform each position."""
        inner, outer = (self.d_model, self.d_ff), (self.d_ff, self.d_model)
        shapes = {"inner": inner, "outer": outer}
        if self.activation in layers.GATED:
            shapes["gate"] = inner
        params = {
            name: self.param(name, projection, shape, 1, self.biases)
            for name, shape in shapes.items()
        }
        into = [params[name] for name in ("gate", "inner") if name in params]
        name = layers.GATED.get(self.activation, self.activation)
        return layers.feed_forward(
            params,
            x,
            activation=ACTIVATIONS[name],
            drop=make_drop(self, self.dropout_rate, train),
            linear=joint_linear(x, *into),
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
        norm = make_norm(self.config, name="norm")
        drop = Dropout(self.config.dropout_rate, name="dropout")
        drop_all = Dropout(self.config.layer_drop_rate, rows=True, name="layer_drop")
        pre = self.config.norm_order == "pre"
        output, more = sublayer(norm(x) if pre else x)
        x = x + drop_all(drop(output, train=train), train=train)
        return (x if pre else norm(x)), more


def _attention(config: LayerConfig, *, own: bool) -> MultiHeadAttention:
    """Make the attention of a layer to itself (``own``) or to another stack."""
    return MultiHeadAttention(
        config.d_model,
        config.num_heads,
        config.d_k,
        config.d_v,
        config.attention_dropout_rate,
        config.num_key_value_heads,
        config.biases,
        config.query_key_norm,
        rotary_base=config.rotary_base if own else None,
        window=config.attention_window if own else None,
    )


def _attend_to_cache(
    attention: MultiHeadAttention,
    y: Float[Array, "N 1 D"],
    cache: Spans,
    position: Int[Array, ""],
    seen: Bool[Array, "B 1 W M"],
    bias: Float[Array, "1 H 1 M"] | None,
) -> tuple[Float[Array, "N 1 D"], Spans]:
    """Attend from a new position to the cache, which grows by it."""
    beams = y.reshape(seen.shape[0], seen.shape[2], -1)
    grown = attention.extend(cache, beams, position)
    output = attention.attend_to_spans(beams, grown, seen, position, bias=bias)
    return output.reshape(y.shape), grown


class _Layer(nn.Module):
    """What both layers share."""

    config: LayerConfig

    def setup(self) -> None:
        """Create self-attention, feed-forward and their residuals."""
        config = self.config
        self.self_attention = _attention(config, own=True)
        self.self_attention_residual = Residual(config)
        self.feed_forward = FeedForward(
            config.d_model,
            config.d_ff,
            config.activation,
            config.activation_dropout_rate,
            config.biases,
        )
        self.feed_forward_residual = Residual(config)

    def _feed(self, x: Float[Array, "B S D"], train: bool = False) -> Array:
        return self.feed_forward_residual(
            x, lambda y: (self.feed_forward(y, train=train), None), train=train
        )[0]


class EncoderLayer(_Layer):
    """Self-attention, then feed-forward (section 3.1)."""

    def __call__(
        self,
        x: Float[Array, "B S D"],
        mask: Mask = None,
        *,
        bias: Float[Array, "#B #H S S"] | None = None,
        train: bool = False,
        backend: str = "plain",
    ) -> tuple[Float[Array, "B S D"], Float[Array, "B H S S"] | None]:
        """Return the output and the attention weights, which only the ``backend``
        ``plain`` computes. A ``bias`` is added to the scores.
        """
        attend = functools.partial(
            self.self_attention, bias=bias, train=train, backend=backend
        )
        x, weights = self.self_attention_residual(
            x, lambda y: attend(y, y, mask), train=train
        )
        return self._feed(x, train), weights

    def prefill(
        self,
        x: Float[Array, "B T D"],
        mask: Mask,
        *,
        bias: Float[Array, "#B #H T T"] | None = None,
        backend: str = "plain",
    ) -> tuple[Float[Array, "B T D"], KeyValueStore]:
        """Return the output, and keys and values for :meth:`step` to read."""

        def attend(y: Array) -> tuple[Array, KeyValueStore]:
            output, _ = self.self_attention(y, y, mask, bias=bias, backend=backend)
            return output, self.self_attention.prefill(y)

        x, kept = self.self_attention_residual(x, attend, train=False)
        return self._feed(x), kept

    def step(
        self,
        x: Float[Array, "N 1 D"],
        cache: Spans,
        position: Int[Array, ""],
        seen: Bool[Array, "B 1 W M"],
        *,
        bias: Float[Array, "1 H 1 M"] | None = None,
    ) -> tuple[Float[Array, "N 1 D"], Spans]:
        """Compute one position of a decoder-only model from the cache.

        Args:
            x: the input of the position for N hypotheses; those of a text are adjacent.
            cache: keys and values of the positions before, with empty slots.
            position: of ``x``, counted from 0.
            seen: which slots each hypothesis reads, its own included.
            bias: added to the scores.

        Returns:
            The output, and the cache with this position.
        """

        def attend(y: Array) -> tuple[Array, Spans]:
            return _attend_to_cache(self.self_attention, y, cache, position, seen, bias)

        x, grown = self.self_attention_residual(x, attend, train=False)
        return self._feed(x), grown


class DecoderLayer(_Layer):
    """Masked self-attention, attention to the encoder's output, then feed-forward
    (section 3.1).
    """

    def setup(self) -> None:
        """Create the three sub-layers and their residuals."""
        super().setup()
        self.cross_attention = _attention(self.config, own=False)
        self.cross_attention_residual = Residual(self.config)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        memory: Float[Array, "B S D"],
        mask: Mask,
        memory_mask: Mask = None,
        *,
        bias: Float[Array, "#B #H T T"] | None = None,
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
            bias: added to the scores of the self-attention.
            train: whether dropout is active.
            backend: how attention is computed; only ``plain`` computes weights.
        """
        own, other = (
            functools.partial(attention, train=train, backend=backend)
            for attention in (self.self_attention, self.cross_attention)
        )
        x, self_weights = self.self_attention_residual(
            x, lambda y: own(y, y, mask, bias=bias), train=train
        )
        x, cross_weights = self.cross_attention_residual(
            x, lambda y: other(y, memory, memory_mask), train=train
        )
        return self._feed(x, train), (self_weights, cross_weights)

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
        *,
        bias: Float[Array, "1 H 1 M"] | None = None,
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
            bias: added to the scores of the self-attention.

        Returns:
            The output, the cache with this position, and the weights of the
            cross-attention, W = N / B. ``jit`` prunes weights that are not used.
        """

        def attend_self(y: Array) -> tuple[Array, Spans]:
            return _attend_to_cache(self.self_attention, y, cache, position, seen, bias)

        def attend_memory(y: Array) -> tuple[Array, Array]:
            beams = y.reshape(memory.keys.shape[0], -1, y.shape[-1])
            output, weights = self.cross_attention.attend_to_store(
                beams, memory, memory_mask
            )
            return output.reshape(y.shape), weights

        x, grown = self.self_attention_residual(x, attend_self, train=False)
        x, weights = self.cross_attention_residual(x, attend_memory, train=False)
        return self._feed(x), grown, weights
