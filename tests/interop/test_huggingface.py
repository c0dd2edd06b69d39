"""Folders of Hugging Face's translation models are read and written without torch."""

# Linen types what apply returns as a union with a tuple of variables.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false

import dataclasses
import functools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from interop.folders import (
    FAMILIES,
    GOLDEN,
    SETTINGS,
    SIZE,
    draw_pair,
    draw_tensors,
    make_folder,
)
from safetensors.numpy import load_file

from jaxformer import InputError, Transformer, TransformerConfig
from jaxformer.interop import huggingface
from jaxformer.models import stack_layers

PAD = SETTINGS["pad_token_id"]


@functools.partial(jax.jit, static_argnums=0)
def compute(config, params, source, target):
    return Transformer(config).apply({"params": params}, source, target)


def whole(tree):
    """Read arrays that are mapped into memory."""
    return jax.tree.map(np.array, tree)


def same_trees(found, expected):
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers(family, tmp_path):
    """Padded pairs have the stored logits, and each alone has those that it has in the
    batch.
    """
    model = huggingface.read(make_folder(tmp_path, family))
    source, target = draw_pair()
    found = compute(model.config, model.params, source, target)
    expected = np.load(GOLDEN)[family]
    real = target != PAD
    np.testing.assert_allclose(found[real], expected[real], rtol=0, atol=2e-5)
    for row, pair in enumerate(zip(source, target, strict=True)):
        pair = [side[None, side != PAD] for side in pair]
        alone = compute(model.config, model.params, *pair)[0]
        np.testing.assert_allclose(
            alone, expected[row, : len(alone)], rtol=0, atol=2e-5
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_read_and_written_is_the_same_file(family, tmp_path):
    """Every tensor has the same bytes, from looped and scanned layers; settings that
    jaxformer does not use stay.
    """
    first = make_folder(tmp_path / "first", family, id2label={"0": "no"})
    (first / "generation_config.json").write_text('{"num_beams": 6}')
    model = huggingface.read(first)
    assert model.generation == {"num_beams": 6}
    looped = model.config, model.params
    scanned = (
        dataclasses.replace(model.config, scan_layers=True),
        stack_layers(whole(model.params)),
    )
    for name, (config, params) in {"looped": looped, "scanned": scanned}.items():
        again = tmp_path / name
        huggingface.write(
            again,
            config,
            params,
            settings=model.settings,
            generation=model.generation,
        )
        found = load_file(again / "model.safetensors")
        expected = load_file(first / "model.safetensors")
        assert found.keys() == expected.keys()
        for tensor, value in expected.items():
            assert found[tensor].tobytes() == value.tobytes(), tensor
        for file in ("config.json", "generation_config.json"):
            written = json.loads((again / file).read_text())
            read = json.loads((first / file).read_text())
            assert read.items() <= written.items()
    with pytest.raises(InputError, match=r"has a config.json already; choose another"):
        huggingface.write(again, *looped, settings=model.settings)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_files_in_half_precision_become_float32(dtype, tmp_path):
    """The numbers are exactly those of the file; written in the same type again, they
    are the same bytes.
    """
    half = {
        name: x.astype(jnp.dtype(dtype)) for name, x in draw_tensors("bart").items()
    }
    wide = {name: x.astype(np.float32) for name, x in half.items()}
    small = huggingface.read(make_folder(tmp_path / "half", "bart", half))
    large = huggingface.read(make_folder(tmp_path / "wide", "bart", wide))
    same_trees(small.params, large.params)
    assert {x.dtype.name for x in jax.tree.leaves(small.params)} == {"float32"}
    again = tmp_path / "again"
    huggingface.write(
        again, small.config, small.params, settings=small.settings, dtype=dtype
    )
    found = load_file(again / "model.safetensors")
    assert all(found[name].tobytes() == x.tobytes() for name, x in half.items())
    assert json.loads((again / "config.json").read_text())["dtype"] == dtype


def test_rates_of_dropout_are_those_of_the_same_places(tmp_path):
    """Of sub-layers, of attention weights and between the feed-forward maps."""
    rates = {"dropout": 0.3, "attention_dropout": 0.2, "activation_dropout": 0.1}
    config = huggingface.read(make_folder(tmp_path, "bart", **rates)).config
    assert config.dropout_rate == 0.3
    assert config.attention_dropout_rate == 0.2
    assert config.activation_dropout_rate == 0.1


def test_names_that_a_file_may_have_besides(tmp_path):
    """A tied table under all its names or another one, a model without its head, tables
    of sines and cosines, and marks of an old version.
    """
    drawn = draw_tensors("bart")
    drawn["final_logits_bias"][:] = 0
    expected = huggingface.read(make_folder(tmp_path / "plain", "bart", drawn))
    assert not expected.config.output_bias
    table = drawn.pop("model.shared.weight")
    names = ["model.shared", "lm_head"]
    names += [f"model.{side}.embed_tokens" for side in ("encoder", "decoder")]
    forms = {"all": drawn | {f"{name}.weight": table for name in names}}
    forms |= {name: drawn | {f"{name}.weight": table} for name in names}
    bare = {name.removeprefix("model."): x for name, x in forms["model.shared"].items()}
    del bare["final_logits_bias"]
    forms["bare"] = bare | {"encoder.version": np.ones(1, np.float32)}
    for form, tensors in forms.items():
        about = {"architectures": ["BartModel"]} if form == "bare" else {}
        found = huggingface.read(make_folder(tmp_path / form, "bart", tensors, **about))
        assert found.config == expected.config, form
        same_trees(found.params, expected.params)


def test_tables_that_settings_tie_and_a_file_does_not(tmp_path):
    """Each name of the file is read; a name that it lacks is the shared table, which
    has no use where a Marian has separate ones.
    """
    drawn = draw_tensors("marian")
    shared = drawn.pop("model.shared.weight")
    names = ("model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head")
    source, target, output = (f"{name}.weight" for name in names)

    def tables(tensors, **settings):
        folder = make_folder(tmp_path, "marian", drawn | tensors, **settings)
        found = huggingface.read(folder)
        tied, params = found.config.tied_embeddings, found.params
        both = [params[f"{side}_embedding"]["table"] for side in ("source", "target")]
        return [float(x[0, 0]) for x in (*both, params.get("output", both[1]))], tied

    one, two = shared + 1, shared + 2
    of = [float(x[0, 0]) for x in (shared, one, two)]
    found = tables({"model.shared.weight": shared, target: one})
    assert found == ([of[0], of[1], of[0]], "none")
    found = tables({source: one, output: two})
    assert found == ([of[1], of[2], of[2]], "target")
    separate = {"share_encoder_decoder_embeddings": False}
    found = tables(
        {"model.shared.weight": shared, source: one, output: two}, **separate
    )
    assert found == ([of[1], of[2], of[2]], "target")
    with pytest.raises(InputError, match=r"lacks the tensor model\.encoder\.embed_t"):
        tables({"model.shared.weight": shared}, **separate)


def test_m2m_100_files_may_hold_the_sines_and_cosines(tmp_path):
    place = np.arange(14)[:, None] * 10_000 ** (-np.arange(4) / 3)
    table = np.concatenate([np.sin(place), np.cos(place)], 1).astype(np.float32)
    table[PAD] = 0
    name = "model.encoder.embed_positions.weights"
    drawn = draw_tensors("m2m_100")
    huggingface.read(make_folder(tmp_path / "right", "m2m_100", drawn | {name: table}))
    wrong = make_folder(tmp_path / "wrong", "m2m_100", drawn | {name: table[::-1]})
    with pytest.raises(InputError, match=f"{name} must hold sines and cosines"):
        huggingface.read(wrong)


def test_the_first_token_of_a_target(tmp_path):
    """Of config.json, else of generation_config.json, else, in mBART, the end."""
    folder = make_folder(tmp_path / "mbart", "mbart", decoder_start_token_id=None)
    assert huggingface.read(folder).config.bos_id == SETTINGS["eos_token_id"]
    search = json.dumps({"decoder_start_token_id": 7})
    (folder / "generation_config.json").write_text(search)
    assert huggingface.read(folder).config.bos_id == 7
    folder = make_folder(tmp_path / "zero", "bart", decoder_start_token_id=0)
    (folder / "generation_config.json").write_text(search)
    assert huggingface.read(folder).config.bos_id == 0


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"model_type": "t5"}, "gpt2, openai-gpt, not 't5'"),
        (
            {"d_model": None, "encoder_layers": None},
            "lacks d_model, encoder_layers; gi",
        ),
        ({"d_model": "8"}, "d_model in config.json must be a whole number, not '8'"),
        ({"encoder_layers": 10**9}, "num_encoder_layers must be at most 1,000"),
        ({"scale_embedding": "false"}, "must be true or false, not 'false'"),
        ({"encoder_ffn_dim": 13}, "encoder_ffn_dim is 13 where decoder_ffn_dim is 12"),
        ({"activation_function": "tanh"}, "must be one of relu, silu, swish, gelu, "),
        ({"pad_token_id": 19}, "model.pad_id must be in the vocabulary, below 19"),
        ({"quantization_config": {"bits": 4}}, "quantised weights are not read; take"),
        (
            {"architectures": ["BartForSequenceClassification"]},
            "must have BartForConditionalGeneration or BartModel, not BartForSequ",
        ),
        (
            {"architectures": "BartForCausalLM"},
            "architectures in config.json must have",
        ),
        (
            {"vocab_size": 21},
            "final_logits_bias must have the shape (1, 21) by the configuration, not"
            " (1, 19)",
        ),
        (
            {"decoder_layers": 1},
            "no part of the model takes the tensors"
            " model.decoder.layers.1.encoder_attn.k_proj.bias, ",
        ),
        ({"tie_word_embeddings": False}, "lacks the tensor lm_head.weight"),
    ],
)
def test_what_a_configuration_cannot_say(settings, line, tmp_path):
    folder = make_folder(tmp_path, "bart", **settings)
    with pytest.raises(InputError, match=re.escape(line)) as caught:
        huggingface.read(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("family", "changes", "line"),
    [
        ("marian", {"positions": "sinusoidal"}, "has model.positions sinusoidal_conc"),
        (
            "bart",
            {"norm_epsilon": 1e-6},
            "has model.norm_epsilon 1e-05, and this model",
        ),
        ("bart", {"source_vocabulary_size": 18}, "has model.source_vocabulary_size 19"),
        ("mbart", {"d_k": 3}, "has model.d_k 4, and this model has 3: it cannot be"),
    ],
)
def test_a_model_that_its_family_does_not_have_is_not_written(
    family, changes, line, tmp_path
):
    model = huggingface.read(make_folder(tmp_path / "first", family))
    config = dataclasses.replace(model.config, tied_embeddings="none", **changes)
    folder = tmp_path / "second"
    with pytest.raises(InputError, match=re.escape(line)):
        huggingface.write(folder, config, model.params, settings=model.settings)
    plain = model.config, model.params
    with pytest.raises(InputError, match=r"config.json needs the eos_token_id"):
        huggingface.write(folder, *plain, settings={"model_type": family})
    with pytest.raises(InputError, match=r"is one of float32, float16, bfloat16, not"):
        huggingface.write(folder, *plain, settings=model.settings, dtype="int8")
    assert not folder.exists()


def test_arrays_of_any_strides_are_written_as_they_are(tmp_path):
    """Parameters come transposed, reversed, broadcast or from a device."""
    model = huggingface.read(make_folder(tmp_path / "first", "marian"))
    config = model.config
    assert isinstance(config, TransformerConfig)
    params = whole(model.params)
    table = params["embedding"]["table"]
    params["embedding"]["table"] = np.array(table[::-1])[::-1]
    scale = params["encoder"]["layer_0"]["feed_forward_residual"]["norm"]
    scale["scale"] = np.broadcast_to(np.float32(1.5), scale["scale"].shape)
    inner = params["encoder"]["layer_0"]["feed_forward"]["inner"]
    inner["kernel"] = jnp.asarray(inner["kernel"])
    again = tmp_path / "again"
    huggingface.write(again, config, params, settings=model.settings)
    found = load_file(again / "model.safetensors")
    np.testing.assert_array_equal(found["model.shared.weight"], table)
    norm = found["model.encoder.layers.0.final_layer_norm.weight"]
    np.testing.assert_array_equal(norm, np.full(8, 1.5))
    same_trees(huggingface.read(again).params, params)
    assert table.shape == (SIZE, 8)
