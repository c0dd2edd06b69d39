"""Coverage, diverse groups and required phrases, alone and with everything else,
against lists and all hypotheses.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from search import constraint_oracle
from search.constraint_oracle import arrays, reference_allow, reference_greedy, together
from search.search_oracle import (
    IDS,
    Hypothesis,
    assert_same,
    empty_cache,
    exhaustive_best,
    greedy_tables,
    holds,
    hypotheses,
    limits,
    next_log_probabilities,
    random_attention,
    random_tables,
    reference_beam,
    reference_cover,
    rescore,
    sample_tables,
    score,
    search_tables,
    table_step,
)

from jaxformer.search.config import LENGTH_PENALTIES
from jaxformer.search.constraints import (
    Constraints,
    next_phrase_tokens,
    satisfied_phrases,
)
from jaxformer.search.rules import SearchRules
from jaxformer.search.single import Sampling, greedy_search

ALPHAS = (-1.0, 0.0, 0.6, 1.0, 2.0)
STATES, VOCABULARY, LENGTH = (
    constraint_oracle.STATES,
    constraint_oracle.VOCABULARY,
    constraint_oracle.LENGTH,
)
steady = settings(
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=15,
    suppress_health_check=[HealthCheck.too_slow],
)


betas = st.sampled_from([0.0, 0.2, 1.0, 5.0])


# --- everything at once, where trying everything is possible ---

# two words, and ends: 2^5 hypotheses live before the last of six steps, which makes 96
# of them
LITTLE, SHORT = 5, 6
words = st.sampled_from([3, 4])
some = {
    "min_length": st.integers(0, 4),
    "banned": st.sampled_from([(), (4,)]),
    "phrases": st.lists(st.lists(words, min_size=2, max_size=3).map(tuple), max_size=2),
    "ngram": st.sampled_from([2, 3]),
    "penalty": st.sampled_from([0.5, 2.0]),
    "required": st.lists(
        st.lists(words, min_size=1, max_size=2).map(tuple), min_size=1, max_size=2
    ),
    "prefixes": st.lists(
        st.lists(st.sampled_from([3, 4, -1]), max_size=3).map(tuple),
        min_size=1,
        max_size=3,
    ),
}
none = constraint_oracle.NONE


@st.composite
def combined(draw):
    return {name: draw(st.one_of(st.just(none[name]), some[name])) for name in none}


def little_arrays(rule: dict) -> Constraints:
    return arrays([rule])._replace(
        banned_tokens=jnp.asarray(np.isin(np.arange(LITTLE), rule["banned"]))
    )


@pytest.mark.parametrize(
    ("groups", "name"),
    [*((1, name) for name in ("nothing", *none, "all")), (2, "nothing"), (2, "all")],
)
@settings(steady, max_examples=5)
@given(
    seed=st.integers(0, 10_000),
    ends=st.floats(-3, 2),
    alpha=st.one_of(st.sampled_from(ALPHAS), st.floats(-2, 3, width=32)),
    beta=betas,
    diversity=st.sampled_from([0.0, 0.7, 5.0]),
    data=st.data(),
)
def test_wide_beams_find_what_exhaustive_search_finds(
    groups, name, seed, ends, alpha, beta, diversity, data
):
    """The best of all hypotheses for either sign of alpha, with coverage, each
    constraint, all, and groups. Where constraints leave none that ends, the search says
    so.
    """
    rule = (
        data.draw(combined())
        if name == "all"
        else {**none, **({name: data.draw(some[name])} if name in some else {})}
    )
    table = random_tables(seed, 1, STATES, LITTLE, ends)
    attention = random_attention(seed, 1, STATES, 3)
    result = search_tables(
        table,
        limits(SHORT),
        jnp.float32(alpha),
        length=SHORT,
        beam_size=96 * groups,
        groups=groups,
        diversity=jnp.float32(diversity),
        constraints=little_arrays(rule),
        attention=attention,
        beta=jnp.float32(beta),
    )
    allow = functools.partial(reference_allow, **rule)
    cover = reference_cover(attention[0], LITTLE, float(np.float32(beta)))
    expected = exhaustive_best(
        table[0], SHORT, float(np.float32(alpha)), allow=allow, cover=cover
    )
    found = [hypothesis for hypothesis in hypotheses(result, 0) if hypothesis.finished]
    assert_same(found, [expected] if expected.score > -math.inf else [])


@pytest.mark.parametrize("penalty", LENGTH_PENALTIES)
@settings(steady, max_examples=5)
@given(
    seed=st.integers(0, 10_000),
    ends=st.floats(-3, 2),
    alpha=st.floats(-2, 3, width=32),
    beta=betas,
)
def test_wide_beams_are_exhaustive_under_every_length_penalty(
    penalty, seed, ends, alpha, beta
):
    """The same for each length penalty, with coverage."""
    table, attention = (
        random_tables(seed, 1, STATES, LITTLE, ends),
        random_attention(seed, 1, STATES, 3),
    )
    result = search_tables(
        table,
        limits(SHORT),
        jnp.float32(alpha),
        length=SHORT,
        beam_size=96,
        penalty=penalty,
        attention=attention,
        beta=jnp.float32(beta),
    )
    cover = reference_cover(attention[0], LITTLE, float(np.float32(beta)))
    assert_same(
        hypotheses(result, 0),
        [exhaustive_best(table[0], SHORT, alpha, penalty, cover=cover)],
    )


# --- narrow beams, against plain lists ---


@pytest.mark.parametrize(("beam_size", "groups"), [(4, 1), (4, 2), (3, 3)])
@settings(steady, max_examples=10)
@given(
    seed=st.integers(0, 10_000),
    ends=st.floats(-4, 3),
    alpha=st.one_of(st.sampled_from(ALPHAS), st.floats(-2, 3, width=32)),
    beta=betas,
    diversity=st.sampled_from([0.0, 0.3, 1.0, 8.0]),
    rules=together(),
)
def test_all_options_together_equal_plain_lists(
    beam_size, groups, seed, ends, alpha, beta, diversity, rules
):
    """Every hypothesis, score and flag is that of a search over lists which never stops
    early, whatever is combined.

    So the stop rule stays sound with coverage, groups and banks, and fewer hypotheses
    are the first of more.
    """
    tables, attention = (
        random_tables(seed, 2, STATES, VOCABULARY, ends),
        random_attention(seed, 2, STATES, 4),
    )
    options = {
        "constraints": arrays(rules),
        "attention": attention,
        "beta": jnp.float32(beta),
    }
    options |= {
        "groups": groups,
        "diversity": jnp.float32(diversity),
        "beam_size": beam_size,
        "length": LENGTH,
    }
    arguments = (tables, limits(LENGTH, 4), jnp.float32(alpha))
    result = search_tables(*arguments, n_best=beam_size, **options)
    first = search_tables(*arguments, **options)
    for sentence, limit in enumerate((LENGTH, 4)):
        expected = reference_beam(
            tables[sentence],
            limit,
            float(np.float32(alpha)),
            beam_size,
            allow=functools.partial(reference_allow, **rules[sentence]),
            cover=reference_cover(
                attention[sentence], VOCABULARY, float(np.float32(beta))
            ),
            required=rules[sentence]["required"],
            groups=groups,
            diversity=float(np.float32(diversity)),
        )
        assert_same(hypotheses(result, sentence), expected)
        assert_same(hypotheses(first, sentence), expected[:1])
    assert first.iterations <= result.iterations


# --- coverage ---


@steady
@given(seed=st.integers(0, 10_000), ends=st.floats(-4, 3), beta=betas, rules=together())
def test_coverage_enters_the_scores_of_greedy_search(seed, ends, beta, rules):
    """The choice is the same and the score loses beta times the penalty, in
    unfinished hypotheses too.
    """
    tables, attention = (
        random_tables(seed, 2, STATES, VOCABULARY, ends),
        random_attention(seed, 2, STATES, 4),
    )
    rules = [{**rule, "required": ()} for rule in rules]
    options = {
        "constraints": arrays(rules, beam=False),
        "attention": attention,
        "beta": jnp.float32(beta),
    }
    result = greedy_tables(
        tables, limits(LENGTH, 4), jnp.float32(0.6), length=LENGTH, **options
    )
    for sentence, limit in enumerate((LENGTH, 4)):
        allow = functools.partial(reference_allow, **rules[sentence])
        cover = reference_cover(
            attention[sentence], VOCABULARY, float(np.float32(beta))
        )
        expected = reference_greedy(tables[sentence], limit, 0.6, allow)
        expected = [
            each._replace(score=each.score + cover(each.tokens)) for each in expected
        ]
        assert_same(hypotheses(result, sentence), expected)


def test_coverage_enters_the_scores_of_samples():
    """Each sample is charged for what it has not attended to."""
    table, attention = (
        random_tables(3, 1, STATES, VOCABULARY),
        random_attention(3, 1, STATES, 4),
    )
    keys = jax.random.split(jax.random.key(3), 1)
    result = sample_tables(
        table,
        limits(5),
        keys,
        Sampling(),
        length=5,
        samples=8,
        attention=attention,
        beta=jnp.float32(0.7),
    )
    cover = reference_cover(attention[0], VOCABULARY, float(np.float32(0.7)))
    for row, length, found in zip(
        result.tokens[0], result.lengths[0], result.scores[0], strict=True
    ):
        tokens = tuple(row[: int(length)].tolist())
        expected = score(
            rescore(table[0], tokens), len(tokens), float(np.float32(0.6))
        ) + cover(tokens)
        np.testing.assert_allclose(found, expected, rtol=2e-6)


def test_coverage_can_change_the_winner_and_spares_the_empty_hypothesis():
    """A strong penalty prefers what attends to everything; a limit of 0 gives the
    score 0.
    """
    tables, attention = (
        random_tables(4, 6, STATES, VOCABULARY, 2.0),
        random_attention(4, 6, STATES, 4),
    )
    options = {"length": LENGTH, "beam_size": 6, "attention": attention}
    weak, strong = (
        search_tables(
            tables,
            limits(*[LENGTH] * 6),
            jnp.float32(0.6),
            beta=jnp.float32(beta),
            **options,
        )
        for beta in (0.0, 10.0)
    )
    assert (strong.lengths > weak.lengths).any()
    assert (strong.log_probabilities <= weak.log_probabilities + 1e-5).all()
    empty = search_tables(
        tables, limits(*[0] * 6), jnp.float32(0.6), beta=jnp.float32(3.0), **options
    )
    assert hypotheses(empty, 0) == [Hypothesis((), 0.0, 0.0, False)]


# --- groups ---


def test_groups_without_diversity_are_one_beam_of_their_width():
    """Strength 0 gives each group what a beam of its width finds, which is kept
    once.
    """
    tables = random_tables(11, 3, STATES, VOCABULARY)
    arguments = (tables, limits(LENGTH, 5, 2), jnp.float32(0.6))
    grouped = search_tables(
        *arguments,
        length=LENGTH,
        beam_size=6,
        n_best=6,
        groups=2,
        diversity=jnp.float32(0),
    )
    plain = search_tables(*arguments, length=LENGTH, beam_size=3, n_best=3)
    for sentence in range(3):
        beam = hypotheses(plain, sentence)
        found = hypotheses(grouped, sentence)
        assert_same(
            [each for each in found if each.finished],
            [each for each in beam if each.finished],
        )


def test_strong_diversity_makes_groups_begin_differently():
    """With more strength than any two log-probabilities differ by, groups of one
    take different first words.
    """
    tables = random_tables(12, 4, STATES, VOCABULARY, -np.inf)
    result = search_tables(
        *(tables, limits(*[LENGTH] * 4), jnp.float32(0.6)),
        length=LENGTH,
        beam_size=4,
        n_best=4,
        groups=4,
        diversity=jnp.float32(100),
    )
    for sentence in range(4):
        found = hypotheses(result, sentence)
        assert len(found) == 4
        for place in range(LENGTH):
            assert len({each.tokens[place] for each in found}) == 4
        for each in found:
            np.testing.assert_allclose(
                each.log_probability, rescore(tables[sentence], each.tokens), rtol=2e-6
            )


# --- required phrases ---


@steady
@given(
    seed=st.integers(0, 10_000),
    ends=st.floats(-6, 3),
    required=st.lists(
        st.lists(st.sampled_from(range(3, 7)), min_size=1, max_size=3).map(tuple),
        min_size=1,
        max_size=3,
    ),
    beam_size=st.sampled_from([2, 5]),
)
def test_required_phrases_come_where_there_is_room(seed, ends, required, beam_size):
    """Given room for all phrases and the end, a hypothesis ends and holds them;
    without it, none ends at all.
    """
    tables = np.repeat(random_tables(seed, 1, STATES, VOCABULARY, ends), 2, axis=0)
    room = sum(len(phrase) for phrase in required) + 1
    rules = [{**none, "required": required}] * 2
    result = search_tables(
        *(tables, limits(room, max(map(len, required))), jnp.float32(0.6)),
        length=10,
        beam_size=beam_size,
        constraints=arrays(rules)._replace(repetition_penalty=None),
    )
    (best,) = hypotheses(result, 0)
    assert best.finished
    assert all(holds(best.tokens, phrase) for phrase in required)
    assert not any(each.finished for each in hypotheses(result, 1))


def test_a_neighbour_without_phrases_does_not_notice():
    """A sentence that requires nothing gets the very result of a search without
    banks.
    """
    tables = random_tables(21, 2, STATES, VOCABULARY, -1.0)
    arguments = (tables, limits(LENGTH, LENGTH), jnp.float32(0.6))
    rules = [{**none, "required": [(3, 3), (4,)]}, none]
    phrases = Constraints(required=arrays(rules).required)
    banks = search_tables(
        *arguments, length=LENGTH, beam_size=3, n_best=3, constraints=phrases
    )
    plain = search_tables(*arguments, length=LENGTH, beam_size=3, n_best=3)
    assert hypotheses(banks, 1) == hypotheses(plain, 1)
    assert hypotheses(banks, 0) != hypotheses(plain, 0)
    assert all(
        holds(each.tokens, (3, 3)) and 4 in each.tokens
        for each in hypotheses(banks, 0)
        if each.finished
    )


def test_what_of_phrases_has_come():
    """A phrase is satisfied anywhere, its progress restarts where it breaks off, and
    phrases may overlap.
    """
    # tokens after the position do not count
    tokens = jnp.array([[2, 5, 3, 4, 3, 4, 9, 9]] * 2, jnp.int32)
    phrases = jnp.array(
        [[[3, 4, -1], [4, 3, 4], [3, 4, 6], [9, -1, -1], [-1, -1, -1]]] * 2, jnp.int32
    )
    assert satisfied_phrases(tokens, jnp.int32(5), phrases)[0].tolist() == [
        True,
        True,
        False,
        False,
        True,
    ]
    assert satisfied_phrases(tokens, jnp.int32(4), phrases)[0].tolist() == [
        True,
        False,
        False,
        False,
        True,
    ]
    assert next_phrase_tokens(tokens, jnp.int32(5), phrases)[0].tolist() == [
        -1,
        -1,
        6,
        9,
        -1,
    ]
    assert next_phrase_tokens(tokens, jnp.int32(4), phrases)[0].tolist() == [
        -1,
        4,
        4,
        9,
        -1,
    ]
    assert next_phrase_tokens(tokens, jnp.int32(0), phrases)[0].tolist() == [
        3,
        4,
        3,
        9,
        -1,
    ]


# --- token by token, and faults ---


@pytest.mark.parametrize("beam_size", [0, 1, 3])
def test_each_token_has_its_log_probability(beam_size):
    """Those of the model, token by token, under constraints that change values too;
    0 stands for greedy search.
    """
    tables = random_tables(31, 3, STATES, VOCABULARY, -1.0)
    arguments = (tables, limits(LENGTH, 4, 1), jnp.float32(0.6))
    options = {
        "length": LENGTH,
        "constraints": Constraints(repetition_penalty=jnp.float32(3.0)),
    }
    if beam_size:
        result = search_tables(
            *arguments, beam_size=beam_size, n_best=beam_size, **options
        )
    else:
        result = greedy_tables(*arguments, **options)
    assert result.token_log_probabilities.dtype == jnp.float32
    for sentence in range(3):
        for place, each in enumerate(hypotheses(result, sentence)):
            expected = [
                next_log_probabilities(tables[sentence], each.tokens[:t])[token]
                for t, token in enumerate(each.tokens)
            ]
            found = result.token_log_probabilities[sentence, place, : len(expected)]
            np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-6)


def test_what_makes_no_sense_is_refused():
    """Groups that do not divide the beam, and required phrases without a beam."""
    tables = jnp.asarray(random_tables(41, 1, VOCABULARY, VOCABULARY))
    with pytest.raises(
        ValueError, match="groups must divide the beam size 4, and 3 do not"
    ):
        SearchRules(
            max_lengths=limits(3), alpha=0.6, length=3, beam_size=4, groups=3, **IDS
        )
    required = Constraints(required=jnp.full((1, 1, 1), 3, jnp.int32))
    with pytest.raises(ValueError, match="required phrases need a beam search"):
        greedy_search(
            *(table_step(tables, 1), empty_cache(1)),
            SearchRules(
                max_lengths=limits(3), length=3, alpha=0.6, constraints=required, **IDS
            ),
        )
