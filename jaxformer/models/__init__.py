"""The configuration, the encoder-decoder Transformer, and the layout of its
parameters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxformer.errors import lazy_names

if TYPE_CHECKING:
    from jaxformer.models.axis_names import logical_axes
    from jaxformer.models.cache import Cache, Memory, empty_cache, empty_coverage
    from jaxformer.models.config import TransformerConfig
    from jaxformer.models.layer_stacking import stack_layers, unstack_layers
    from jaxformer.models.seq2seq import (
        AttentionWeights,
        Transformer,
        count_parameters,
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

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "axis_names": "logical_axes",
        "cache": "Cache Memory empty_cache empty_coverage",
        "config": "TransformerConfig",
        "layer_stacking": "stack_layers unstack_layers",
        "seq2seq": "AttentionWeights Transformer count_parameters shift_right",
    },
)
