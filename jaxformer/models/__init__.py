"""The models, their configuration, and the layout of their parameters."""

from __future__ import annotations

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
