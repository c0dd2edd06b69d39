"""Parameter counts of every row of table 3, by shape alone."""

# Settings of mixed types are unpacked from dicts.
# pyright: reportArgumentType=false

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from jaxformer import Transformer, TransformerConfig
from jaxformer.models import count_parameters


def shapes(config):
    token = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    return jax.eval_shape(Transformer(config).init, jax.random.key(0), token, token)[
        "params"
    ]


def formula(config):
    """The count by the layers' formula, term by term."""
    d, ff, h = config.d_model, config.d_ff, config.num_heads
    d_k, d_v = config.d_k or d // h, config.d_v or d // h
    attention = 2 * d * h * d_k + 2 * d * h * d_v + (2 * h * d_k + h * d_v + d)
    feed_forward = 2 * d * ff + ff + d
    norm = 2 * d
    encoder = config.num_encoder_layers * (attention + feed_forward + 2 * norm)
    decoder = config.num_decoder_layers * (2 * attention + feed_forward + 3 * norm)
    target = config.vocabulary_size * d
    source = (config.source_vocabulary_size or config.vocabulary_size) * d
    tables = {"all": target, "target": source + target, "none": source + 2 * target}[
        config.tied_embeddings
    ]
    final_norms = 4 * d if config.norm_order == "pre" else 0
    bias = config.vocabulary_size if config.output_bias else 0
    positions = 2 * config.max_length * d if config.positions == "learned" else 0
    return encoder + decoder + tables + final_norms + positions + bias


def layers(count):
    return {"num_encoder_layers": count, "num_decoder_layers": count}


BIG = {"d_model": 1024, "d_ff": 4096, "num_heads": 16, "dropout_rate": 0.3}

ROWS = {
    "base": ({}, 63_082_496),
    "A, 1 head of 512": ({"num_heads": 1, "d_k": 512, "d_v": 512}, 63_082_496),
    "A, 4 heads of 128": ({"num_heads": 4}, 63_082_496),
    "A, 16 heads of 32": ({"num_heads": 16}, 63_082_496),
    "A, 32 heads of 16": ({"num_heads": 32, "d_k": 16, "d_v": 16}, 63_082_496),
    "B, d_k 16": ({"d_k": 16}, 55_990_784),
    "B, d_k 32": ({"d_k": 32}, 58_354_688),
    "C, 2 layers": (layers(2), 33_656_832),
    "C, 4 layers": (layers(4), 48_369_664),
    "C, 8 layers": (layers(8), 77_795_328),
    "C, d_model 256": ({"d_model": 256, "d_k": 32, "d_v": 32}, 26_834_944),
    "C, d_model 1024": ({"d_model": 1024, "d_k": 128, "d_v": 128}, 163_889_152),
    "C, d_ff 1024": ({"d_ff": 1024}, 50_487_296),
    "C, d_ff 4096": ({"d_ff": 4096}, 88_272_896),
    "D, no dropout": ({"dropout_rate": 0.0}, 63_082_496),
    "D, dropout .2": ({"dropout_rate": 0.2}, 63_082_496),
    # two learned tables of max_length rows come on top
    "E, learned positions": (
        {"positions": "learned", "max_length": 1024},
        63_082_496 + 2 * 1024 * 512,
    ),
    "big": (BIG, 214_245_376),
    "big, English-French": (BIG | {"vocabulary_size": 32_000}, 209_125_376),
    "base, 32,000 tokens": ({"vocabulary_size": 32_000}, 60_522_496),
    "base, pre-LN": ({"norm_order": "pre"}, 63_084_544),
    "base, output tied to target": ({"tied_embeddings": "target"}, 82_026_496),
    "base, nothing tied": ({"tied_embeddings": "none"}, 100_970_496),
    "base, biased logits": ({"output_bias": True}, 63_082_496 + 37_000),
}


@pytest.mark.parametrize(("changes", "count"), ROWS.values(), ids=ROWS)
def test_rows_of_table_3(changes, count):
    """Each row of table 3 and each variant has exactly the parameters of the formula,
    which holds for a model of one layer a side; the depth of base is counted below.
    """
    config = TransformerConfig(**({"vocabulary_size": 37_000} | changes))
    assert formula(config) == count
    shallow = dataclasses.replace(config, num_encoder_layers=1, num_decoder_layers=1)
    assert count_parameters(shapes(shallow)) == formula(shallow)


def test_presets_are_the_rows():
    """The presets base and big are the rows of that name."""
    assert TransformerConfig.base(37_000) == TransformerConfig(vocabulary_size=37_000)
    assert TransformerConfig.big(37_000) == TransformerConfig(
        vocabulary_size=37_000, **BIG
    )
    tiny = TransformerConfig.tiny(1000)
    assert count_parameters(shapes(tiny)) == formula(tiny)


def test_parts_of_base():
    """Encoder, decoder and the one table of base."""
    params = shapes(TransformerConfig.base(37_000))
    assert {name: count_parameters(part) for name, part in params.items()} == {
        "encoder": 18_914_304,
        "decoder": 25_224_192,
        "embedding": 18_944_000,
    }
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}


def test_norms_in_the_parameter_tree():
    """Post-LN has a norm a sub-layer and no other; pre-LN has one more at the end of
    each stack.
    """
    for order, final in (("post", 0), ("pre", 2)):
        params = shapes(
            TransformerConfig(d_model=8, num_heads=2, **layers(3), norm_order=order)
        )
        scales = [
            path
            for path, _ in jax.tree_util.tree_leaves_with_path(params)
            if path[-1].key == "scale"
        ]
        assert len(scales) == 3 * 2 + 3 * 3 + final
        assert (
            ("norm" in params["encoder"])
            == ("norm" in params["decoder"])
            == (order == "pre")
        )
