"""Sampling: what is cut off, how often each translation comes, and what a sample
depends on.
"""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from search.search_oracle import (
    EOS,
    IDS,
    PAD,
    allowed_tokens,
    empty_cache,
    greedy_tables,
    limits,
    next_log_probabilities,
    random_tables,
    rescore,
    sample_tables,
    score,
    table_step,
)

from jaxformer.search import single as sampling_module
from jaxformer.search.constraints import Constraints
from jaxformer.search.rules import Sampling, SearchRules
from jaxformer.search.single import sample_search, truncate

STATES, VOCABULARY = 4099, 6
OFF = {"top_k": 10**6, "top_p": 1.0, "min_p": 0.0, "epsilon": 0.0}
EXACT = {"temperature": 1.0, **OFF}
steady = settings(
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
TRUNCATE = jax.jit(truncate)


def values(**changes) -> Sampling:
    """Give every value as an array, so that one compiled function serves all."""
    chosen = {**EXACT, **changes}
    return Sampling(
        jnp.float32(chosen["temperature"]),
        jnp.int32(chosen["top_k"]),
        *(jnp.float32(chosen[name]) for name in ("top_p", "min_p", "epsilon")),
    )


def keys(*sentences: int, seed: int = 0) -> jax.Array:
    return jax.vmap(
        lambda sentence: jax.random.fold_in(jax.random.key(seed), sentence)
    )(jnp.array(sentences))


# --- the slow reference: sorted lists ---


def reference_truncate(log_probabilities, *, temperature, top_k, top_p, min_p, epsilon):
    """Return probabilities, by one token after the other."""
    best = max(log_probabilities)
    kept = {
        token: (
            math.exp((value - best) / temperature)
            if temperature
            else float(value == best)
        )
        for token, value in enumerate(log_probabilities)
        if value > -math.inf
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
    kept = again(
        {token: p for token, p in kept.items() if p >= min_p * max(kept.values())}
    )
    likely = {token: p for token, p in kept.items() if p >= epsilon}
    kept = again(likely or {ranked()[0]: 1.0})
    return [kept.get(token, 0.0) for token in range(len(log_probabilities))]


@pytest.mark.parametrize("name", ["temperature", *OFF, "all"])
@steady
@given(seed=st.integers(0, 10_000), data=st.data())
def test_truncations_equal_sorted_lists(name, seed, data):
    """Each truncation, and all in their order, give the distribution of the
    reference; impossible tokens stay so.
    """
    choices = {
        "temperature": st.sampled_from([0.0, 0.3, 0.7, 1.0, 2.5]),
        "top_k": st.sampled_from([1, 2, 5, 17, 18, 40]),
        "top_p": st.sampled_from([1e-4, 0.1, 0.33, 0.5, 0.9, 0.99, 1.0]),
        "min_p": st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0]),
        "epsilon": st.sampled_from([0.0, 0.003, 0.02, 0.2, 1.0]),
    }
    chosen = {
        **EXACT,
        **{key: data.draw(choices[key]) for key in choices if name in (key, "all")},
    }
    random = np.random.default_rng(seed)
    logits = random.normal(scale=random.choice([0.1, 1, 4]), size=(3, 19))
    logits[:, random.random(19) < 0.2] = -np.inf
    logits[:, 7] = 0.0
    rows = (logits - np.log(np.exp(logits).sum(1, keepdims=True))).astype(np.float32)
    found = np.exp(TRUNCATE(rows, values(**chosen)))
    for row, given_ in zip(found, rows, strict=True):
        expected = reference_truncate([float(value) for value in given_], **chosen)
        np.testing.assert_allclose(row, expected, rtol=2e-5, atol=1e-7)


def test_tokens_as_probable_as_the_last_one_are_kept():
    """Ties are not broken by the number of a token, which means nothing."""
    even = jnp.log(jnp.full((1, 8), 0.125))
    for changes in (
        {"top_k": 3},
        {"top_p": 0.3},
        {"epsilon": 0.5},
        {"min_p": 1.0},
        {"temperature": 0.0},
    ):
        np.testing.assert_allclose(
            jnp.exp(TRUNCATE(even, values(**changes))),
            np.full((1, 8), 0.125),
            rtol=1e-6,
        )


