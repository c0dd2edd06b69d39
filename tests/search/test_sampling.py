"""Sampling: truncations, frequencies, and what a sample depends on."""

import itertools
import math

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search.search_batches import STEADY, batches
from search.search_oracle import (
    EOS,
    NONE,
    SENTENCES,
    Batch,
    hypotheses,
    random_tables,
)

from jaxformer.search import single
from jaxformer.search.rules import Sampling

OFF = {"top_k": 10**6, "top_p": 1.0, "min_p": 0.0, "epsilon": 0.0}
EXACT = {"temperature": 1.0, **OFF}
TRUNCATE = jax.jit(single.truncate)


def values(**changes) -> Sampling:
    """Return all values as arrays: one program serves all."""
    chosen = EXACT | changes
    kinds = {"top_k": np.int32}
    return Sampling(*(kinds.get(n, np.float32)(chosen[n]) for n in EXACT))


def keys(*sentences, seed=0):
    own = jax.vmap(jax.random.fold_in, (None, 0))
    return own(jax.random.key(seed), np.array(sentences))


def reference_truncate(log_probabilities, *, temperature, top_k, top_p, min_p, epsilon):
    """Return probabilities, by sorted lists."""
    best = max(log_probabilities)
    kept = {
        token: math.exp((v - best) / temperature) if temperature else float(v == best)
        for token, v in enumerate(log_probabilities)
        if v > -math.inf
    }

    def again(kept):
        return {token: p / sum(kept.values()) for token, p in kept.items()}

    def ranked():
        return sorted(kept, key=lambda token: -kept[token])

    kept = again(kept)
    kept = again({token: kept[token] for token in ranked()[:top_k]})
    nucleus, mass = {}, 0.0
    for token in ranked():
        if mass < top_p:
            nucleus[token] = kept[token]
            mass += kept[token]
    kept = again(nucleus)
    least = min_p * max(kept.values())
    kept = again({token: p for token, p in kept.items() if p >= least})
    likely = {token: p for token, p in kept.items() if p >= epsilon}
    kept = again(likely or {ranked()[0]: 1.0})
    return [kept.get(token, 0.0) for token in range(len(log_probabilities))]


@pytest.mark.parametrize("name", ["temperature", *OFF, "all"])
@settings(STEADY, max_examples=40)
@given(seed=st.integers(0, 10_000), data=st.data())
def test_truncations_equal_sorted_lists(name, seed, data):
    """Each, and all in their order; impossible tokens stay so."""
    choices = {
        "temperature": st.sampled_from([0.0, 0.3, 0.7, 1.0, 2.5]),
        "top_k": st.sampled_from([1, 2, 5, 17, 18, 40]),
        "top_p": st.sampled_from([1e-4, 0.1, 0.33, 0.5, 0.9, 0.99, 1.0]),
        "min_p": st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0]),
        "epsilon": st.sampled_from([0.0, 0.003, 0.02, 0.2, 1.0]),
    }
    named = {key: data.draw(choices[key]) for key in choices if name in (key, "all")}
    chosen = EXACT | named
    random = np.random.default_rng(seed)
    logits = random.normal(scale=random.choice([0.1, 1, 4]), size=(3, 19))
    logits[:, random.random(19) < 0.2] = -np.inf
    logits[:, 7] = 0.0
    rows = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    rows = rows.astype(np.float32)
    for found, row in zip(TRUNCATE(rows, values(**chosen)), rows, strict=True):
        expected = reference_truncate(row.tolist(), **chosen)
        np.testing.assert_allclose(np.exp(found), expected, rtol=2e-5, atol=1e-7)


def test_truncations_of_special_rows():
    """Equally probable tokens are all kept, a row without a possible token has none,
    and no truncation is the model's distribution.
    """
    rows = np.full((3, 19), -np.inf, np.float32)
    rows[0] = -math.log(19)
    rows[1, 2] = -3.0
    everything = {"top_k": 1, "top_p": 0.5, "min_p": 0.1, "epsilon": 0.1}
    for changes in (
        {"top_k": 3},
        {"top_p": 0.3},
        {"epsilon": 0.5},
        {"min_p": 1.0},
        {"temperature": 0.0},
        {},
        everything,
    ):
        found = np.exp(TRUNCATE(rows, values(**changes)))
        np.testing.assert_allclose(found[0], np.full(19, 1 / 19), rtol=1e-6)
        assert found[1].tolist() == [0, 0, 1, *[0] * 16]
        assert not found[2].any()
    even = TRUNCATE(rows[:1], Sampling())
    np.testing.assert_allclose(even, rows[:1], atol=2e-6)


