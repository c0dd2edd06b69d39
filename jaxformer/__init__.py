"""jaxformer: the Transformer of "Attention Is All You Need" in JAX and Flax.

Each part loads when it is first used. The model, the modules and the functions need
only jax, flax, optax, numpy and jaxtyping.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxformer import data, functional, models, nn, search, training
    from jaxformer.errors import InputError
    from jaxformer.models import Transformer, TransformerConfig
    from jaxformer.translation.translator import Translator

__version__ = "0.1.0"

__all__ = [
    "InputError",
    "Transformer",
    "TransformerConfig",
    "Translator",
    "data",
    "functional",
    "models",
    "nn",
    "search",
    "training",
]

_HOMES = {
    "InputError": "jaxformer.errors",
    "Transformer": "jaxformer.models",
    "TransformerConfig": "jaxformer.models",
    "Translator": "jaxformer.translation.translator",
}


def __getattr__(name: str) -> Any:
    """Load a public name, so that the command line starts without loading JAX."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in __all__:
        return importlib.import_module(f"jaxformer.{name}")
    raise AttributeError(f"module 'jaxformer' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted({*globals(), *__all__})