def test_what_is_none_cuts_nothing_off():
    """The default is the model's distribution, as are the values at which nothing is
    cut off.
    """
    rows = jax.nn.log_softmax(jax.random.normal(jax.random.key(3), (4, 300)))
    np.testing.assert_allclose(TRUNCATE(rows, Sampling()), rows, atol=2e-6)
    np.testing.assert_allclose(TRUNCATE(rows, values()), rows, atol=2e-6)


def test_nothing_stays_nothing():
    """A row without a possible token gives no NaN and no token."""
    rows = jnp.full((2, 5), -jnp.inf).at[1, 2].set(-3.0)
    for changes in (
        {},
        {"temperature": 0.0},
        {"top_k": 1, "top_p": 0.5, "min_p": 0.1, "epsilon": 0.1},
    ):
        found = TRUNCATE(rows, values(**changes))
        assert jnp.isneginf(found[0]).all()
        assert jnp.exp(found[1]).tolist() == [0, 0, 1, 0, 0]


def test_a_cut_of_a_long_row():
    """Halving the range finds the cut that sorting finds, in rows as long as a
    vocabulary.
    """
    rows = jax.nn.log_softmax(3 * jax.random.normal(jax.random.key(4), (3, 20_011)))
    exact = np.asarray(rows, np.float64)
    order = np.argsort(-exact, axis=1)
    for k in (1, 50, 20_011):
        kept = np.isfinite(sampling_module.keep_top_k(rows, jnp.int32(k)))
        np.testing.assert_array_equal(kept, np.argsort(order, axis=1) < k)
    before = np.cumsum(np.exp(np.take_along_axis(exact, order, 1)), axis=1)
    for p in (0.01, 0.5, 0.95):
        kept = np.isfinite(sampling_module.keep_top_p(rows, jnp.float32(p))).sum(axis=1)
        np.testing.assert_allclose(kept, (before < p).sum(axis=1) + 1, atol=1)


# --- whole samples ---


@pytest.mark.parametrize(
    "chosen",
    [
        {},
        {"temperature": 0.6},
        {"top_k": 2},
        {"temperature": 1.5, "top_p": 0.8},
        {"min_p": 0.3, "epsilon": 0.15},
    ],
    ids=str,
)
def test_frequencies_are_those_of_the_distribution(chosen):
    """Every translation comes as often as the product of its tokens' probabilities
    says (chi-square).
    """
    limit, count = 3, 20_000
    table = random_tables(71, 1, STATES, VOCABULARY)
    words = allowed_tokens(VOCABULARY)
    exact: dict[tuple[int, ...], float] = {}
    for size in range(1, limit + 1):
        for tokens in itertools.product(words, repeat=size):
            if EOS in tokens[:-1] or (size < limit and tokens[-1] != EOS):
                continue
            exact[tokens] = 1.0
            for t, token in enumerate(tokens):
                following = next_log_probabilities(table[0], tokens[:t])
                following = [
                    following[each] if each in words else -math.inf
                    for each in range(VOCABULARY)
                ]
                exact[tokens] *= reference_truncate(following, **{**EXACT, **chosen})[
                    token
                ]
    assert sum(exact.values()) == pytest.approx(1.0)
    result = sample_tables(
        table, limits(limit), keys(0), values(**chosen), length=limit, samples=count
    )
    drawn = [
        tuple(row[:n])
        for row, n in zip(
            result.tokens[0].tolist(), result.lengths[0].tolist(), strict=True
        )
    ]
    observed = {tokens: drawn.count(tokens) for tokens in exact}
    assert sum(observed.values()) == count
    assert not any(observed[tokens] for tokens, p in exact.items() if p == 0)
    often = [tokens for tokens, p in exact.items() if p * count >= 5]
    statistic = sum(
        (observed[tokens] - exact[tokens] * count) ** 2 / (exact[tokens] * count)
        for tokens in often
    )
    freedom = len(often) - 1
    assert statistic < freedom + 4 * math.sqrt(2 * max(freedom, 1)), (
        statistic,
        freedom,
    )


