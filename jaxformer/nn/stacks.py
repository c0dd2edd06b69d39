"""Encoder and decoder: stacks of layers (Vaswani et al. 2017, section 3.1 and figure
1).

Layers are looped, each with its own parameters (``layer_0``, ``layer_1``, ...), or
scanned: one layer is compiled once and runs over parameters with a leading axis of
layers (``layers``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxformer.errors import InputError
from jaxformer.functional.attention import Mask
from jaxformer.functional.masks import SegmentMask
from jaxformer.kernels.matmul import LINEAR_OUTPUT
from jaxformer.nn.attention import Weights
from jaxformer.nn.blocks import DecoderLayer, EncoderLayer, make_norm
from jaxformer.nn.cache import KeyValueStore, Spans, project_to_store, slot_positions
from jaxformer.nn.config import LayerConfig
from jaxformer.nn.embedding import PositionBias
from jaxformer.typing import Array, Bool, Float, Int

# What the forward pass saves of a layer, besides its input. `dots` saves the output of
# every linear map in the compute dtype. The two matmuls inside attention are
# recomputed: they cost little, and that of queries and keys grows with the square of
# the length.
# `jax.checkpoint_policies.dots_with_no_batch_dims_saveable` would save the same outputs
# in their float32 accumulation, which takes twice the memory in half precision.
_POLICIES = {
    "layer": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.save_only_these_names(LINEAR_OUTPUT),
}
REMATERIALIZATIONS = ("none", *_POLICIES)
"""What the backward pass recomputes: nothing, whole layers, or all but the outputs of
linear maps.
"""


class _Stack(nn.Module):
    """What both stacks share; see :class:`Encoder`."""

    config: LayerConfig
    num_layers: int
    rematerialization: str = "none"
    scan: bool = False

    def setup(self) -> None:
        """Create the layers."""
        config = self.config
        if self.rematerialization not in REMATERIALIZATIONS:
            raise InputError(
                f"rematerialization is one of {', '.join(REMATERIALIZATIONS)}, not"
                f" {self.rematerialization!r}"
            )
        if self.scan:
            self.layers = self.layer(config)
        else:
            self.layers = [
                self.layer(config, name=f"layer_{i}") for i in range(self.num_layers)
            ]
        if config.norm_order == "pre":
            self.norm = make_norm(config)
        self.position_bias = PositionBias(config.position_bias, config.num_heads)

    def _run(self, x: Array, body: Callable[..., Any]) -> tuple[Array, list[Any]]:
        """Run ``body(layer, x) -> (x, weights)`` over all layers; return the output and
        each layer's weights.
        """
        if self.rematerialization != "none":
            # Without a barrier the compiler merges the two equal computations of a
            # looped layer and saves the first. A scan is a barrier; on a CPU it is the
            # only one, because that compiler drops barriers before it merges.
            policy = _POLICIES[self.rematerialization]
            body = nn.remat(body, policy=policy, prevent_cse=not self.scan)
        if not self.scan:
            return self._loop(x, body)
        scan = nn.scan(
            body,
            variable_axes={"params": 0},
            split_rngs={"params": True, "dropout": True},
            length=self.num_layers,
        )
        x, stacked = scan(self.layers, x)
        return self._finish(x), [
            jax.tree.map(lambda leaf, i=i: leaf[i], stacked)
            for i in range(self.num_layers)
        ]

    def _loop(self, x: Array, body: Callable[..., Any]) -> tuple[Array, list[Any]]:
        results = []
        for layer in self._looped():
            x, result = body(layer, x)
            results.append(result)
        return self._finish(x), results

    def step(
        self,
        x: Float[Array, "N 1 D"],
        cache: list[Spans],
        position: Int[Array, ""],
        seen: Bool[Array, "B 1 W M"],
        memory: list[KeyValueStore] | None = None,
        memory_mask: Bool[Array, "B2 1 1 S"] | None = None,
    ) -> tuple[Float[Array, "N 1 D"], list[Spans], list[Any]]:
        """Compute one position in every layer; see :meth:`DecoderLayer.step`.

        Raises:
            InputError: the layers are scanned.
        """
        place = slot_positions(*seen.shape[:1:-1])
        bias = self.position_bias(position[None], place, causal=True)
        how = {"position": position, "seen": seen, "bias": bias}
        memories, results = memory or [None] * len(cache), []
        for layer, *own in zip(self._looped(), cache, memories, strict=True):
            x, *found = layer.step(x, *own, memory_mask=memory_mask, **how)
            results.append(found)
        grown, weights = map(list, zip(*results, strict=True))
        return self._finish(x), grown, weights

    def _looped(self) -> Sequence[Any]:
        if self.scan:
            raise InputError(
                "decoding needs looped layers, and these are scanned: make the model"
                " with scan_layers=False and parameters"
                " jaxformer.models.unstack_layers(params)"
            )
        return self.layers

    def _finish(self, x: Array) -> Array:
        return self.norm(x) if self.config.norm_order == "pre" else x


class Encoder(_Stack):
    """A stack of encoder layers, under pre-LN with a final norm.

    Attributes:
        config: of each layer.
        num_layers: how many.
        rematerialization: what the backward pass recomputes to save memory: ``none``,
            ``layer`` (each layer from its input, Chen et al. 2016) or ``dots`` (each
            layer from its input and the outputs of its linear maps).
        scan: whether the layers are scanned.
    """

    layer = EncoderLayer

    def __call__(
        self,
        x: Float[Array, "B S D"],
        mask: Mask = None,
        *,
        train: bool = False,
        backend: str = "plain",
    ) -> tuple[Float[Array, "B S D"], list[Weights]]:
        """Return the output and each layer's attention weights, which only the
        ``backend`` ``plain`` computes.

        A ``relative`` position bias has the buckets of a decoder where the mask is a
        :class:`~jaxformer.functional.masks.SegmentMask` with ``causal=True``; an array,
        also a causal one, gets those of an encoder.
        """
        causal = isinstance(mask, SegmentMask) and mask.causal
        place = jnp.arange(x.shape[1])
        bias = self.position_bias(place, place, causal=causal)
        how = {"bias": bias, "train": train, "backend": backend}
        return self._run(x, lambda layer, x: layer(x, mask, **how))

    def prefill(
        self, x: Float[Array, "B T D"], mask: SegmentMask, *, backend: str = "plain"
    ) -> list[KeyValueStore]:
        """Return keys and values of every layer for :meth:`step` to read.

        Raises:
            InputError: the layers are scanned.
        """
        place = jnp.arange(x.shape[1])
        bias = self.position_bias(place, place, causal=mask.causal)
        how = {"bias": bias, "backend": backend}
        return self._loop(x, lambda layer, x: layer.prefill(x, mask, **how))[1]


class Decoder(_Stack):
    """A stack of decoder layers, under pre-LN with a final norm.

    Attributes:
        config: of each layer.
        num_layers: how many.
        rematerialization: see :class:`Encoder`.
        scan: see :class:`Encoder`. Scanned layers are for training: :meth:`step` needs
            looped ones.
    """

    layer = DecoderLayer

    def __call__(
        self,
        x: Float[Array, "B T D"],
        memory: Float[Array, "B S D"],
        mask: Mask = None,
        memory_mask: Mask = None,
        *,
        train: bool = False,
        backend: str = "plain",
    ) -> tuple[Float[Array, "B T D"], list[tuple[Weights, ...]]]:
        """Return the output and each layer's weights of self-attention and
        cross-attention, which only the ``backend`` ``plain`` computes.
        """
        place = jnp.arange(x.shape[1])
        bias = self.position_bias(place, place, causal=True)
        how = {"bias": bias, "train": train, "backend": backend}
        return self._run(x, lambda layer, x: layer(x, memory, mask, memory_mask, **how))

    def store_memory(self, memory: Float[Array, "B S D"]) -> list[KeyValueStore]:
        """Project the encoder's output once for every layer.

        Raises:
            InputError: the layers are scanned.
        """
        each = (layer.cross_attention for layer in self._looped())
        return [project_to_store(own.projections, memory) for own in each]
