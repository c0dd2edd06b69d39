"""Build the network of a configuration, and measure its parameters."""

from __future__ import annotations

import functools
from typing import Any

import jax

from jaxformer.models.base import Model
from jaxformer.models.config import TransformerConfig
from jaxformer.models.encoder import TextEncoder
from jaxformer.models.language_model import LanguageModel
from jaxformer.models.recurrent import RecurrentNetwork
from jaxformer.models.transformer import Transformer
from jaxformer.typing import Parameters


def make_model(config: TransformerConfig, device: Any = None) -> Model:
    """Return the model of a configuration: of both stacks, of the one that has layers,
    or a recurrent network.

    Example:
        >>> config = TransformerConfig(100, num_encoder_layers=0)
        >>> type(make_model(config)).__name__
        'LanguageModel'
    """
    if not config.num_decoder_layers:
        return TextEncoder(config, device)
    if not config.num_encoder_layers:
        return LanguageModel(config, device)
    if config.network != "transformer":
        return RecurrentNetwork(config, device)
    return Transformer(config, device)


# JAX keeps what each trace of a model leaves: one that is read often is traced once.
@functools.lru_cache(16)
def abstract_parameters(config: TransformerConfig) -> Parameters:
    """Return the shapes and types of the parameters of a configuration's model; nothing
    is allocated.
    """
    model, key = make_model(config), jax.random.key(0)
    return jax.eval_shape(model.init, key, *model.example())["params"]


def count_parameters(params: Parameters) -> int:
    """Count the parameters of a tree."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))
