"""Whole models: the configuration and the encoder-decoder Transformer."""

from jaxformer.models.config import TransformerConfig
from jaxformer.models.seq2seq import (
    AttentionWeights,
    Cache,
    Memory,
    Transformer,
    count_parameters,
    empty_cache,
    shift_right,
)

__all__ = [
    "AttentionWeights",
    "Cache",
    "Memory",
    "Transformer",
    "TransformerConfig",
    "count_parameters",
    "empty_cache",
    "shift_right",
]
