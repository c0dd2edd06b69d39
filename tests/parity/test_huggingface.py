"""Translation models of Hugging Face's transformers, imported, compute
what they compute there; written, they are loaded there.
"""

# Linen types what apply returns as a union; transformers is not typed.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportOptionalMemberAccess=false, reportGeneralTypeIssues=false

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from interop import folders
from parity.translation_models import (
    FAMILIES,
    FORMS,
    LITTLE,
    check_gradients,
    draw,
    inputs_of,
    logits_of,
    make,
)
from safetensors.numpy import load_file

from jaxformer import InputError, Transformer
from jaxformer import functional as F
from jaxformer.functional.positions import sinusoidal
from jaxformer.interop import huggingface
from jaxformer.interop.huggingface import families
from jaxformer.interop.huggingface.seq2seq import from_model, from_state
from jaxformer.models import count_parameters
from jaxformer.models.seq2seq import abstract_parameters
from jaxformer.nn.embedding import LAYOUTS

try:
    import torch
    import transformers
except ModuleNotFoundError:  # collected all the same, so that they can be counted
    torch = transformers = None

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(transformers is None, reason="needs the extra `parity`"),
]


@functools.partial(jax.jit, static_argnums=0)
def compute(config, params, source, target):
    return Transformer(config).apply({"params": params}, source, target)


def compare(model, config, params, seed=2):
    """Return our logits and theirs of nine padded pairs, at real positions."""
    source_size = config.source_vocabulary_size or config.vocabulary_size
    source = draw(model.config, seed, 9, source_size)
    target = draw(model.config, seed + 1, 9, longest=12)
    real = target != config.pad_id
    ours = np.asarray(compute(config, params, source, target))
    return ours[real], logits_of(model, source, target)[real]


def make_form(form, seed=1):
    tied, settings = FORMS[form]
    return make(form.split()[0], seed, **settings), tied


def close(found, expected, atol=2e-5):
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("form", FORMS)
def test_logits_are_equal(form):
    """On padded pairs in float32. Every parameter is imported, and tables are tied
    as they are there.
    """
    model, tied = make_form(form)
    config, params = from_model(model)
    found, expected = compare(model, config, params)
    assert np.abs(expected).max() > 3.0
    close(found, expected)
    fixed = ["embed_positions"] if form.startswith("marian") else []
    if form == "mbart untied":  # no layer of theirs reads it
        fixed.append("model.shared")
    theirs = sum(
        p.numel()
        for name, p in model.named_parameters()
        if not any(part in name for part in fixed)
    )
    bias = getattr(model, "final_logits_bias", torch.zeros(0)).numel()
    assert count_parameters(params) == theirs + bias
    assert config.tied_embeddings == tied
    token = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    made = jax.eval_shape(Transformer(config).init, jax.random.key(0), token, token)
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, made["params"])


