"""Whole models: the configuration, the encoder-decoder Transformer, and the forms of
its parameters.
"""

from jaxformer.models.config import TransformerConfig
from jaxformer.models.layer_stacking import stack_layers, unstack_layers
from jaxformer.models.logical_axes import logical_axes
from jaxformer.models.seq2seq import (
    AttentionWeights,
    Cache,
    Memory,
    Transformer,
    count_parameters,
    empty_cache,
    empty_coverage,
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
    "empty_coverage",
    "logical_axes",
    "shift_right",
    "stack_layers",
    "unstack_layers",
]
