"""Parameter counts against a formula, by shape only."""

# Settings of mixed types are unpacked from dicts.
# pyright: reportArgumentType=false

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from models.little import LATER, shapes

from jaxformer import TransformerConfig
from jaxformer.models import count_parameters


def formula(config):
    """Count the parameters term by term."""
    d, ff, h = config.d_model, config.d_ff, config.num_heads
    d_k, d_v = config.d_k or d // h, config.d_v or d // h
    g, biases = config.num_key_value_heads or h, config.biases
    attention = d * h * d_k + d * g * d_k + d * g * d_v + d * h * d_v
    attention += biases * (h * d_k + g * d_k + g * d_v + d)
    attention += config.query_key_norm * 2 * d_k
    inner = 2 if config.activation.endswith("glu") else 1
    feed_forward = inner * d * ff + ff * d + biases * (inner * ff + d)
    norm = 2 * d if biases and config.norm == "layer" else d
    encoder = config.num_encoder_layers * (attention + feed_forward + 2 * norm)
    decoder = config.num_decoder_layers * (2 * attention + feed_forward + 3 * norm)
    target = config.vocabulary_size * d
    source = (config.source_vocabulary_size or config.vocabulary_size) * d
    tables = {"all": target, "target": source + target, "none": source + 2 * target}
    final_norms = 2 * norm if config.norm_order == "pre" else 0
    bias = config.vocabulary_size if config.output_bias else 0
    final_norms += 2 * norm if config.embedding_norm else 0
    rows = config.max_length + config.position_offset
    positions = 2 * rows * d if config.positions == "learned" else 0
    positions += 2 * 32 * h if config.position_bias == "relative" else 0
    tied = tables[config.tied_embeddings]
    return encoder + decoder + tied + final_norms + positions + bias


def layers(count):
    return {"num_encoder_layers": count, "num_decoder_layers": count}


BIG = {"d_model": 1024, "d_ff": 4096, "num_heads": 16, "dropout_rate": 0.3}


@pytest.mark.parametrize(
    "changes",
    [
        {"d_k": 16, "d_v": 32, "tied_embeddings": "target"},
        {
            "norm_order": "pre",
            "positions": "learned",
            "output_bias": True,
            "tied_embeddings": "none",
            "source_vocabulary_size": 700,
        },
        {"positions": "learned", "position_offset": 2, "embedding_norm": True},
        *LATER.values(),
        LATER["rotary, grouped, windowed"] | {"norm": "layer"},
    ],
)
def test_models_have_the_parameters_of_the_formula(changes):
    config = TransformerConfig(vocabulary_size=1000, **layers(1), **changes)
    assert count_parameters(shapes(config)) == formula(config)


def test_base_and_the_presets():
    """Encoder, decoder and the one table of base, all float32; every sub-layer has a
    norm, and pre-LN one more at the end of each stack.
    """
    params = shapes(TransformerConfig.base(37_000))
    assert {name: count_parameters(part) for name, part in params.items()} == {
        "encoder": 18_914_304,
        "decoder": 25_224_192,
        "embedding": 18_944_000,
    }
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    paths = jax.tree_util.tree_leaves_with_path(params)
    assert sum(path[-1].key == "scale" for path, _ in paths) == 6 * 2 + 6 * 3
    assert "norm" not in params["encoder"] | params["decoder"]
    assert TransformerConfig.base(37_000) == TransformerConfig(vocabulary_size=37_000)
    big = TransformerConfig(vocabulary_size=37_000, **BIG)
    assert TransformerConfig.big(37_000) == big
    tiny = TransformerConfig.tiny(1000)
    assert dataclasses.replace(tiny, **layers(3)) == tiny
    assert count_parameters(shapes(tiny)) == formula(tiny) == 5_785_600