LARGE = {"encoder_attention_heads": 16, "decoder_attention_heads": 16}
LARGE |= {"encoder_layers": 12, "decoder_layers": 12, "d_model": 1024}
LARGE |= {"encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096}
LARGE |= {"max_position_embeddings": 1024}
SMALL = LARGE | {"encoder_layers": 6, "decoder_layers": 6}


@pytest.mark.parametrize(
    ("family", "settings", "count"),
    [
        ("m2m_100", LARGE | {"vocab_size": 256_206}, 615_073_792),  # NLLB-200, 600M
        ("m2m_100", LARGE | {"vocab_size": 128_112}, 483_905_536),  # M2M-100, 418M
        ("mbart", LARGE | {"vocab_size": 250_054}, 610_879_488),  # mBART-50
        ("bart", LARGE | {"vocab_size": 50_265}, 406_291_456),  # BART large
        # OPUS-MT, transformer-big; the rest of theirs is two tables of sines
        ("marian", SMALL | {"vocab_size": 58_101}, 235_852_800),
    ],
)
def test_published_models_have_their_parameters(family, settings, count):
    """By shape alone."""
    config, model, own = FAMILIES[family]
    config = getattr(transformers, config)(**(LITTLE | own | settings))
    with torch.device("meta"):
        model = getattr(transformers, model)(config)
    fixed = 2 * 1024 * 1024 if family == "marian" else 0
    assert sum(p.numel() for p in model.parameters()) - fixed == count
    ours = families.to_config(families.complete(config.to_dict()))
    tied = dataclasses.replace(ours, tied_embeddings="all")
    assert count_parameters(abstract_parameters(tied)) == count


@pytest.mark.parametrize("family", FAMILIES)
def test_the_epsilon_of_norms(family):
    """Where variances are small, the logits are equal with this epsilon, and with
    another one they are not.

    Sines and cosines have variance 1/2: the tables take them away from the first
    position, the only one here.
    """
    learned = family in ("mbart", "bart")
    model = make(family, 4, std=0.003 if learned else 0.01)
    config, _ = from_model(model)
    with torch.no_grad():
        if not learned:
            place = jnp.array([config.position_offset])
            wave = sinusoidal(place, 16, layout=LAYOUTS[config.positions])
            model.model.shared.weight.sub_(torch.tensor(np.array(wave)) / 4)
        pre = config.norm_order == "pre"
        decoder = model.model.decoder
        last = decoder.layer_norm if pre else decoder.layers[-1].final_layer_norm
        last.weight.mul_(30 if learned else 10)
    config, params = from_model(model)
    source = draw(model.config, 5, 9)[:, :1]
    target = np.maximum(source, 3)
    expected = logits_of(model, source, target)
    close(compute(config, params, source, target), expected)
    assert np.abs(expected).max() > 1.0
    other = dataclasses.replace(config, norm_epsilon=1e-6)
    wrong = compute(other, params, source, target)
    assert np.abs(wrong - expected).max() > 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_the_first_position(family):
    """Positions counted from one more are far off."""
    model = make(family, 6)
    config, params = from_model(model)
    more = dataclasses.replace(
        config, position_offset=config.position_offset + 1, max_length=63
    )
    found, expected = compare(model, more, params)
    assert np.abs(found - expected).max() > 0.1


@pytest.mark.parametrize("family", FAMILIES)
def test_loss_and_gradients_of_a_batch(family):
    model = make(family, 8, encoder_layers=2)
    config, params = from_model(model)
    source, target = (draw(model.config, seed, 9) for seed in (9, 10))
    labels = torch.tensor(
        np.where(target != config.pad_id, target, -100), dtype=torch.long
    )

    def mean(params, source, target):
        logits = Transformer(config).apply({"params": params}, source, target)
        total, count = F.cross_entropy(logits, target, target != config.pad_id)
        return total / count

    inputs = {**inputs_of(model, source, target), "labels": labels}
    check_gradients(model, inputs, mean, params, source, target)


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_changes_nothing(family):
    """The logits of a pair are the same alone and next to longer ones, in a wider
    batch.
    """
    model = make(family, 15)
    config, params = from_model(model)
    source, target = (draw(model.config, seed, 5) for seed in (16, 17))
    wide = [
        np.pad(x, ((0, 0), (0, 7)), constant_values=config.pad_id)
        for x in (source, target)
    ]
    found = np.asarray(compute(config, params, *wide))
    for row, logits in enumerate(found):
        own = [
            x[row : row + 1, : (x[row] != config.pad_id).sum()]
            for x in (source, target)
        ]
        close(logits[: own[1].shape[1]], compute(config, params, *own)[0], atol=5e-6)


def same_trees(found, expected):
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_folders_in_one_file_or_more_and_in_half_precision(family, tmp_path):
    """What save_pretrained writes is read; numbers in half precision are those of
    their model in half precision.
    """
    model = make(family, 11)
    expected = from_model(model)
    model.save_pretrained(tmp_path / "one")
    model.save_pretrained(tmp_path / "more", max_shard_size="5KB")
    assert len(list((tmp_path / "more").glob("*.safetensors"))) > 2
    for name in ("one", "more"):
        found = huggingface.read(tmp_path / name)
        assert found.config == expected[0]
        assert found.generation["eos_token_id"] == model.config.eos_token_id
        same_trees(found.params, expected[1])
    for dtype in (torch.float16, torch.bfloat16):
        half = make(family, 11).to(dtype)
        half.save_pretrained(tmp_path / str(dtype))
        found = huggingface.read(tmp_path / str(dtype))
        same_trees(found.params, from_model(half)[1])
        half = type(model).from_pretrained(tmp_path / str(dtype), dtype=torch.float32)
        close(*compare(half.eval(), found.config, found.params))


def check_loading(info):
    """Check that a model took every tensor and lacks none but sines and cosines."""
    assert all("embed_positions" in name for name in info.pop("missing_keys"))
    assert not any(info.values()), info


@pytest.mark.parametrize("form", FORMS)
def test_a_model_that_is_written_is_loaded_by_transformers(form, tmp_path):
    """Logits are equal bit for bit. The file is the one that transformers writes:
    unless tables are untied, it has the same tensors, of equal bytes.
    """
    model, _ = make_form(form, 12)
    model.save_pretrained(tmp_path / "theirs")
    read = huggingface.read(tmp_path / "theirs")
    ours = tmp_path / "ours"
    huggingface.write(
        ours, read.config, read.params, settings=read.settings, generation={}
    )
    again, info = type(model).from_pretrained(ours, output_loading_info=True)
    check_loading(info)
    source = draw(model.config, 13, 9, read.config.source_vocabulary_size or 41)
    target = draw(model.config, 14, 9)
    expected = logits_of(model, source, target)
    np.testing.assert_array_equal(logits_of(again.eval(), source, target), expected)
    found, given = (
        load_file(tmp_path / x / "model.safetensors") for x in ("ours", "theirs")
    )
    unread = {"model.shared.weight"} if form == "mbart untied" else set()
    assert found.keys() == given.keys()
    for name in found.keys() - unread:
        assert found[name].tobytes() == given[name].tobytes(), name
    settings, expected = again.config.to_dict(), model.config.to_dict()
    named = {"_name_or_path", "torch_dtype"}
    for name in settings.keys() - named:
        assert settings[name] == expected[name], name


def test_a_file_s_tensors_are_enough():
    """Files leave some names out, and may be in half precision. A bias of zeros is
    left out.
    """
    model = make("marian", 5)
    whole = from_model(model)
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    for name in [name for name in state if "embed_" in name] + ["lm_head.weight"]:
        del state[name]
    config, params = from_state(model.config.to_dict(), state)
    assert config == whole[0]
    same_trees(params, whole[1])
    model.final_logits_bias.zero_()
    config, params = from_model(model)
    assert not config.output_bias
    assert "logits" not in params


NORM, FC1 = "model.encoder.layer_norm.weight", "model.encoder.layers.0.fc1.weight"
POSITIONS = "model.decoder.embed_positions.weight"


@pytest.mark.parametrize(
    ("tensors", "line"),
    [
        ({NORM: np.ones(16)}, f"takes the tensors {NORM};"),
        ({FC1: None}, f"the model lacks the tensor {FC1}; give the tensors of the wh"),
        ({FC1: np.ones((16, 24))}, f"{FC1} must have the shape (24, 16) by the conf"),
        ({POSITIONS: np.ones((64, 16))}, f"{POSITIONS} must hold sines and cosines"),
    ],
)
def test_what_cannot_be_imported_is_named(tensors, line):
    """Each tensor is taken once."""
    model = make("marian", 7)
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    state = {name: x for name, x in (state | tensors).items() if x is not None}
    with pytest.raises(InputError, match=re.escape(line)):
        from_state(model.config.to_dict(), state)


@pytest.mark.parametrize("family", folders.FAMILIES)
def test_the_stored_logits_are_those_of_transformers(family, tmp_path):
    """And every tensor of the folders that the tests make has its place there."""
    folders.make_folder(tmp_path, family)
    logits, info = folders.compute_logits(tmp_path, family)
    close(np.load(folders.GOLDEN)[family], logits, atol=1e-6)
    check_loading(info)
