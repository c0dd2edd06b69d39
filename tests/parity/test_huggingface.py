"""Translation models of Hugging Face's transformers, imported, compute
what they compute there; written, they are loaded there.
"""

# Linen types what apply returns as a union; transformers is not typed.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportOptionalMemberAccess=false, reportGeneralTypeIssues=false

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from interop import folders
from parity.translation_models import (
    FAMILIES,
    FORMS,
    draw,
    logits_of,
    make,
)
from safetensors.numpy import load_file

from jaxformer import Transformer
from jaxformer.functional.positions import sinusoidal
from jaxformer.interop import huggingface
from jaxformer.interop.huggingface.seq2seq import from_model
from jaxformer.models import count_parameters
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


@pytest.mark.parametrize("family", folders.FAMILIES)
def test_the_stored_logits_are_those_of_transformers(family, tmp_path):
    """And every tensor of the folders that the tests make has its place there."""
    folders.make_folder(tmp_path, family)
    logits, info = folders.compute_logits(tmp_path, family)
    close(np.load(folders.GOLDEN)[family], logits, atol=1e-6)
    check_loading(info)
