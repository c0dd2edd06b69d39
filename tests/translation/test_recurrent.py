"""Translators of the networks before the Transformer: alignments, attention, and what
they refuse.
"""

import dataclasses
import functools

import jax
import numpy as np
import pytest

import runs
from jaxformer import InputError
from jaxformer.data.vocabulary import Vocabularies
from jaxformer.interop import export
from jaxformer.models.make import abstract_parameters
from jaxformer.runs import config as configuration
from jaxformer.search.config import DecodingConfig
from jaxformer.translation.translator import Translator

ATTENDING, OTHERS = ["bahdanau", "luong"], ["sutskever", "cho"]
NETWORKS = pytest.mark.parametrize("network", ATTENDING + OTHERS)


@functools.cache
def make(network):
    layers = dict.fromkeys(("num_encoder_layers", "num_decoder_layers"), 1)
    if network in ("luong", "sutskever"):
        layers = dict.fromkeys(layers, 2)
    # widths of the Transformer's layers by their defaults
    widths = {"d_ff": 2048, "num_heads": 8}
    config = runs.model_config(network=network, **layers, **widths)
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: np.float32(0.4 * rng.normal(size=leaf.shape)),
        abstract_parameters(config),
    )
    both = Vocabularies(runs.vocabulary(), runs.vocabulary())
    decoding = DecodingConfig(max_extra_length=8, batch_size=4)
    return Translator(config, jax.tree.map(jax.numpy.asarray, params), both, decoding)


@pytest.mark.parametrize("network", ATTENDING)
def test_alignments_and_pictures_have_the_only_layer(network):
    translator, text = make(network), runs.sentences(1, longest=20)[0]
    ((best,),) = translator.search([text], alignment=True)
    weights = best.alignment.weights
    assert weights.shape == (len(best.tokens), len(best.alignment.source_tokens))
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-5)
    attention = translator.attention(text, text)
    assert len(attention.encoder) == len(attention.decoder) == 0
    assert attention.cross.shape[:2] == (1, 1)
    np.testing.assert_allclose(attention.cross.sum(axis=-1), 1, atol=1e-5)
    with pytest.raises(InputError, match="layer"):
        translator.search([text], alignment=True, alignment_layer=2)


@pytest.mark.parametrize("network", OTHERS)
def test_without_attention_there_is_none_to_show(network):
    translator, text = make(network), runs.sentences(1, longest=20)[0]
    with pytest.raises(InputError, match="has no attention to its source, so no"):
        translator.search([text], alignment=True)
    with pytest.raises(InputError, match="has no attention to its source, so no"):
        translator.attention(text, text)


@NETWORKS
def test_other_systems_have_no_such_network(network, tmp_path):
    translator = make(network)
    for form in ("huggingface", "ctranslate2", "argos"):
        with pytest.raises(InputError, match=f"has no model.network={network}"):
            export.write(tmp_path, form, translator, translator.decoding)


@NETWORKS
def test_packed_rows_are_refused_before_training(network):
    config = configuration.parse(configuration.default_config().to_dict())
    data = dataclasses.replace(
        config.data, packing=True, vocabulary_size=runs.vocabulary().size
    )
    model = dataclasses.replace(make(network).model.config, max_length=512)
    with pytest.raises(InputError, match="reads one sentence a row"):
        dataclasses.replace(config, model=model, data=data)
