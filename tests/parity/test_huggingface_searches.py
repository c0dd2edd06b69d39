"""Searches with translation models of transformers, imported, find what they find
there.
"""

# Linen types what apply returns as a union; transformers is not typed.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportOptionalMemberAccess=false, reportGeneralTypeIssues=false

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from parity.translation_models import (
    FAMILIES,
    LONGEST,
    draw,
    make_ending,
    one_thread,
    torch,
    transformers,
)

import runs
from jaxformer import Transformer
from jaxformer.interop.huggingface.seq2seq import from_model
from jaxformer.models.cache import empty_cache
from jaxformer.search.beam import beam_search
from jaxformer.search.rules import SearchRules
from jaxformer.search.single import greedy_search

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(transformers is None, reason="needs the extra `parity`"),
]


@functools.cache
def compile_search(config, beam_size, first, eos_id):
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
            "bos_id": first,
            "eos_id": eos_id,
            "pad_id": config.pad_id,
        }

        def step(tokens, cache):
            tokens = jnp.where(tokens == first, config.bos_id, tokens)
            return model.apply({"params": params}, tokens, cache, memory, method="step")

        cache = empty_cache(config, source.shape[0] * beam_size, LONGEST, beam_size)
        if beam_size == 1:
            return greedy_search(step, cache, SearchRules(**options))
        rules = SearchRules(beam_size=beam_size, n_best=beam_size, **options)
        return beam_search(step, cache, rules)

    return search


def first_id(settings):
    """Return the token that begins a search and is never found: that of Marian's
    models, and in those that begin with the end of sentence one that stands for it.
    """
    start = settings.decoder_start_token_id
    return 0 if start == settings.eos_token_id else start


def our_search(settings, config, params, source, beam_size, alpha=0.0):
    search = compile_search(
        config, beam_size, first_id(settings), settings.eos_token_id
    )
    found = search(params, jnp.asarray(source), jnp.float32(alpha))
    return jax.tree.map(np.asarray, found)


def their_search(model, source, **options):
    source = torch.tensor(source, dtype=torch.long)
    pad, first = model.config.pad_token_id, first_id(model.config)
    with one_thread():
        return model.generate(
            source,
            attention_mask=(source != pad).long(),
            do_sample=False,
            max_new_tokens=LONGEST,
            # as published models have it, and as jaxformer always has it
            bad_words_ids=[[token] for token in {pad, first}],
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )


def padded(tokens, pad):
    """Return their sequences as ours: without the first token, padded."""
    tokens = tokens.numpy()[:, 1:]
    return np.pad(tokens, ((0, 0), (0, LONGEST - tokens.shape[1])), constant_values=pad)


@pytest.fixture(scope="module", params=runs.slow_but(["mbart"], FAMILIES))
def ending(request):
    """A model that ends its sentences, sources, and the imported model."""
    with one_thread():
        model = make_ending(request.param, 0)
    return model, draw(model.config, 9, 200), *from_model(model)


def test_greedy_search_finds_the_same_tokens(ending):
    model, source, config, params = ending
    found = our_search(model.config, config, params, source, 1)
    expected = padded(their_search(model, source, num_beams=1).sequences, config.pad_id)
    assert len(set(found.lengths[:, 0].tolist())) > 10  # sentences of many lengths
    np.testing.assert_array_equal(found.tokens[:, 0], expected)


@pytest.mark.parametrize("alpha", [1.0, -0.7])
def test_beam_search_finds_the_same_hypotheses(ending, alpha):
    """All four hypotheses with their scores, under the length to the power of alpha as
    penalty, where all end within the limit.

    Both count the end of a sentence as one of its tokens, and not the decoder's first.
    ``early_stopping="never"`` stops only when nothing alive can displace a finished
    hypothesis, as ours does.
    """
    model, source, config, params = ending
    found = our_search(model.config, config, params, source, 4, alpha)
    options = {"num_beams": 4, "num_return_sequences": 4, "early_stopping": "never"}
    theirs = their_search(model, source, length_penalty=alpha, **options)
    ended = found.finished.all(axis=1)
    assert ended.mean() > 0.8
    tokens = padded(theirs.sequences, config.pad_id).reshape(found.tokens.shape)
    np.testing.assert_array_equal(found.tokens[ended], tokens[ended])
    scores = theirs.sequences_scores.numpy().reshape(found.scores.shape)
    np.testing.assert_allclose(found.scores[ended], scores[ended], rtol=1e-5, atol=1e-4)
