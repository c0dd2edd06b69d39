"""The published sizes of BERT and GPT."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxformer.errors import InputError
from jaxformer.models.config import TransformerConfig

# Layers, width and heads; d_ff is four times the width.
_Size = tuple[int, int, int]
_BERT: Mapping[str, tuple[_Size, int]] = {
    "bert-tiny": ((2, 128, 2), 30_522),
    "bert-mini": ((4, 256, 4), 30_522),
    "bert-small": ((4, 512, 8), 30_522),
    "bert-medium": ((8, 512, 8), 30_522),
    "bert-base-uncased": ((12, 768, 12), 30_522),
    "bert-base-cased": ((12, 768, 12), 28_996),
    "bert-base-multilingual-cased": ((12, 768, 12), 119_547),
    "bert-large-uncased": ((24, 1024, 16), 30_522),
    "bert-large-cased": ((24, 1024, 16), 28_996),
}
_ROBERTA: Mapping[str, _Size] = {
    "distilroberta-base": (6, 768, 12),
    "roberta-base": (12, 768, 12),
    "roberta-large": (24, 1024, 16),
}
_GPT2: Mapping[str, _Size] = {
    "distilgpt2": (6, 768, 12),
    "gpt2": (12, 768, 12),
    "gpt2-medium": (24, 1024, 16),
    "gpt2-large": (36, 1280, 20),
    "gpt2-xl": (48, 1600, 25),
}
PRESETS = (*_BERT, *_ROBERTA, "distilbert-base-uncased", *_GPT2, "openai-gpt")
"""Names of :func:`preset`."""


def preset(name: str, **changes: Any) -> TransformerConfig:
    """Return the configuration of a published model: BERT (Devlin et al. 2019; the
    small ones Turc et al. 2019), RoBERTa (Liu et al. 2019), DistilBERT (Sanh et al.
    2019), GPT (Radford et al. 2018) and GPT-2 (Radford et al. 2019).

    Args:
        name: one of :data:`PRESETS`, as the Hub names them.
        changes: of the configuration, such as ``head="classification"``.

    Raises:
        InputError: an unknown name.
    """
    if name in _BERT:
        size, words = _BERT[name]
        config = _encoder(size, words, 512, head="words_and_next", segment_types=2)
    elif name in _ROBERTA:
        # Its first real position is row 2 of a table of 514.
        own = {"norm_epsilon": 1e-5, "pad_id": 1, "bos_id": 0, "segment_types": 1}
        config = _encoder(_ROBERTA[name], 50_265, 512, position_offset=2, **own)
    elif name == "distilbert-base-uncased":
        config = _encoder((6, 768, 12), 30_522, 512)
    elif name in _GPT2:
        config = _decoder(_GPT2[name], 50_257, 1024, norm_order="pre", bos_id=50_256)
    elif name == "openai-gpt":
        config = _decoder((12, 768, 12), 40_478, 512, norm_order="post", bos_id=0)
    else:
        raise InputError(f"the presets are {', '.join(PRESETS)}, not {name!r}")
    return dataclasses.replace(config, **changes)


def _encoder(size: _Size, words: int, length: int, **changes: Any) -> TransformerConfig:
    layers, width, heads = size
    facts: dict[str, Any] = {
        "vocabulary_size": words,
        "num_encoder_layers": layers,
        "num_decoder_layers": 0,
        "norm_epsilon": 1e-12,
        "embedding_norm": True,
        "output_bias": True,
        "head": "words",
        "bos_id": 101,  # [CLS] of the published vocabularies
        "activation": "gelu_exact",
    }
    return TransformerConfig(**{**_common(width, heads, length), **facts, **changes})


def _decoder(size: _Size, words: int, length: int, **changes: Any) -> TransformerConfig:
    layers, width, heads = size
    facts: dict[str, Any] = {
        "vocabulary_size": words,
        "num_encoder_layers": 0,
        "num_decoder_layers": layers,
        "norm_epsilon": 1e-5,
        "activation": "gelu",
    }
    return TransformerConfig(**{**_common(width, heads, length), **facts, **changes})


def _common(width: int, heads: int, length: int) -> dict[str, Any]:
    return {
        "d_model": width,
        "num_heads": heads,
        "d_ff": 4 * width,
        "max_length": length,
        "positions": "learned",
        "scale_embedding": False,
        "attention_dropout_rate": 0.1,
    }
