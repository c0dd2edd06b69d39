"""Count the parameters of a Transformer."""

from __future__ import annotations

import dataclasses
import functools

from jaxformer.models import make
from jaxformer.models.config import TransformerConfig


def count_parameters(config: TransformerConfig) -> int:
    """Count the parameters of a configuration's model; nothing is allocated.

    >>> count_parameters(TransformerConfig.base(vocabulary_size=37_000))
    63082496
    """
    # These change no shape: rows that differ only in them are traced once.
    return _count(
        dataclasses.replace(
            config,
            dropout_rate=0.0,
            attention_dropout_rate=0.0,
            activation_dropout_rate=0.0,
        )
    )


@functools.lru_cache(maxsize=64)
def _count(config: TransformerConfig) -> int:
    return make.count_parameters(make.abstract_parameters(config))
