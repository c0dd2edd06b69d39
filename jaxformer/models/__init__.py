"""The models, their configuration, and the layout of their parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxformer.errors import lazy_names

if TYPE_CHECKING:
    from jaxformer.models.axis_names import logical_axes
    from jaxformer.models.base import shift_right
    from jaxformer.models.config import TransformerConfig
    from jaxformer.models.encoder import TextEncoder
    from jaxformer.models.families import preset
    from jaxformer.models.language_model import LanguageModel
    from jaxformer.models.make import count_parameters
    from jaxformer.models.stacking import stack_layers, unstack_layers
    from jaxformer.models.transformer import Transformer

__all__ = [
    "LanguageModel",
    "TextEncoder",
    "Transformer",
    "TransformerConfig",
    "count_parameters",
    "logical_axes",
    "preset",
    "shift_right",
    "stack_layers",
    "unstack_layers",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "axis_names": "logical_axes",
        "config": "TransformerConfig",
        "encoder": "TextEncoder",
        "families": "preset",
        "language_model": "LanguageModel",
        "stacking": "stack_layers unstack_layers",
        "base": "shift_right",
        "make": "count_parameters",
        "transformer": "Transformer",
    },
)
