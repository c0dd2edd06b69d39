"""The configuration, the encoder-decoder Transformer, and the layout of its
parameters.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxformer.models.axis_names import logical_axes
    from jaxformer.models.config import TransformerConfig
    from jaxformer.models.layer_stacking import stack_layers, unstack_layers
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

_HOMES = {
    "axis_names": "logical_axes",
    "config": "TransformerConfig",
    "layer_stacking": "stack_layers unstack_layers",
    "seq2seq": "AttentionWeights Cache Memory Transformer count_parameters empty_cache"
    " empty_coverage shift_right",
}


def __getattr__(name: str) -> Any:
    """Load a module, or that of a public name."""
    if name in _HOMES:
        return importlib.import_module(f"{__name__}.{name}")
    for module, names in _HOMES.items():
        if name in names.split():
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted({*globals(), *__all__})
