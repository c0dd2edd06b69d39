"""Thin Linen modules: they own parameters and call the pure functions of
:mod:`jaxformer.functional`.
"""

from jaxformer.nn.attention import MultiHeadAttention
from jaxformer.nn.blocks import (
    DecoderLayer,
    Dropout,
    EncoderLayer,
    FeedForward,
    LayerConfig,
    LayerNorm,
    Residual,
)
from jaxformer.nn.embedding import Embedding, Positions
from jaxformer.nn.stacks import Decoder, Encoder

__all__ = [
    "Decoder",
    "DecoderLayer",
    "Dropout",
    "Embedding",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "LayerConfig",
    "LayerNorm",
    "MultiHeadAttention",
    "Positions",
    "Residual",
]
