"""The parameters of the presets, by shape only."""

# Settings of mixed types are unpacked from dicts.
# pyright: reportArgumentType=false

import dataclasses

import jax
import jax.numpy as jnp
from models.little import shapes

from jaxformer import TransformerConfig
from jaxformer.models import count_parameters


def layers(count):
    return {"num_encoder_layers": count, "num_decoder_layers": count}


BIG = {"d_model": 1024, "d_ff": 4096, "num_heads": 16, "dropout_rate": 0.3}


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
    assert count_parameters(shapes(tiny)) == 5_785_600
