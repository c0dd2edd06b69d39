"""The models, their configuration, and the layout of their parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxformer.errors import lazy_names

if TYPE_CHECKING:
    from jaxformer.models.axis_names import logical_axes
    from jaxformer.models.config import TransformerConfig
    from jaxformer.models.encoder import TextEncoder
    from jaxformer.models.families import preset
    from jaxformer.models.language_model import LanguageModel
    from jaxformer.models.layer_stacking import stack_layers, unstack_layers
    from jaxformer.models.seq2seq import (
        Transformer,
        count_parameters,
        shift_right,
    )

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
        "layer_stacking": "stack_layers unstack_layers",
        "seq2seq": "Transformer count_parameters shift_right",
    },
)
