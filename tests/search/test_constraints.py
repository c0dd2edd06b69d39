"""What may come next, against lists and loops: each constraint alone, and all of
them in every search.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from search.constraint_oracle import (
    LENGTH,
    NONE,
    STATES,
    VOCABULARY,
    WORDS,
    arrays,
    reference_allow,
    reference_greedy,
    together,
)
from search.search_oracle import (
    BOS,
    EOS,
    PAD,
    assert_same,
    greedy_tables,
    hypotheses,
    limits,
    random_tables,
    reference_beam,
    rescore,
    search_tables,
)

from jaxformer.search.beam import beam_search
from jaxformer.search.constraints import (
    FREE,
    Constraints,
    ban_repeated_ngrams,
    constrain,
)
from jaxformer.search.rules import SearchRules

steady = settings(
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=20,
    suppress_health_check=[HealthCheck.too_slow],
)


@functools.cache
def compiled():
    return jax.jit(constrain, static_argnums=4)


@pytest.mark.parametrize("name", NONE)
def test_each_constraint_alone(name):
    """Every value of every token, at each position of random histories, is that of a
    loop over lists.
    """
    random = np.random.default_rng(len(name))
    for trial in range(40):
        rule = {**NONE, name: _draw(name, random)}
        rows = 5
        tokens = np.full((rows, 1 + LENGTH), PAD, np.int32)
        tokens[:, 0] = BOS
        position = trial % LENGTH
        tokens[:, 1 : 1 + position] = random.choice(WORDS[:3], (rows, position))
        natural = np.log(random.dirichlet(np.ones(VOCABULARY), rows)).astype(np.float32)
        found = compiled()(
            arrays([rule] * rows), natural, tokens, jnp.int32(position), EOS
        )
        for row in range(rows):
            history = tuple(tokens[row, 1 : 1 + position].tolist())
            values = reference_allow(
                history, dict(enumerate(natural[row].tolist())), **rule
            )
            expected = [values.get(token, -math.inf) for token in range(VOCABULARY)]
            np.testing.assert_allclose(found[row], expected, rtol=1e-6)


def _draw(name, random):
    words = WORDS[:3]
    return {
        "min_length": int(random.integers(0, LENGTH + 2)),
        "banned": tuple(random.choice([EOS, *WORDS], 2).tolist()),
        "phrases": [
            tuple(random.choice(words, size).tolist()) for size in (1, 2, 2, 3)
        ],
        "ngram": int(random.integers(1, 4)),
        "penalty": float(np.float32(random.uniform(0.4, 3))),
        "required": [tuple(random.choice(words, size).tolist()) for size in (1, 2)],
        "prefixes": [
            tuple(random.choice([-1, *words], size).tolist()) for size in (4, 3, 4)
        ],
    }[name]


@pytest.mark.parametrize("beam_size", [0, 1, 3])
@steady
@given(
    seed=st.integers(0, 10_000),
    ends=st.floats(-4, 4),
    alpha=st.sampled_from([-1.0, 0.0, 0.6, 2.0]),
    rules=together(),
)
def test_searches_under_constraints_equal_plain_lists(
    beam_size, seed, ends, alpha, rules
):
    """Tokens, scores, log-probabilities and flags are those of a search over lists; 0
    stands for greedy search.

    The log-probability is the model's, whatever the constraints do to the score, and a
    dead end leaves an empty result.
    """
    tables = random_tables(seed, 2, STATES, VOCABULARY, ends)
    arguments = (tables, limits(LENGTH, 4), jnp.float32(alpha))
    if beam_size:
        result = search_tables(
            *arguments,
            length=LENGTH,
            beam_size=beam_size,
            n_best=beam_size,
            constraints=arrays(rules),
        )
    else:
        rules = [{**rule, "required": ()} for rule in rules]
        result = greedy_tables(
            *arguments, length=LENGTH, constraints=arrays(rules, beam=False)
        )
    assert not any(np.isnan(field).any() for field in result)
    for sentence, limit in enumerate((LENGTH, 4)):
        allow = functools.partial(reference_allow, **rules[sentence])
        if beam_size:
            required = rules[sentence]["required"]
            expected = reference_beam(
                tables[sentence],
                limit,
                alpha,
                beam_size,
                allow=allow,
                required=required,
            )
        else:
            expected = reference_greedy(tables[sentence], limit, alpha, allow)
        found = hypotheses(result, sentence)
        assert_same(found, expected)
        for hypothesis in found:
            np.testing.assert_allclose(
                hypothesis.log_probability,
                rescore(tables[sentence], hypothesis.tokens),
                rtol=2e-6,
                atol=1e-6,
            )


def test_constraints_that_ask_for_nothing_change_nothing():
    """Neutral values give the very bits of a search without constraints."""
    tables = random_tables(5, 2, STATES, VOCABULARY, -1.0)
    arguments = (tables, limits(LENGTH, 4), jnp.float32(0.6))
    for constraints in (FREE, arrays([NONE, NONE])):
        beam = search_tables(
            *arguments, length=LENGTH, beam_size=3, n_best=3, constraints=constraints
        )
        alone = FREE if constraints is FREE else constraints._replace(required=None)
        greedy = greedy_tables(*arguments, length=LENGTH, constraints=alone)
        if constraints is FREE:
            expected = (beam, greedy)
    for found, plain in zip((beam, greedy), expected, strict=True):
        for one, other in zip(found, plain, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("beam_size", [0, 1, 3])
def test_a_dead_end_gives_an_empty_result(beam_size):
    """Where no token is left, the result is empty and unfinished, without a NaN, and
    the neighbour does not notice.
    """
    tables = random_tables(6, 2, STATES, VOCABULARY, -1.0)
    # The first sentence may begin with a word, and then nothing at all may follow.
    rules = [
        {
            **NONE,
            "min_length": LENGTH,
            "ngram": 1,
            "banned": tuple(WORDS[1:]),
            "prefixes": [(3,)],
        },
        NONE,
    ]
    rules[1] = {**rules[0], "min_length": 0, "prefixes": ()}
    arguments = (tables, limits(LENGTH, LENGTH), jnp.float32(0.6))
    if beam_size:
        result = search_tables(
            *arguments,
            length=LENGTH,
            beam_size=beam_size,
            n_best=beam_size,
            constraints=arrays(rules),
        )
    else:
        result = greedy_tables(
            *arguments, length=LENGTH, constraints=arrays(rules, beam=False)
        )
    assert hypotheses(result, 0) == []
    assert not result.finished[0].any()
    assert np.isneginf(result.scores[0]).all()
    assert np.isneginf(result.log_probabilities[0]).all()
    assert (result.tokens[0] == PAD).all()
    assert hypotheses(result, 1)[0].tokens in {(EOS,), (3, EOS)}
    assert result.iterations <= 3, "the search goes on although nothing lives"


def test_a_prefix_goes_before_what_forbids_it():
    """A forced token comes although it is banned and repeated, with the
    log-probability that the model gives it.
    """
    tables = random_tables(7, 1, STATES, VOCABULARY)
    rule = {**NONE, "banned": (4,), "ngram": 1, "prefixes": [(4, 4, -1, 4)]}
    result = search_tables(
        tables,
        limits(LENGTH),
        jnp.float32(0),
        length=LENGTH,
        beam_size=3,
        n_best=3,
        constraints=arrays([rule]),
    )
    for hypothesis in hypotheses(result, 0):
        assert hypothesis.tokens[:2] == (4, 4)
        assert hypothesis.tokens[2] != 4
        assert hypothesis.tokens[3:4] in {(), (4,)}
        np.testing.assert_allclose(
            hypothesis.score,
            rescore(tables[0], hypothesis.tokens),
            rtol=2e-6,
            err_msg="nothing but the model's",
        )


def test_constraints_of_other_sentences_are_refused():
    """A constraint a sentence must have as many as the search."""
    with pytest.raises(
        ValueError, match="a constraint of 3 sentences does not fit the 4 rows"
    ):
        beam_search(
            lambda tokens, cache: (jnp.zeros((4, 5)), cache),
            None,
            SearchRules(
                max_lengths=limits(3, 3),
                length=3,
                beam_size=2,
                alpha=0.6,
                bos_id=BOS,
                eos_id=EOS,
                pad_id=PAD,
                constraints=Constraints(min_lengths=limits(1, 1, 1)),
            ),
        )


def test_ngrams_longer_than_any_output_end_at_once():
    """They ban nothing, in no more steps than there are tokens."""
    scores, tokens = jnp.zeros((1, 5)), jnp.array([[2, 3, 3, 3]])
    found = ban_repeated_ngrams(scores, tokens, jnp.int32(3), jnp.int32(10**9))
    assert (found == scores).all()
