"""Encoder and decoder: stacks of layers (Vaswani et al. 2017, section 3.1 and figure 1)."""

from __future__ import annotations

from flax import linen as nn

from jaxformer.functional.attention import KeysValues
from jaxformer.nn.blocks import DecoderLayer, EncoderLayer, LayerConfig, LayerNorm
from jaxformer.typing import Array, Bool, Float, Int


class Encoder(nn.Module):
    """A stack of encoder layers; under pre-LN a final norm follows, under post-LN there is none to add."""

    config: LayerConfig
    num_layers: int

    def setup(self) -> None:
        """Create the layers."""
        self.layers = [EncoderLayer(self.config, name=f"layer_{i}") for i in range(self.num_layers)]
        if self.config.norm_order == "pre":
            self.norm = LayerNorm(self.config.d_model, self.config.norm_epsilon)

    def __call__(
        self, x: Float[Array, "B S D"], mask: Bool[Array, "#B #H #S #S2"] | None = None, *, train: bool = False
    ) -> tuple[Float[Array, "B S D"], list[Float[Array, "B H S S"]]]:
        """Return the output and each layer's attention weights."""
        weights = []
        for layer in self.layers:
            x, layer_weights = layer(x, mask, train=train)
            weights.append(layer_weights)
        return (self.norm(x) if self.config.norm_order == "pre" else x), weights


class Decoder(nn.Module):
    """A stack of decoder layers; under pre-LN a final norm follows, under post-LN there is none to add."""

    config: LayerConfig
    num_layers: int

    def setup(self) -> None:
        """Create the layers."""
        self.layers = [DecoderLayer(self.config, name=f"layer_{i}") for i in range(self.num_layers)]
        if self.config.norm_order == "pre":
            self.norm = LayerNorm(self.config.d_model, self.config.norm_epsilon)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        memory: Float[Array, "B S D"],
        mask: Bool[Array, "#B #H #T #T2"] | None,
        memory_mask: Bool[Array, "#B #H #T #S"] | None = None,
        *,
        train: bool = False,
    ) -> tuple[Float[Array, "B T D"], list[tuple[Float[Array, "B H T T"], Float[Array, "B H T S"]]]]:
        """Return the output and each layer's weights of self-attention and cross-attention."""
        weights = []
        for layer in self.layers:
            x, layer_weights = layer(x, memory, mask, memory_mask, train=train)
            weights.append(layer_weights)
        return (self.norm(x) if self.config.norm_order == "pre" else x), weights

    def memory_keys_values(self, memory: Float[Array, "B S D"]) -> list[KeysValues]:
        """Project the encoder's output once for every layer."""
        return [layer.memory_keys_values(memory) for layer in self.layers]

    def step(
        self,
        x: Float[Array, "N 1 D"],
        cache: list[KeysValues],
        position: Int[Array, ""],
        memory: list[KeysValues],
        memory_mask: Bool[Array, "B 1 1 S"],
    ) -> tuple[Float[Array, "N 1 D"], list[KeysValues]]:
        """Compute one position in every layer; see :meth:`DecoderLayer.step`."""
        grown = []
        for layer, layer_cache, layer_memory in zip(self.layers, cache, memory, strict=True):
            x, layer_cache = layer.step(x, layer_cache, position, layer_memory, memory_mask)
            grown.append(layer_cache)
        return (self.norm(x) if self.config.norm_order == "pre" else x), grown
