"""What a configuration refuses, and in which words."""

# Settings of mixed types are unpacked from dicts.
# pyright: reportArgumentType=false

import re

import pytest

from jaxformer import InputError, TransformerConfig
from jaxformer.nn import LayerConfig


def test_defaults_are_the_paper_s_base_model():
    """6 + 6 layers, 512, 2048, 8 heads, dropout .1 in the two places of section 5.4."""
    config = TransformerConfig()
    layer = config.layer
    assert (layer.d_model, layer.num_heads, layer.d_ff) == (512, 8, 2048)
    assert (layer.activation, layer.norm_order) == ("relu", "post")
    assert (layer.dropout_rate, layer.attention_dropout_rate) == (0.1, 0.0)
    assert (config.num_encoder_layers, config.num_decoder_layers) == (6, 6)
    assert (config.positions, config.tied_embeddings) == ("sinusoidal", "all")
    assert (config.scale_embedding, config.output_bias) == (True, False)
    assert (config.position_offset, config.scale_positions) == (0, True)
    assert not config.embedding_norm
    assert (config.dtype, config.rematerialization) == ("float32", "none")
    assert config.layer == LayerConfig()


APART = {"source_vocabulary_size": 5, "tied_embeddings": "target"}


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"d_k": -3}, "model.d_k must be at least 1, or None, not -3"),
        ({"pad_id": -1}, "model.pad_id must be in the vocabulary, below 37000, not -1"),
        (APART | {"pad_id": 9}, "model.pad_id must be in the vocabulary, below 5, not"),
        ({"bos_id": 10, "vocabulary_size": 10}, "model.bos_id must be in the vocab"),
        (
            {"num_heads": 7},
            "model.d_model 512 is not divisible by num_heads 7; try 8 heads, or set d_k"
            " and d_v",
        ),
        ({"d_model": 18, "num_heads": 14, "d_k": 4}, "model.d_model 18 is not div"),
        (
            {"num_key_value_heads": 3},
            "model.num_key_value_heads 3 must divide num_heads 8",
        ),
        ({"positions": "rotary", "d_k": 3}, "model.positions=rotary needs an even d_k"),
        ({"d_model": 511, "num_heads": 7}, "sinusoidal positions need an even model.d"),
        ({"source_vocabulary_size": 30_000}, "model.tied_embeddings=all needs one voc"),
    ],
)
def test_errors_name_rule_value_and_cure(settings, line):
    with pytest.raises(InputError, match=f"^{re.escape(line)}"):
        TransformerConfig(**settings)


def test_what_goes_together_is_accepted():
    """Own widths free the heads, learned positions an odd width, two tables two
    vocabularies.
    """
    TransformerConfig(num_heads=7, d_k=64, d_v=64)
    TransformerConfig(d_model=511, num_heads=7, positions="learned")
    TransformerConfig(d_model=511, num_heads=7, positions="none")
    TransformerConfig(source_vocabulary_size=30_000, tied_embeddings="target")
    TransformerConfig(source_vocabulary_size=37_000)