@pytest.mark.parametrize(
    "chosen", [{}, {"temperature": 1.5, "top_p": 0.8}, {"min_p": 0.3, "epsilon": 0.15}]
)
def test_frequencies_are_those_of_the_distribution(chosen):
    """Each translation is as frequent as the product of its tokens' probabilities
    (chi-square).
    """
    limit, count = 3, 20_000
    batch = Batch(random_tables(71, sentences=1, vocabulary=6), (limit,))
    sentence, exact = batch.sentence(0), {}
    words = [EOS, 3, 4, 5]
    for size in range(1, limit + 1):
        for tokens in itertools.product(words, repeat=size):
            if EOS in tokens[:-1] or (size < limit and tokens[-1] != EOS):
                continue
            exact[tokens] = 1.0
            for t, token in enumerate(tokens):
                natural = sentence.natural(tokens[:t])
                following = [natural.get(each, -math.inf) for each in range(6)]
                shares = reference_truncate(following, **EXACT | chosen)
                exact[tokens] *= shares[token]
    assert sum(exact.values()) == pytest.approx(1.0)
    many = {"length": limit, "beam_size": count, "n_best": count}
    result = batch.search("sample", keys=keys(0), sampling=values(**chosen), **many)
    lengths = result.lengths[0].tolist()
    rows = zip(result.tokens[0].tolist(), lengths, strict=True)
    drawn = [tuple(row[:length]) for row, length in rows]
    observed = {tokens: drawn.count(tokens) for tokens in exact}
    assert sum(observed.values()) == count
    assert not any(observed[tokens] for tokens, p in exact.items() if p == 0)
    often = {tokens: p * count for tokens, p in exact.items() if p * count >= 5}
    statistic = sum((observed[tokens] - n) ** 2 / n for tokens, n in often.items())
    freedom = len(often) - 1
    assert statistic < freedom + 4 * math.sqrt(2 * max(freedom, 1))


def sample(batch, seed=0, order=range(SENTENCES), samples=3, **chosen):
    given = {"keys": keys(*order, seed=seed), "sampling": values(**chosen)}
    return batch.search("sample", beam_size=samples, n_best=samples, **given)


@STEADY
@given(data=st.data(), temperature=st.sampled_from([0.5, 1.3]))
def test_samples_have_the_model_s_scores_under_constraints(data, temperature):
    """What constraints forbid is never drawn, a dead end leaves an empty sample, and
    truncations change no score. At temperature 0 sampling is greedy search.
    """
    batch = data.draw(batches(plain=False))
    rules = [rule | {"required": ()} for rule in batch.rules]
    batch = batch._replace(rules=rules)
    result = sample(batch, temperature=temperature, top_k=4, top_p=0.9)
    assert not any(np.isnan(field).any() for field in result)
    for index, place in itertools.product(range(SENTENCES), range(3)):
        sentence = batch.sentence(index)
        size = int(result.lengths[index, place])
        tokens = tuple(result.tokens[index, place, :size].tolist())
        if result.scores[index, place] == -math.inf:
            assert size == 0
            continue
        drawn = enumerate(tokens)
        value = sum(sentence.allowed(tokens[:t])[token] for t, token in drawn)
        total = sum(sentence.log_probabilities(tokens))
        score = sentence.score(tokens, value)
        found = result.log_probabilities[index, place], result.scores[index, place]
        np.testing.assert_allclose(found, (total, score), rtol=2e-6)
        assert result.finished[index, place] == (tokens[-1:] == (EOS,))
    greedy = batch.search("greedy")
    for cold in (0.0, 1e-38):
        result = sample(batch, temperature=cold)
        assert result.iterations == greedy.iterations
        for place in range(3):
            own = result._replace(
                **{
                    name: getattr(result, name)[:, place : place + 1]
                    for name in result._fields[:-1]
                }
            )
            for index in range(SENTENCES):
                assert hypotheses(own, index) == hypotheses(greedy, index)


def test_the_most_probable_token_is_the_first_argmax():
    """Ties go to the lowest id; a row without any possible token has one too, and NaN
    stays within the vocabulary.
    """
    rows = np.array([[0, 2, 1, 2], [3, 3, 3, 3], [-np.inf] * 4, [-np.inf, -5, -7, 0]])
    rows = np.concatenate([rows, np.full((1, 4), np.nan)]).astype(np.float32)
    found = np.asarray(single.most_probable(jax.device_put(rows), np.int32(0)))
    assert found[:-1].tolist() == rows[:-1].argmax(axis=1).tolist() == [1, 0, 0, 3]
    assert 0 <= found[-1] < 4


def test_a_sample_depends_only_on_its_key():
    """Other neighbours, another order or more samples leave a sample as it is."""
    rules = [NONE | {"min_length": n} for n in (2, 4, 0, 0)]
    batch = Batch(random_tables(72, -1.0), (7, 3, 7, 0), rules=rules)
    order = np.array([2, 3, 0, 1])
    moved = batch._replace(
        tables=batch.tables[order],
        limits=tuple(batch.limits[i] for i in order),
        rules=[rules[i] for i in order],
    )
    expected, more = sample(batch), sample(batch, samples=5)
    backwards = sample(moved, order=order)
    for name in ("tokens", "finished"):
        found, own = getattr(more, name), getattr(expected, name)
        np.testing.assert_array_equal(found[:, :3], own)
        np.testing.assert_array_equal(getattr(backwards, name), own[order])
    np.testing.assert_allclose(backwards.scores, expected.scores[order], rtol=1e-6)
    assert len({tuple(row) for row in more.tokens[0].tolist()}) > 1
    assert (sample(batch, seed=1).tokens != expected.tokens).any()
    np.testing.assert_array_equal(sample(batch).tokens, expected.tokens)
