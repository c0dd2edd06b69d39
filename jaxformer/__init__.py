"""jaxformer: the Transformer of "Attention Is All You Need" in JAX and Flax.

Importing it needs jax, flax, optax, numpy and jaxtyping alone. What works on text, files or pictures loads when it is
used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jaxformer import functional, nn
from jaxformer.errors import InputError
from jaxformer.models import Transformer, TransformerConfig

if TYPE_CHECKING:
    from jaxformer.decoding.translator import Translator

__version__ = "0.1.0"

__all__ = ["InputError", "Transformer", "TransformerConfig", "Translator", "functional", "nn"]


def __getattr__(name: str) -> Any:
    """Load the translator, and with it the text part, when it is first asked for."""
    if name == "Translator":
        from jaxformer.decoding.translator import Translator

        return Translator
    raise AttributeError(f"module 'jaxformer' has no attribute {name!r}")
