import doctest

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import lax
from search.search_oracle import (
    BOS,
    EOS,
    IDS,
    PAD,
    assert_same,
    exhaustive_best,
    greedy_tables,
    hypotheses,
    limits,
    random_tables,
    reference_beam,
    rescore,
    score,
    search_tables,
)

from jaxformer.search import beam as search
from jaxformer.search import candidates as ranking
from jaxformer.search import scoring
from jaxformer.search.beam import beam_search
from jaxformer.search.config import LENGTH_PENALTIES
from jaxformer.search.constraints import Constraints
from jaxformer.search.rules import Sampling, SearchRules
from jaxformer.search.single import greedy_search, sample_search
from jaxformer.translation import batch as batch_search

ALPHAS = (-1.0, 0.0, 0.6, 1.0, 2.0)
STATES, VOCABULARY, LENGTH = 4099, 6, 7
# The same examples each time; no times are judged.
steady = settings(
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=20,
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.mark.parametrize("states", ["last token", "whole history"])
@pytest.mark.parametrize(("vocabulary", "length"), [(4, 6), (5, 4)])
@pytest.mark.parametrize("penalty", LENGTH_PENALTIES)
def test_a_complete_beam_finds_what_exhaustive_search_finds(
    penalty, vocabulary, length, states
):
    """A beam of V^L is exhaustive search: the same best and score for every penalty
    and alpha.
    """
    count = vocabulary if states == "last token" else STATES
    for seed in range(3):
        tables = random_tables(seed, 1, count, vocabulary, ends=seed - 2.0)
        for alpha in ALPHAS:
            result = search_tables(
                tables,
                limits(length),
                jnp.float32(alpha),
                length=length,
                beam_size=vocabulary**length,
                penalty=penalty,
            )
            assert_same(
                hypotheses(result, 0),
                [exhaustive_best(tables[0], length, alpha, penalty)],
            )


@pytest.mark.parametrize("beam_size", [1, 3, 5])
@steady
@given(
    seed=st.integers(0, 10_000),
    ends=st.floats(-5, 3),
    alpha=st.one_of(st.sampled_from(ALPHAS), st.floats(-2, 3, width=32)),
    lengths=st.tuples(*[st.integers(0, LENGTH)] * 3),
    last_token_alone=st.booleans(),
    penalty=st.sampled_from(LENGTH_PENALTIES),
)
def test_beam_search_equals_plain_lists(
    beam_size, seed, ends, alpha, lengths, last_token_alone, penalty
):
    """Every hypothesis, score and flag is that of a search which never stops early.

    So the stop rule is sound for every penalty and either sign of alpha, the best
    finished hypotheses are kept, limits are each sentence's own, the live set never
    becomes empty, also with 2 * beam > V, one hypothesis is alive at first, the cache
    follows its hypothesis, and unfinished hypotheses are normalised and flagged.
    """
    tables = random_tables(
        seed, 3, VOCABULARY if last_token_alone else STATES, VOCABULARY, ends
    )
    if last_token_alone:  # one shape for the compiler
        tables = np.concatenate(
            [tables, np.zeros((3, STATES - VOCABULARY, VOCABULARY), np.float32)], axis=1
        )
    arguments = (tables, limits(*lengths), jnp.float32(alpha))
    result = search_tables(
        *arguments,
        length=LENGTH,
        beam_size=beam_size,
        n_best=beam_size,
        penalty=penalty,
    )
    # This one stops as soon as the best is certain.
    first = search_tables(
        *arguments, length=LENGTH, beam_size=beam_size, penalty=penalty
    )
    for sentence, limit in enumerate(lengths):
        expected = reference_beam(
            tables[sentence],
            limit,
            float(np.float32(alpha)),
            beam_size,
            penalty=penalty,
        )
        assert_same(hypotheses(result, sentence), expected)
        assert_same(hypotheses(first, sentence), expected[:1])
    assert first.iterations <= result.iterations <= max(lengths)


@steady
@given(
    seed=st.integers(0, 10_000),
    ends=st.floats(-5, 3),
    lengths=st.tuples(*[st.integers(0, LENGTH)] * 4),
)
def test_a_beam_of_one_is_greedy_search(seed, ends, lengths):
    """Beam 1 with alpha 0 returns what greedy search returns, field by field."""
    tables = random_tables(seed, 4, STATES, VOCABULARY, ends)
    greedy = greedy_tables(tables, limits(*lengths), jnp.float32(0), length=LENGTH)
    beam = search_tables(
        tables, limits(*lengths), jnp.float32(0), length=LENGTH, beam_size=1
    )
    for name, one, other in zip(greedy._fields, greedy, beam, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, err_msg=name)
    for sentence in range(4):
        hypotheses(greedy, sentence)


@pytest.mark.parametrize("beam_size", [0, 1, 4])
def test_a_sentence_does_not_see_its_neighbours(beam_size):
    """Alone, in a batch, and in another order, each sentence gets the same result,
    whatever its neighbours' limits.

    Some finish in the first steps and some never do; beam size 0 stands for greedy
    search.
    """
    ends = [6.0, -8.0, 0.0, -1.0, 1.0, -2.0, 9.0]
    tables = np.concatenate(
        [random_tables(50 + i, 1, 97, 11, end) for i, end in enumerate(ends)]
    )
    max_lengths = np.array([20, 20, 5, 0, 13, 1, 17])

    def run(chosen):
        arguments = (tables[chosen], limits(*max_lengths[chosen]), jnp.float32(0.6))
        if not beam_size:
            return greedy_tables(*arguments, length=20)
        return search_tables(
            *arguments, length=20, beam_size=beam_size, n_best=beam_size
        )

    together = run(np.arange(7))
    backwards = run(np.arange(7)[::-1])
    iterations = []
    for sentence in range(7):
        expected = hypotheses(together, sentence)
        alone = run(np.array([sentence]))
        iterations.append(int(alone.iterations))
        assert_same(hypotheses(alone, 0), expected)
        assert_same(hypotheses(backwards, 6 - sentence), expected)
    assert together.iterations == max(iterations)
    assert min(iterations) == 0


def test_the_width_of_the_result_changes_nothing():
    """A wider result has more padding and nothing else; a limit beyond the width is
    cut to it.
    """
    tables = random_tables(3, 2, STATES, VOCABULARY, -3.0)
    narrow = search_tables(
        tables, limits(6, 4), jnp.float32(1), length=6, beam_size=3, n_best=3
    )
    wide = search_tables(
        tables, limits(6, 4), jnp.float32(1), length=9, beam_size=3, n_best=3
    )
    beyond = search_tables(
        tables, limits(99, 4), jnp.float32(1), length=6, beam_size=3, n_best=3
    )
    for sentence in range(2):
        assert (
            hypotheses(narrow, sentence)
            == hypotheses(wide, sentence)
            == hypotheses(beyond, sentence)
        )


@pytest.mark.parametrize("alpha", ALPHAS)
def test_fewer_hypotheses_are_the_first_of_more(alpha):
    """n_best = 5 begins with what n_best = 1 and 3 return, though these stop
    earlier.
    """
    tables = random_tables(8, 3, STATES, VOCABULARY, 1.0)
    runs = {
        n: search_tables(
            tables,
            limits(*[LENGTH] * 3),
            jnp.float32(alpha),
            length=LENGTH,
            beam_size=5,
            n_best=n,
        )
        for n in (1, 3, 5)
    }
    for sentence in range(3):
        many = hypotheses(runs[5], sentence)
        assert len(many) == 5
        assert hypotheses(runs[1], sentence) == many[:1]
        assert hypotheses(runs[3], sentence) == many[:3]
    assert runs[1].iterations <= runs[3].iterations <= runs[5].iterations


def test_scores_are_those_of_rescoring():
    """Log-probability, length and score are those of the returned tokens given to
    the model.
    """
    tables = random_tables(11, 3, STATES, VOCABULARY)
    result = search_tables(
        tables, limits(7, 3, 1), jnp.float32(0.6), length=LENGTH, beam_size=4, n_best=4
    )
    for sentence in range(3):
        for hypothesis in hypotheses(result, sentence):
            total = rescore(tables[sentence], hypothesis.tokens)
            np.testing.assert_allclose(hypothesis.log_probability, total, rtol=2e-6)
            np.testing.assert_allclose(
                hypothesis.score, score(total, len(hypothesis.tokens), 0.6), rtol=2e-6
            )


def test_the_cache_follows_its_hypothesis():
    """After each step, a cache that records its inputs holds the past of each live
    hypothesis.
    """
    batch, width, length = 3, 4, 9
    tables = jnp.asarray(random_tables(21, batch, VOCABULARY, VOCABULARY, -9.0))

    def step(tokens, cache):
        seen = (
            cache["seen"]
            .at[:, :, cache["position"]]
            .set(tokens[:, None].astype(jnp.bfloat16))
        )
        cache = {
            "seen": seen,
            "sentence": cache["sentence"],
            "position": cache["position"] + 1,
        }
        return tables[cache["sentence"], tokens], cache

    rules = search.SearchRules(
        max_lengths=limits(*[length] * batch),
        alpha=jnp.float32(0.6),
        length=length,
        beam_size=width,
        n_best=1,
        **IDS,
    )
    state = search.beam_init(
        rules,
        {
            "seen": jnp.full((batch * width, 2, length), -1, jnp.bfloat16),
            # [el0, el0, el1, el1]: rows of a sentence are adjacent
            "sentence": jnp.repeat(jnp.arange(batch), width),
            "position": jnp.zeros((), jnp.int32),
        },
    )
    advance = jax.jit(lambda state: search.beam_step(rules, step, state))
    moved = False
    for position in range(length):
        before = state.tokens
        state = advance(state)
        moved |= bool(
            jnp.any(state.tokens[:, :, : position + 1] != before[:, :, : position + 1])
        )
        seen = state.cache["seen"].reshape(batch, width, 2, length)
        assert state.cache["position"] == position + 1
        assert jnp.all(
            state.cache["sentence"].reshape(batch, width) == jnp.arange(batch)[:, None]
        )
        for copy in range(2):
            np.testing.assert_array_equal(
                seen[:, :, copy, : position + 1], state.tokens[:, :, : position + 1]
            )
    assert moved, "no hypothesis changed its place: the test shows nothing"


def test_unfinished_hypotheses_are_normalised_and_flagged():
    """Where nothing can end, the best live hypotheses come back, normalised, with
    finished = False.
    """
    tables = random_tables(31, 3, STATES, VOCABULARY, -np.inf)
    result = search_tables(
        tables, limits(7, 4, 2), jnp.float32(0.6), length=LENGTH, beam_size=3, n_best=3
    )
    greedy = greedy_tables(tables, limits(7, 4, 2), jnp.float32(0.6), length=LENGTH)
    assert not result.finished.any()
    assert not greedy.finished.any()
    for sentence, limit in enumerate((7, 4, 2)):
        assert_same(
            hypotheses(result, sentence),
            reference_beam(tables[sentence], limit, 0.6, 3),
        )
        for hypothesis in [
            *hypotheses(result, sentence),
            *hypotheses(greedy, sentence),
        ]:
            assert len(hypothesis.tokens) == limit
            np.testing.assert_allclose(
                hypothesis.score,
                score(rescore(tables[sentence], hypothesis.tokens), limit, 0.6),
                rtol=2e-6,
            )


def test_finished_hypotheses_come_before_unfinished_ones():
    """A result with too few finished hypotheses is filled up with unfinished ones."""
    tables = random_tables(32, 3, STATES, VOCABULARY, -3.0)
    found = hypotheses(
        search_tables(
            tables,
            limits(3, 7, 7),
            jnp.float32(1),
            length=LENGTH,
            beam_size=5,
            n_best=5,
        ),
        0,
    )
    assert_same(found, reference_beam(tables[0], 3, 1.0, 5))
    assert len({hypothesis.finished for hypothesis in found}) == 2


def test_a_limit_of_zero_gives_the_empty_hypothesis():
    """A sentence that may have no token gets none, without a call of the model and
    without a NaN.
    """
    tables = random_tables(33, 2, STATES, VOCABULARY)
    for result in (
        search_tables(
            tables, limits(0, 0), jnp.float32(0.6), length=5, beam_size=2, n_best=2
        ),
        greedy_tables(tables, limits(0, 0), jnp.float32(0.6), length=5),
        search_tables(tables, limits(0, 0), jnp.float32(0.6), length=0, beam_size=2),
        greedy_tables(tables, limits(0, 0), jnp.float32(0.6), length=0),
    ):
        assert result.iterations == 0
        assert hypotheses(result, 0) == [((), 0.0, 0.0, False)]


@pytest.mark.parametrize("beam_size", [0, 1, 3])
def test_what_is_forbidden_is_never_generated(beam_size):
    """Pad, bos and further forbidden tokens are never chosen, even where the model
    likes them best.

    The scores stay those of the model. Beam size 0 stands for greedy search.
    """
    tables = random_tables(41, 4, STATES, 8)
    tables[:, :, [PAD, BOS, 5]] += 20
    banned = Constraints(banned_tokens=jnp.arange(8) == 5)
    arguments = (tables, limits(*[LENGTH] * 4), jnp.float32(0.6))
    if beam_size:
        result = search_tables(
            *arguments,
            length=LENGTH,
            beam_size=beam_size,
            n_best=beam_size,
            constraints=banned,
        )
    else:
        result = greedy_tables(*arguments, length=LENGTH, constraints=banned)
    for sentence in range(4):
        for hypothesis in hypotheses(result, sentence):  # which looks for pad and bos
            assert 5 not in hypothesis.tokens
            np.testing.assert_allclose(
                hypothesis.log_probability,
                rescore(tables[sentence], hypothesis.tokens),
                rtol=2e-6,
            )
        if beam_size:
            expected = reference_beam(
                tables[sentence], LENGTH, 0.6, beam_size, forbidden=(5,)
            )
            assert_same(hypotheses(result, sentence), expected)


@pytest.mark.parametrize("beam_size", [2, 3, 4])
def test_ends_do_not_empty_the_beam(beam_size):
    """Where the likeliest token of every hypothesis ends it, a whole beam of others
    lives on, also with 2 W > V.
    """
    table = random_tables(beam_size, 1, 1, 5)[0, 0]
    table[EOS] = table.max() + 1.0
    logits = jnp.asarray(table)

    def step(tokens, cache):
        return logits[None].repeat(tokens.shape[0], axis=0), cache

    rules = search.SearchRules(
        max_lengths=limits(4),
        alpha=jnp.float32(0.6),
        length=4,
        beam_size=beam_size,
        n_best=beam_size,
        **IDS,
    )
    state = search.beam_init(rules, None)
    for _ in range(3):
        state = search.beam_step(rules, step, state)
    assert np.isfinite(state.values).all()
    assert np.isfinite(state.finished.scores).all()
    assert (
        len({tuple(row) for row in np.asarray(state.tokens[0]).tolist()}) == beam_size
    )


def test_impossible_columns_and_a_dead_end():
    """Logits of minus infinity make no NaN, and a beam that can only end leaves
    places empty.
    """
    tables = random_tables(42, 2, STATES, VOCABULARY)
    tables[:, :, 3:] = -np.inf
    # the first sentence can say nothing, the second one word, over and over
    tables[1, :, 3] = 0
    result = search_tables(
        tables, limits(5, 2), jnp.float32(0.6), length=5, beam_size=4, n_best=4
    )
    assert not any(np.isnan(leaf).any() for leaf in result)
    assert [hypothesis.tokens for hypothesis in hypotheses(result, 0)] == [(EOS,)]
    assert {hypothesis.tokens for hypothesis in hypotheses(result, 1)} == {
        (EOS,),
        (3, EOS),
        (3, 3),
    }


def test_log_probabilities_add_up_in_float32():
    """A model that computes in bfloat16 still gets float32 sums over a long output."""
    tables = random_tables(43, 1, 257, VOCABULARY, -np.inf).astype(jnp.bfloat16)
    exact = tables.astype(np.float32)
    for result in (
        search_tables(
            jnp.asarray(tables), limits(200), jnp.float32(0.6), length=200, beam_size=3
        ),
        greedy_tables(jnp.asarray(tables), limits(200), jnp.float32(0.6), length=200),
    ):
        assert result.scores.dtype == result.log_probabilities.dtype == jnp.float32
        (best,) = hypotheses(result, 0)
        assert len(best.tokens) == 200
        np.testing.assert_allclose(
            best.log_probability, rescore(exact[0], best.tokens), rtol=3e-6
        )


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("beam_size", [1, 2, 5])
def test_ties_go_to_the_lowest_index(alpha, beam_size):
    """Where every token is as probable as any other, the lowest place and id win,
    each time.
    """
    tables = np.zeros((3, STATES, VOCABULARY), np.float32)
    # Equal terms in equal number: hypotheses of one length tie exactly.
    arguments = (tables, limits(4, 4, 4), jnp.float32(alpha))
    result = search_tables(
        *arguments, length=LENGTH, beam_size=beam_size, n_best=beam_size
    )
    assert_same(hypotheses(result, 0), reference_beam(tables[0], 4, alpha, beam_size))
    assert hypotheses(greedy_tables(*arguments, length=LENGTH), 0)[0].tokens == (EOS,)


@steady
@given(
    seed=st.integers(0, 10_000),
    size=st.sampled_from([5, 64, 600, 1024, 1025, 1087, 4000]),
    count=st.sampled_from([1, 2, 4]),
    kinds=st.sampled_from([1, 3, 50]),
)
def test_the_largest_are_those_of_top_k(seed, size, count, kinds):
    """Ranking by blocks gives values, indices and the order of ties of
    ``lax.top_k``.
    """
    random = np.random.default_rng(seed)
    values = random.integers(0, kinds, (3, size)).astype(np.float32)
    values[random.random(values.shape) < random.choice([0, 0.5, 0.999])] = -np.inf
    for one, other in zip(
        LARGEST(values, count), lax.top_k(values, count), strict=True
    ):
        np.testing.assert_array_equal(one, other)


LARGEST = jax.jit(ranking.largest, static_argnums=1)


def test_a_fault_of_the_caller_is_named():
    """Each impossible argument raises an error that names it."""
    arguments = {"max_lengths": limits(3, 3), "length": 3, "alpha": 0.6}

    def step(tokens, cache):
        return jnp.zeros((tokens.shape[0], 5)), cache

    with pytest.raises(
        ValueError, match="n_best must be from 1 to the beam size 2, not 3"
    ):
        beam_search(step, None, SearchRules(beam_size=2, n_best=3, **arguments, **IDS))
    with pytest.raises(
        ValueError, match=r"at least 1 hypothesis \(beam_size, samples\), not 0"
    ):
        beam_search(step, None, SearchRules(beam_size=0, **arguments, **IDS))
    with pytest.raises(
        ValueError,
        match=r"max_lengths must have a number for each sentence, .* not \(\)",
    ):
        beam_search(
            step,
            None,
            SearchRules(beam_size=2, **{**arguments, "max_lengths": 3}, **IDS),
        )
    for look, width in ((greedy_search, 1), (beam_search, 2)):
        with pytest.raises(
            ValueError, match="eos_id 5 is not in 0 to 4, the tokens that have logits"
        ):
            look(
                step,
                None,
                SearchRules(beam_size=width, **arguments, **{**IDS, "eos_id": 5}),
            )
    with pytest.raises(ValueError, match="greedy search has a beam_size of 1, not 2"):
        greedy_search(step, None, SearchRules(beam_size=2, **arguments, **IDS))
    with pytest.raises(ValueError, match="are both the number of samples, not 2, 1"):
        sample_search(
            step,
            None,
            SearchRules(beam_size=2, sampling=Sampling(), **arguments, **IDS),
            None,
        )
    with pytest.raises(ValueError, match="eos_id 1 must differ"):
        beam_search(
            step, None, SearchRules(beam_size=2, **arguments, **{**IDS, "bos_id": EOS})
        )
    with pytest.raises(ValueError, match="eos_id 0 must differ"):
        greedy_search(
            step, None, SearchRules(**arguments, bos_id=BOS, eos_id=PAD, pad_id=PAD)
        )
    with pytest.raises(
        ValueError,
        match=r"cache\['keys'\] has shape \(3, 3\); .* the 4 rows or the 2 sentences",
    ):
        beam_search(
            step,
            {"keys": jnp.zeros((3, 3))},
            SearchRules(beam_size=2, **arguments, **IDS),
        )
    with pytest.raises(ValueError, match=r"cache\[0\] has shape \(4,\); .* the 2 rows"):
        greedy_search(step, [jnp.zeros(4)], SearchRules(**arguments, **IDS))


@pytest.mark.parametrize("module", [batch_search, search, scoring])
def test_the_examples_in_docstrings_run(module):
    """What the documentation shows is what happens."""
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed
