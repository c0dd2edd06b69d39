"""The layers of encoder and decoder: attention and feed-forward, each with its
residual, dropout and norm.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import jax.numpy as jnp
from flax import linen as nn

from jaxformer.functional import layers
from jaxformer.functional.attention import Mask
from jaxformer.functional.masks import SegmentMask
from jaxformer.kernels.elementwise import ACTIVATIONS
from jaxformer.kernels.matmul import joint_linear
from jaxformer.kernels.norm import layer_norm
from jaxformer.nn.attention import MultiHeadAttention, Weights
from jaxformer.nn.cache import KeyValueStore, Spans, attend_to_spans
from jaxformer.nn.config import LayerConfig
from jaxformer.nn.dropout import Dropout, make_drop
from jaxformer.nn.initializers import projection
from jaxformer.typing import Array, Bool, Float

Sublayer: TypeAlias = Callable[[Array], tuple[Array, Any]]
"""A function of the residual stream [B, T, D], which returns its output and, for
example, attention weights.
"""


class _Norm(nn.Module):
    """What both norms share."""

    width: int
    epsilon: float = 1e-6
    biased = False
    normalize = staticmethod(layers.rms_norm)

    @nn.compact
    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        """Normalize, scale and, with a bias, shift."""
        init, like = nn.initializers, ((self.width,), jnp.float32)
        params = {"scale": self.param("scale", init.ones_init(), *like)}
        if self.biased:
            params["bias"] = self.param("bias", init.zeros_init(), *like)
        return self.normalize(x, **params, epsilon=self.epsilon)


class RMSNorm(_Norm):
    """Root mean square normalization over the last axis, with a scale in float32.

    Attributes:
        width: of the last axis.
        epsilon: added to the mean square.
    """


class LayerNorm(_Norm):
    """Layer normalization over the last axis, with scale and bias in float32.

    Attributes:
        width: of the last axis.
        epsilon: added to the variance.
        biased: whether there is a bias.
    """

    biased: bool = True
    normalize = staticmethod(layer_norm)


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
        sizes = self.d_model, self.d_ff
        shapes = {"inner": sizes, "outer": sizes[::-1]}
        if self.activation in layers.GATED:
            shapes["gate"] = sizes
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
    Stochastic depth may drop whole rows of the sub-layer's output too.
    """

    config: LayerConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T D"],
        sublayer: Sublayer,
        *,
        train: bool,
    ) -> tuple[Float[Array, "B T D"], Any]:
        """Apply ``sublayer``; return the output, and what it returns besides."""
        norm = make_norm(self.config, name="norm")
        drop = Dropout(self.config.dropout_rate, name="dropout")
        drop_all = Dropout(self.config.layer_drop_rate, rows=True, name="layer_drop")
        pre = self.config.norm_order == "pre"
        output, more = sublayer(norm(x) if pre else x)
        x = x + drop_all(drop(output, train=train), train=train)
        return (x if pre else norm(x)), more


def _attention(config: LayerConfig, **own: Any) -> MultiHeadAttention:
    """Make the attention of a layer; only that to itself has ``own`` options."""
    return MultiHeadAttention(
        config.d_model,
        config.num_heads,
        config.d_k,
        config.d_v,
        config.attention_dropout_rate,
        config.num_key_value_heads,
        config.biases,
        config.query_key_norm,
        **own,
    )


