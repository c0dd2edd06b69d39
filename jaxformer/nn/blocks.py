"""The layers of encoder and decoder: attention and feed-forward, each with its
residual, dropout and norm.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax.numpy as jnp
from flax import linen as nn

from jaxformer.functional import layers
from jaxformer.functional.attention import Mask
from jaxformer.functional.masks import SegmentMask
from jaxformer.kernels.elementwise import ACTIVATIONS
from jaxformer.kernels.matmul import joint_linear
from jaxformer.kernels.norm import layer_norm
from jaxformer.nn.attention import LayerConfig, MultiHeadAttention
from jaxformer.nn.cache import KeyValueStore, Spans
from jaxformer.nn.dropout import Dropout, make_drop
from jaxformer.nn.initializers import projection
from jaxformer.typing import Array, Bool, Float

Aux = TypeVar("Aux")


def _norm_parameters(
    module: LayerNorm | RMSNorm, *, biased: bool
) -> dict[str, Float[Array, " D"]]:
    make = {"scale": nn.initializers.ones_init(), "bias": nn.initializers.zeros_init()}
    return {
        name: module.param(name, make[name], (module.width,), jnp.float32)
        for name in (["scale", "bias"] if biased else ["scale"])
    }


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
        params = _norm_parameters(self, biased=self.biased)
        return layer_norm(x, **params, epsilon=self.epsilon)


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
        params = _norm_parameters(self, biased=False)
        return layers.rms_norm(x, **params, epsilon=self.epsilon)


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
        shapes = {
            "inner": (self.d_model, self.d_ff),
            "outer": (self.d_ff, self.d_model),
        }
        if self.activation in layers.GATED:
            shapes["gate"] = shapes["inner"]
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
        attend: Callable[[Array], tuple[Array, Any]],
        attend_to_memory: Callable[[Array], tuple[Array, Any]] | None = None,
        *,
        train: bool = False,
    ) -> tuple[Array, Any]:
        """Return the output, and what the attentions return besides theirs."""
        x, more = self.self_attention_residual(x, attend, train=train)
        if attend_to_memory is not None:
            x, other = self.cross_attention_residual(x, attend_to_memory, train=train)
            more = more, other
        x, _ = self.feed_forward_residual(
            x, lambda y: (self.feed_forward(y, train=train), None), train=train
        )
        return x, more


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
        how = {"mask": mask, "bias": bias, "train": train, "backend": backend}
        return self._run(x, functools.partial(self.self_attention, **how), train=train)

    def prefill(
        self, x: Float[Array, "B T D"], mask: Mask, **how: Any
    ) -> tuple[Float[Array, "B T D"], KeyValueStore]:
        """Return the output, and keys and values for :meth:`step` to read; see
        :meth:`MultiHeadAttention.prefill`.
        """
        prefill = self.self_attention.prefill
        return self._run(x, functools.partial(prefill, mask=mask, **how))

    def step(
        self, x: Float[Array, "N 1 D"], cache: Spans, **how: Any
    ) -> tuple[Float[Array, "N 1 D"], Spans]:
        """Compute one position of a decoder-only model from the cache; return the
        output, and the cache with this position. See :meth:`MultiHeadAttention.step`.
        """
        step = self.self_attention.step
        return self._run(x, functools.partial(step, cache=cache, **how))


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
    ) -> tuple[
        Float[Array, "B T D"],
        tuple[Float[Array, "B H T T"] | None, Float[Array, "B H T S"] | None],
    ]:
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
        own = {"mask": mask, "bias": bias, **how}
        other = {"memory": memory, "mask": memory_mask, **how}
        return self._run(
            x,
            functools.partial(self.self_attention, **own),
            functools.partial(self.cross_attention, **other),
            train=train,
        )

    def store_memory(self, memory: Float[Array, "B S D"]) -> KeyValueStore:
        """Project the encoder's output once, for many calls of :meth:`step`."""
        return self.cross_attention.store(memory)

    def step(
        self,
        x: Float[Array, "N 1 D"],
        cache: Spans,
        memory: KeyValueStore,
        *,
        memory_mask: Bool[Array, "B2 1 1 S"],
        **how: Any,
    ) -> tuple[Float[Array, "N 1 D"], tuple[Spans, Float[Array, "B2 H W2 S"]]]:
        """Compute one position from the cached keys and values of those before it.

        Args:
            x: the input of the position for N hypotheses; those of a sentence are
                adjacent.
            cache: keys and values of the positions before, with empty slots.
            memory: projected encoder output, one row a sentence. The hypotheses of a
                sentence query it like positions, so it is never repeated.
            memory_mask: which positions of the memory may be attended to.
            how: the rest of :meth:`MultiHeadAttention.step`.

        Returns:
            The output, the cache with this position, and the weights of the
            cross-attention, W = N / B. ``jit`` prunes weights that are not used.
        """
        attend_to_store = self.cross_attention.attend_to_store
        return self._run(
            x,
            functools.partial(self.self_attention.step, cache=cache, **how),
            functools.partial(attend_to_store, memory=memory, mask=memory_mask),
        )
