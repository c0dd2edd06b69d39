"""What a configuration refuses, and in which words."""

# Settings of mixed types are unpacked from dicts.
# pyright: reportArgumentType=false

import dataclasses
import math
import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from jaxformer import InputError, TransformerConfig
from jaxformer.nn import LayerConfig


def test_defaults_are_the_paper_s_base_model():
    """Base: 6 + 6 layers, 512, 2048, 8 heads, dropout .1 in the two places of
    section 5.4 alone.
    """
    config = TransformerConfig.base(37_000)
    assert config == TransformerConfig(vocabulary_size=37_000)
    assert (config.d_model, config.d_ff, config.num_heads) == (512, 2048, 8)
    assert (config.num_encoder_layers, config.num_decoder_layers) == (6, 6)
    assert (
        config.dropout_rate,
        config.attention_dropout_rate,
        config.activation_dropout_rate,
    ) == (0.1, 0.0, 0.0)
    assert (
        config.norm_order,
        config.activation,
        config.positions,
        config.tied_embeddings,
    ) == ("post", "relu", "sinusoidal", "all")
    assert (config.dtype, config.rematerialization, config.scan_layers) == (
        "float32",
        "none",
        False,
    )
    assert (config.scale_embedding, config.output_bias) == (True, False)


def test_big_changes_what_the_paper_changes():
    """Big: 1024, 4096, 16 heads, dropout .3, and nothing else."""
    base, big = (
        dataclasses.asdict(make(37_000))
        for make in (TransformerConfig.base, TransformerConfig.big)
    )
    changed = {name: value for name, value in big.items() if value != base[name]}
    assert changed == {
        "d_model": 1024,
        "d_ff": 4096,
        "num_heads": 16,
        "dropout_rate": 0.3,
    }


def test_layers_get_their_part_of_the_configuration():
    """What the layers are made of is read from the model's configuration, field by
    field.
    """
    config = TransformerConfig(
        d_model=8,
        num_heads=3,
        d_ff=5,
        d_k=2,
        d_v=7,
        norm_order="pre",
        activation="gelu",
    )
    for field in dataclasses.fields(LayerConfig):
        assert getattr(config.layer, field.name) == getattr(config, field.name)
    assert TransformerConfig().layer == LayerConfig()


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        *(
            ({name: 0}, f"model.{name} must be at least 1, not 0")
            for name in (
                "vocabulary_size",
                "d_model",
                "d_ff",
                "num_heads",
                "num_encoder_layers",
                "num_decoder_layers",
                "max_length",
            )
        ),
        *(
            ({name: -3}, f"model.{name} must be at least 1, or None, not -3")
            for name in ("source_vocabulary_size", "d_k", "d_v")
        ),
        *(
            ({name: rate}, f"model.{name} must be {rule}, not {rate}")
            for name in (
                "dropout_rate",
                "attention_dropout_rate",
                "activation_dropout_rate",
            )
            for rate, rule in (
                (1.0, "below 1"),
                (-0.1, "at least 0"),
                (math.nan, "at least 0"),
            )
        ),
        ({"norm_epsilon": 0.0}, "model.norm_epsilon must be above 0, not 0.0"),
        (
            {"activation": "swish"},
            "model.activation must be one of relu, gelu, gelu_exact, silu, not 'swish'",
        ),
        (
            {"norm_order": "middle"},
            "model.norm_order must be one of post, pre, not 'middle'",
        ),
        (
            {"positions": "rotary"},
            (
                "model.positions must be one of sinusoidal, sinusoidal_halves,"
                " sinusoidal_concatenated, learned, not 'rotary'"
            ),
        ),
        (
            {"tied_embeddings": "some"},
            "model.tied_embeddings must be one of all, target, none, not 'some'",
        ),
        (
            {"dtype": "float64"},
            "model.dtype must be one of float32, bfloat16, float16, not 'float64'",
        ),
        (
            {"rematerialization": "all"},
            "model.rematerialization must be one of none, layer, dots, not 'all'",
        ),
        ({"pad_id": -1}, "model.pad_id must be in the vocabulary, not -1"),
        (
            {"bos_id": 10, "vocabulary_size": 10},
            "model.bos_id must be in the vocabulary, not 10",
        ),
        (
            {"num_heads": 7},
            (
                "model.d_model 512 is not divisible by model.num_heads 7; try 8 heads,"
                " or set model.d_k and model.d_v"
            ),
        ),
        (
            {"d_model": 511, "num_heads": 7},
            "sinusoidal positions need an even model.d_model, not 511",
        ),
        (
            {"source_vocabulary_size": 30_000},
            (
                "model.tied_embeddings=all needs one vocabulary, not 30000 source and"
                " 37000 target tokens; share the vocabulary or set"
                " tied_embeddings=target"
            ),
        ),
    ],
)
def test_errors_name_rule_value_and_cure(settings, line):
    """Each bad value gets one line with its name, what is allowed, and what was
    given.
    """
    with pytest.raises(InputError, match=f"^{re.escape(line)}$"):
        TransformerConfig(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"num_heads": 7, "d_k": 64, "d_v": 64},
        {"d_model": 511, "num_heads": 7, "positions": "learned"},
        {"source_vocabulary_size": 37_000},
        {"source_vocabulary_size": 30_000, "tied_embeddings": "target"},
        {"source_vocabulary_size": 30_000, "tied_embeddings": "none"},
        {"num_encoder_layers": 12, "num_decoder_layers": 1},
        {"dropout_rate": 0},
    ],
)
def test_what_goes_together_is_accepted(settings):
    """Own widths free the heads, learned positions an odd width, two tables two
    vocabularies.
    """
    TransformerConfig(**settings)


@settings(deadline=None, max_examples=200, derandomize=True, database=None)
@given(
    half=st.integers(1, 1024),
    heads=st.integers(1, 64),
    one_width=st.sampled_from([None, "d_k", "d_v"]),
)
def test_the_suggested_number_of_heads_divides(half, heads, one_width):
    """Heads that do not divide the width are refused with the nearest number that
    does.
    """
    width = 2 * half
    assume(width % heads)
    given = {one_width: 4} if one_width else {}
    with pytest.raises(InputError) as caught:
        TransformerConfig(d_model=width, num_heads=heads, **given)
    found = re.search(
        rf"d_model {width} .* model.num_heads {heads}; try (\d+) heads",
        str(caught.value),
    )
    assert found
    suggestion = int(found[1])
    assert width % suggestion == 0
    assert all(
        width % other
        for other in range(
            heads - abs(heads - suggestion) + 1, heads + abs(heads - suggestion)
        )
    )
    TransformerConfig(d_model=width, num_heads=suggestion, **given)


def test_a_configuration_cannot_be_changed():
    """It is frozen; a changed copy is validated again."""
    config = TransformerConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.d_model = 7  # pyright: ignore
    with pytest.raises(InputError):
        dataclasses.replace(config, num_heads=7)