class _Layer(nn.Module):
    """What both layers share."""

    config: LayerConfig
    reads_memory = False

    def setup(self) -> None:
        """Create the sub-layers and their residuals."""
        config = self.config
        self.self_attention = _attention(
            config, rotary_base=config.rotary_base, window=config.attention_window
        )
        self.self_attention_residual = Residual(config)
        if self.reads_memory:
            self.cross_attention = _attention(config)
            self.cross_attention_residual = Residual(config)
        self.feed_forward = FeedForward(
            config.d_model,
            config.d_ff,
            config.activation,
            config.activation_dropout_rate,
            config.biases,
        )
        self.feed_forward_residual = Residual(config)

    def _run(
        self,
        x: Array,
        attend: Sublayer,
        attend_to_memory: Sublayer | None = None,
        *,
        train: bool = False,
    ) -> tuple[Array, Any, Any]:
        """Return the output, and what the attentions return besides theirs."""
        x, own = self.self_attention_residual(x, attend, train=train)
        other = None
        if attend_to_memory is not None:
            x, other = self.cross_attention_residual(x, attend_to_memory, train=train)
        x, _ = self.feed_forward_residual(
            x, lambda y: (self.feed_forward(y, train=train), None), train=train
        )
        return x, own, other

    def step(
        self,
        x: Float[Array, "N 1 D"],
        cache: Spans,
        memory: KeyValueStore | None = None,
        *,
        memory_mask: Bool[Array, "B2 1 1 S"] | None = None,
        **how: Any,
    ) -> tuple[Float[Array, "N 1 D"], Spans, Float[Array, "B2 H W2 S"] | None]:
        """Compute one position from the cached keys and values of those before it.

        Args:
            x: the input of the position for N hypotheses; those of a sentence are
                adjacent.
            cache: keys and values of the positions before, with empty slots.
            memory: projected encoder output of a decoder layer, one row a sentence. The
                hypotheses of a sentence query it like positions, so it is never
                repeated.
            memory_mask: which positions of the memory may be attended to.
            how: the rest of :meth:`MultiHeadAttention.step`.

        Returns:
            The output, the cache with this position, and the weights of the
            cross-attention, W = N / B. ``jit`` prunes weights that are not used.
        """
        attend = partial(self.self_attention.step, cache=cache, **how)
        if memory is None:
            return self._run(x, attend)
        attend_to_store = partial(attend_to_spans, self.cross_attention.projections)
        to_memory = partial(attend_to_store, memory=(memory,), mask=memory_mask)
        return self._run(x, attend, to_memory)


class EncoderLayer(_Layer):
    """Self-attention, then feed-forward (section 3.1). With a causal mask it is the
    layer of a decoder-only model, for which ``prefill`` and ``step`` are.
    """

    def __call__(
        self,
        x: Float[Array, "B S D"],
        mask: Mask = None,
        *,
        bias: Float[Array, "#B #H S S"] | None = None,
        train: bool = False,
        backend: str = "plain",
    ) -> tuple[Float[Array, "B S D"], Weights]:
        """Return the output and the attention weights, which only the ``backend``
        ``plain`` computes. A ``bias`` is added to the scores.
        """
        how = {"bias": bias, "train": train, "backend": backend}
        attend = partial(self.self_attention, mask=mask, **how)
        return self._run(x, attend, train=train)[:2]

    def prefill(
        self, x: Float[Array, "B T D"], mask: Mask, **how: Any
    ) -> tuple[Float[Array, "B T D"], KeyValueStore]:
        """Return the output, and keys and values for :meth:`step` to read; ``how`` is
        the ``bias`` and the ``backend``.
        """
        attention, place = self.self_attention, jnp.arange(x.shape[1])
        return self._run(
            x,
            lambda y: (attention(y, mask=mask, **how)[0], attention.store(y, place)),
        )[:2]


class DecoderLayer(_Layer):
    """Masked self-attention, attention to the encoder's output, then feed-forward
    (section 3.1).
    """

    reads_memory = True

    def __call__(
        self,
        x: Float[Array, "B T D"],
        memory: Float[Array, "B S D"],
        mask: Mask = None,
        memory_mask: Mask = None,
        *,
        bias: Float[Array, "#B #H T T"] | None = None,
        train: bool = False,
        backend: str = "plain",
    ) -> tuple[Float[Array, "B T D"], tuple[Weights, ...]]:
        """Return the output and the weights of self-attention and cross-attention.

        Args:
            x: the target.
            memory: the encoder's output.
            mask: of the self-attention; None: causal.
            memory_mask: which positions of the memory may be attended to; None: all.
            bias: added to the scores of the self-attention.
            train: whether dropout is active.
            backend: how attention is computed; only ``plain`` computes weights.
        """
        if mask is None:
            mask = SegmentMask(jnp.ones(x.shape[:2], bool), causal=True)
        how: dict[str, Any] = {"train": train, "backend": backend}
        attend, attend_to_memory = self.self_attention, self.cross_attention
        x, *weights = self._run(
            x,
            partial(attend, mask=mask, bias=bias, **how),
            partial(attend_to_memory, memory=memory, mask=memory_mask, **how),
            train=train,
        )
        return x, tuple(weights)
