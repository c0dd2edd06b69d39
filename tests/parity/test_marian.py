"""A model of Hugging Face's MarianMTModel, carried over, computes and finds what it
computes and finds there.
"""

# Linen types what apply returns as a union; transformers is not typed.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportOptionalMemberAccess=false, reportGeneralTypeIssues=false

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from parity.marians import (
    EOS,
    LONGEST,
    PAD,
    SETTINGS,
    draw,
    make,
    make_ending,
    one_thread,
)

from jaxformer import InputError, Transformer
from jaxformer.interop import marian
from jaxformer.models import count_parameters, empty_cache
from jaxformer.search.beam import beam_search
from jaxformer.search.rules import SearchRules
from jaxformer.search.single import greedy_search

try:
    import torch
    import transformers
except ModuleNotFoundError:  # collected all the same, so that they can be counted
    torch = transformers = None

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(transformers is None, reason="needs the extra `parity`"),
]


def their_logits(model, source, target):
    first = np.full((len(target), 1), model.config.decoder_start_token_id)
    inputs = np.concatenate([first, target[:, :-1]], 1)
    source, inputs = (torch.tensor(x, dtype=torch.long) for x in (source, inputs))
    options = {"attention_mask": source != PAD, "decoder_input_ids": inputs}
    with torch.no_grad():
        return model(input_ids=source, **options).logits.numpy()


TIED = {"shared": "all", "separate": "target", "untied": "none"}


@pytest.mark.parametrize("name", TIED)
def test_logits_are_equal(name):
    """On padded pairs in float32, under the settings that published models have. Every
    parameter is carried over, and tables are tied as they are there.
    """
    model = make(1, **SETTINGS[name])
    config, params = marian.from_model(model)
    source, target = draw(2, 9, config.vocabulary_size), draw(3, 9, longest=12)
    apply = jax.jit(Transformer(config).apply)
    found = np.asarray(apply({"params": params}, source, target))
    expected, real = their_logits(model, source, target), target != PAD
    assert np.abs(expected[real]).max() > 3.0
    np.testing.assert_allclose(found[real], expected[real], rtol=0, atol=1e-4)
    named = model.named_parameters()
    theirs = sum(p.numel() for key, p in named if "embed_positions" not in key)
    assert count_parameters(params) == theirs + model.final_logits_bias.numel()
    assert config.tied_embeddings == TIED[name]
    token = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    made = jax.eval_shape(Transformer(config).init, jax.random.key(0), token, token)
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, made["params"])


def test_a_file_s_tensors_are_enough():
    """Files leave some names out, and may be in half precision. A bias of zeros is
    left out.
    """
    model = make(5)
    whole = marian.from_model(model)
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    for name in [name for name in state if "embed_" in name] + ["lm_head.weight"]:
        del state[name]
    config, params = marian.from_state(model.config.to_dict(), state)
    assert config == whole[0]
    jax.tree.map(np.testing.assert_array_equal, params, whole[1])
    _, half = marian.from_model(make(5).to(torch.bfloat16))
    close = functools.partial(np.testing.assert_allclose, rtol=2**-8)
    jax.tree.map(close, half, params)
    model.final_logits_bias.zero_()
    config, params = marian.from_model(model)
    assert not config.output_bias
    assert "logits" not in params


NORM, FC1 = "model.encoder.layer_norm.weight", "model.encoder.layers.0.fc1.weight"
POSITIONS = "model.decoder.embed_positions.weight"


