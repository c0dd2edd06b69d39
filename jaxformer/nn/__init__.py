"""Thin Linen modules: they own parameters and call the pure functions of
:mod:`jaxformer.functional`.
"""

from __future__ import annotations

from jaxformer.nn.attention import MultiHeadAttention
from jaxformer.nn.blocks import (
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    LayerNorm,
    Residual,
    RMSNorm,
)
from jaxformer.nn.config import LayerConfig
from jaxformer.nn.dropout import Dropout
from jaxformer.nn.embedding import Embedding, PositionBias, Positions
from jaxformer.nn.recurrent import EarlierAttention
from jaxformer.nn.stacks import Decoder, Encoder

__all__ = [
    "Decoder",
    "DecoderLayer",
    "Dropout",
    "EarlierAttention",
    "Embedding",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "LayerConfig",
    "LayerNorm",
    "MultiHeadAttention",
    "PositionBias",
    "Positions",
    "RMSNorm",
    "Residual",
]