def test_a_sample_depends_on_its_key_alone():
    """Alone, beside other sentences, in another order, and among more samples, a
    sample is the same.
    """
    tables = random_tables(72, 5, STATES, VOCABULARY, -1.0)
    max_lengths = np.array([9, 3, 12, 0, 12])

    def run(chosen, samples=3, seed=0):
        arguments = (
            tables[chosen],
            limits(*max_lengths[chosen]),
            keys(*chosen, seed=seed),
            values(temperature=1.3),
        )
        return sample_tables(*arguments, length=12, samples=samples)

    together, backwards, more = (
        run([0, 1, 2, 3, 4]),
        run([4, 3, 2, 1, 0]),
        run([0, 1, 2, 3, 4], samples=5),
    )
    for sentence in range(5):
        alone = run([sentence])
        for other, place in ((alone, 0), (backwards, 4 - sentence), (more, sentence)):
            np.testing.assert_array_equal(
                other.tokens[place, :3], together.tokens[sentence]
            )
            np.testing.assert_array_equal(
                other.finished[place, :3], together.finished[sentence]
            )
            np.testing.assert_allclose(
                other.scores[place, :3], together.scores[sentence], rtol=1e-6
            )
    assert len({tuple(row) for row in more.tokens[2].tolist()}) > 1, (
        "samples of a sentence are drawn independently"
    )
    assert (run([0, 1, 2, 3, 4], seed=1).tokens != together.tokens).any()
    np.testing.assert_array_equal(run([0, 1, 2, 3, 4]).tokens, together.tokens)


@pytest.mark.parametrize("temperature", [0.0, 1e-38, 1e-5])
def test_without_heat_sampling_is_greedy(temperature):
    """The lower the temperature, the more certain the most probable token; at 0 it
    is alone.
    """
    tables = random_tables(73, 4, STATES, VOCABULARY)
    greedy = greedy_tables(tables, limits(7, 7, 4, 1), jnp.float32(0.6), length=7)
    cold = values(temperature=temperature)
    result = sample_tables(
        tables, limits(7, 7, 4, 1), keys(*range(4)), cold, length=7, samples=2
    )
    for name, one, other in zip(greedy._fields, greedy, result, strict=True):
        if name == "iterations":
            assert one == other
            continue
        for sample in range(2):
            np.testing.assert_allclose(
                other[:, sample], one[:, 0], rtol=1e-6, err_msg=name
            )


def test_scores_of_samples_are_the_models():
    """Log-probability and score are those of the model, whatever was cut off to
    draw.
    """
    tables = random_tables(74, 3, STATES, VOCABULARY, -1.0)
    cold = values(temperature=0.5, top_k=3, top_p=0.9)
    result = sample_tables(
        tables, limits(7, 5, 2), keys(0, 1, 2), cold, length=7, samples=4
    )
    for sentence, sample in itertools.product(range(3), range(4)):
        size = int(result.lengths[sentence, sample])
        tokens = tuple(result.tokens[sentence, sample].tolist())
        assert set(tokens[size:]) <= {PAD}
        assert result.finished[sentence, sample] == (tokens[size - 1] == EOS)
        total = rescore(tables[sentence], tokens[:size])
        np.testing.assert_allclose(
            result.log_probabilities[sentence, sample], total, rtol=2e-6
        )
        np.testing.assert_allclose(
            result.scores[sentence, sample], score(total, size, 0.6), rtol=2e-6
        )


def test_samples_keep_to_constraints():
    """What may not come is never drawn, and a dead end leaves an empty sample."""
    tables = random_tables(75, 2, STATES, VOCABULARY, 2.0)
    constraints = Constraints(min_lengths=limits(4, 99), no_repeat_ngram=jnp.int32(1))
    found = sample_tables(
        tables,
        limits(9, 9),
        keys(0, 1),
        values(),
        length=9,
        samples=50,
        constraints=constraints,
    )
    # Three words that may come once each, then the end, which the second sentence may
    # not have.
    assert (found.lengths[0] == 4).all()
    assert found.finished[0].all()
    assert all(sorted(row[:3]) == [3, 4, 5] for row in found.tokens[0].tolist())
    assert (found.lengths[1] == 0).all()
    assert np.isneginf(found.scores[1]).all()
    assert (found.tokens[1] == PAD).all()
    assert not any(np.isnan(field).any() for field in found)


def test_no_samples_are_a_fault_of_the_caller():
    tables = jnp.asarray(random_tables(1, 1, 6, 6))
    with pytest.raises(
        ValueError, match=r"at least 1 hypothesis \(beam_size, samples\), not 0"
    ):
        sample_search(
            table_step(tables, 1),
            empty_cache(1),
            SearchRules(
                beam_size=0, n_best=0, max_lengths=limits(3), length=3, alpha=0.6, **IDS
            ),
            keys(0),
        )
