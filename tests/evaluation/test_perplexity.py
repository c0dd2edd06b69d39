"""Perplexity is what its definition gives, from the probabilities of single tokens."""

import functools
import math

import jax
import numpy as np
import pytest

import runs
from jaxformer.data.sources import Pair
from jaxformer.errors import InputError
from jaxformer.evaluation.perplexity import Perplexity, perplexity
from jaxformer.translation.results import PairScore


def test_of_a_model():
    """It is the exponential of the mean over all tokens of all sentences, whatever
    their lengths, computed directly from the logits of each sentence by itself.
    """
    translator, nll = runs.translator(), []
    pairs = [*runs.pairs()[:9], Pair("Open it.", "")]
    apply = jax.jit(functools.partial(translator.model.apply, train=False))
    vocabulary, width = runs.vocabulary(), 96  # one shape for all
    for pair in pairs:
        source, target = ([*vocabulary.encode(x), vocabulary.eos_id] for x in pair)
        padded = np.full((2, 1, width), vocabulary.pad_id, np.int32)
        padded[0, 0, : len(source)], padded[1, 0, : len(target)] = source, target
        logits = np.asarray(apply({"params": translator.params}, *padded), np.float64)
        shifted = logits[0] - logits[0].max(-1, keepdims=True)
        logarithms = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        nll += [-logarithms[place, token] for place, token in enumerate(target)]
    found = perplexity(translator.score(pairs), [target for _, target in pairs])
    assert (found.sentences, found.tokens) == (10, len(nll))
    assert found.nll == pytest.approx(np.mean(nll), rel=1e-5)
    assert found.per_token == pytest.approx(math.exp(np.mean(nll)), rel=1e-4)
    words = sum(len(target.split()) + 1 for _, target in pairs)
    assert found.words == words
    assert found.per_word == pytest.approx(math.exp(sum(nll) / words), rel=1e-4)


def test_by_hand():
    """Two sentences of 2 and 4 tokens and 1 and 2 words: sums are divided, means are
    not averaged. Infinity is null in JSON: 300 tokens of one word at 8 nats are beyond
    floats a word, and not a token.
    """
    scores = [PairScore(-2.0, 2), PairScore(-10.0, 4)]
    found = perplexity(scores, ["Haus", "altes Haus"])
    assert found == Perplexity(sentences=2, tokens=6, words=5, log_probability=-12.0)
    record = {"sentences": 2, "tokens": 6, "words": 5, "log_probability": -12.0}
    record |= {"nll": 2.0, "perplexity": round(math.exp(2.0), 4)}
    record["word_perplexity"] = round(math.exp(12 / 5), 4)
    assert found.to_record() == record
    record = perplexity([PairScore(-2400.0, 300)], ["字" * 299]).to_record()
    assert (record["perplexity"], record["word_perplexity"]) == (2980.958, None)
    lost = perplexity([PairScore(-math.inf, 2)], ["Haus"]).to_record()
    gone = {"log_probability", "nll", "perplexity", "word_perplexity"}
    assert {key for key, value in lost.items() if value is None} == gone
    assert perplexity([PairScore(-2000.0, 1)], [""]).per_token == math.inf


def test_nothing_to_sum_up():
    """No sentence has no perplexity."""
    with pytest.raises(InputError, match="0 scores and 0 targets"):
        perplexity([], [])
    with pytest.raises(InputError, match="1 scores and 2 targets"):
        perplexity([PairScore(-1.0, 1)], ["a", "b"])
