"""The published sizes of BERT and GPT."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxformer.errors import InputError
from jaxformer.models.config import TransformerConfig

_Keys = Mapping[str, Any]
_ENCODER: _Keys = {
    "num_decoder_layers": 0,
    "norm_epsilon": 1e-12,
    "embedding_norm": True,
    "output_bias": True,
    "head": "words",
    "bos_id": 101,  # [CLS] of the published vocabularies
    "activation": "gelu_exact",
    "max_length": 512,
}
_BERT = {**_ENCODER, "head": "words_and_next", "segment_types": 2}
# Its first real position is row 2 of a table of 514.
_ROBERTA = {**_ENCODER, "norm_epsilon": 1e-5, "pad_id": 1, "bos_id": 0}
_ROBERTA |= {"segment_types": 1, "position_offset": 2}
_GPT: _Keys = {
    "num_encoder_layers": 0,
    "norm_epsilon": 1e-5,
    "activation": "gelu",
    "max_length": 512,
    "bos_id": 0,
}
_GPT2 = {**_GPT, "norm_order": "pre", "max_length": 1024, "bos_id": 50_256}
# Layers, width, heads, tokens of the vocabulary, and what the family has in common.
_SIZES: Mapping[str, tuple[int, int, int, int, _Keys]] = {
    "bert-tiny": (2, 128, 2, 30_522, _BERT),
    "bert-mini": (4, 256, 4, 30_522, _BERT),
    "bert-small": (4, 512, 8, 30_522, _BERT),
    "bert-medium": (8, 512, 8, 30_522, _BERT),
    "bert-base-uncased": (12, 768, 12, 30_522, _BERT),
    "bert-base-cased": (12, 768, 12, 28_996, _BERT),
    "bert-base-multilingual-cased": (12, 768, 12, 119_547, _BERT),
    "bert-large-uncased": (24, 1024, 16, 30_522, _BERT),
    "bert-large-cased": (24, 1024, 16, 28_996, _BERT),
    "distilroberta-base": (6, 768, 12, 50_265, _ROBERTA),
    "roberta-base": (12, 768, 12, 50_265, _ROBERTA),
    "roberta-large": (24, 1024, 16, 50_265, _ROBERTA),
    "distilbert-base-uncased": (6, 768, 12, 30_522, _ENCODER),
    "distilgpt2": (6, 768, 12, 50_257, _GPT2),
    "gpt2": (12, 768, 12, 50_257, _GPT2),
    "gpt2-medium": (24, 1024, 16, 50_257, _GPT2),
    "gpt2-large": (36, 1280, 20, 50_257, _GPT2),
    "gpt2-xl": (48, 1600, 25, 50_257, _GPT2),
    "openai-gpt": (12, 768, 12, 40_478, _GPT),
}
PRESETS = tuple(_SIZES)
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
    if name not in _SIZES:
        raise InputError(f"the presets are {', '.join(PRESETS)}, not {name!r}")
    layers, width, heads, size, family = _SIZES[name]
    keys: _Keys = {
        "vocabulary_size": size,
        "num_encoder_layers": layers,
        "num_decoder_layers": layers,
        "d_model": width,
        "num_heads": heads,
        "d_ff": 4 * width,
        "positions": "learned",
        "scale_embedding": False,
        "attention_dropout_rate": 0.1,
    }
    return TransformerConfig(**{**keys, **family, **changes})
