"""jaxformer: the Transformer of "Attention Is All You Need" in JAX and Flax.

Each part loads when it is first used. The model, the modules and the functions need
only jax, flax, optax, numpy and jaxtyping.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxformer.errors import lazy_names

if TYPE_CHECKING:
    from jaxformer import data, functional, kernels, models, nn, search, training
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
    "kernels",
    "models",
    "nn",
    "search",
    "training",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        **dict.fromkeys(
            ("data", "functional", "kernels", "nn", "search", "training"), ""
        ),
        "errors": "InputError",
        "models": "Transformer TransformerConfig",
        "translation.translator": "Translator",
    },
)