@pytest.mark.parametrize(
    ("settings", "tensors", "line"),
    [
        ({}, {NORM: np.ones(16)}, f"takes the tensors {NORM};"),
        (
            {},
            {FC1: None},
            f"the model lacks the tensor {FC1}; give the state of a whole",
        ),
        (
            {},
            {FC1: np.ones((16, 24))},
            f"{FC1} must have the shape (24, 16) by the conf",
        ),
        (
            {},
            {POSITIONS: np.ones((64, 16))},
            f"{POSITIONS} must hold sines and cosines",
        ),
        (
            {"decoder_ffn_dim": 32},
            {},
            "encoder_ffn_dim is 24 where decoder_ffn_dim is 32",
        ),
        (
            {"activation_function": "tanh"},
            {},
            "activation_function must be one of relu, ",
        ),
        ({"model_type": "bart"}, {}, "model_type must be marian, not bart"),
        ({"d_model": None}, {}, "lacks d_model; give the config.json"),
    ],
)
def test_what_cannot_be_carried_over_is_named(settings, tensors, line):
    """Each tensor is taken once."""
    model = make(7)
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    state = {name: x for name, x in (state | tensors).items() if x is not None}
    with pytest.raises(InputError, match=re.escape(line)):
        marian.from_state(model.config.to_dict() | settings, state)


@functools.cache
def compile_search(config, beam_size):
    """Compile a search for the best ``beam_size`` hypotheses under their penalty."""

    @jax.jit
    def search(params, source, alpha):
        model = Transformer(config)
        memory = model.apply({"params": params}, source, method="start")
        options = {
            "max_lengths": jnp.full(source.shape[0], LONGEST),
            "length": LONGEST,
            "alpha": alpha,
            "penalty": "average",
            "bos_id": config.bos_id,
            "eos_id": EOS,
            "pad_id": config.pad_id,
        }

        def step(tokens, cache):
            return model.apply({"params": params}, tokens, cache, memory, method="step")

        cache = empty_cache(config, source.shape[0] * beam_size, LONGEST, beam_size)
        if beam_size == 1:
            return greedy_search(step, cache, SearchRules(**options))
        rules = SearchRules(beam_size=beam_size, n_best=beam_size, **options)
        return beam_search(step, cache, rules)

    return search


def our_search(config, params, source, beam_size, alpha=0.0):
    search = compile_search(config, beam_size)
    found = search(params, jnp.asarray(source), jnp.float32(alpha))
    return jax.tree.map(np.asarray, found)


def their_search(model, source, **options):
    source = torch.tensor(source, dtype=torch.long)
    with one_thread():
        return model.generate(
            source,
            attention_mask=(source != PAD).long(),
            do_sample=False,
            max_new_tokens=LONGEST,
            # as published models have it, and as jaxformer always has it
            bad_words_ids=[[PAD]],
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )


def padded(tokens):
    """Return their sequences as ours: without the first token, padded."""
    tokens = tokens.numpy()[:, 1:]
    return np.pad(tokens, ((0, 0), (0, LONGEST - tokens.shape[1])), constant_values=PAD)


@pytest.fixture(scope="module")
def ending():
    """A model that ends its sentences, sources, and the model carried over."""
    with one_thread():
        model = make_ending(0).eval()
    return model, draw(9, 100), *marian.from_model(model)


def test_greedy_search_finds_the_same_tokens(ending):
    model, source, config, params = ending
    found = our_search(config, params, source, 1)
    expected = padded(their_search(model, source, num_beams=1).sequences)
    assert len(set(found.lengths[:, 0].tolist())) > 10  # sentences of many lengths
    np.testing.assert_array_equal(found.tokens[:, 0], expected)


@pytest.mark.parametrize("alpha", [1.0, -0.7])
def test_beam_search_finds_the_same_hypotheses(ending, alpha):
    """All four hypotheses with their scores, under the length to the power of alpha as
    penalty.

    Both count the end of a sentence as one of its tokens, and not the decoder's first.
    ``early_stopping="never"`` stops only when nothing alive can displace a finished
    hypothesis, as ours does.
    """
    model, source, config, params = ending
    found = our_search(config, params, source, 4, alpha)
    options = {"num_beams": 4, "num_return_sequences": 4, "early_stopping": "never"}
    theirs = their_search(model, source, length_penalty=alpha, **options)
    assert found.finished.all()
    tokens, scores = found.tokens.reshape(400, -1), found.scores.reshape(-1)
    np.testing.assert_array_equal(tokens, padded(theirs.sequences))
    expected = theirs.sequences_scores.numpy()
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-4)
