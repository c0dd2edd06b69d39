"""How long the loop of a search runs, how often it is compiled, and its steps in a
loop of the caller's own.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from search.search_oracle import (
    EOS,
    IDS,
    empty_cache,
    greedy_tables,
    limits,
    lost,
    random_attention,
    random_tables,
    sample_tables,
    search_tables,
    table_step,
)

from jaxformer.search import beam as search
from jaxformer.search import single as rows
from jaxformer.search.beam import beam_search
from jaxformer.search.constraints import FREE, Constraints
from jaxformer.search.rules import Sampling, SearchRules
from jaxformer.search.single import draw, greedy_search, sample_search

ALPHAS = (-1.0, 0.0, 0.6, 1.0, 2.0)
STATES, VOCABULARY = 4099, 6


@pytest.mark.parametrize("alpha", ALPHAS)
def test_an_easy_batch_stops_early(alpha):
    """The loop ends when every sentence is settled, long before the limit."""
    tables = random_tables(51, 3, STATES, VOCABULARY, 12.0)
    arguments = (tables, limits(40, 40, 40), jnp.float32(alpha))
    greedy = greedy_tables(*arguments, length=40)
    assert greedy.iterations == 1
    result = search_tables(*arguments, length=40, beam_size=4)
    assert result.iterations <= 2
    assert result.finished.all()


def test_a_hard_sentence_keeps_the_loop_alive():
    """One sentence that cannot end runs to its own limit and not to the width of the
    result.
    """
    tables = np.concatenate(
        [
            random_tables(52, 3, 97, VOCABULARY, 12.0),
            random_tables(53, 1, 97, VOCABULARY, -np.inf),
        ]
    )
    result = search_tables(
        tables, limits(40, 40, 40, 17), jnp.float32(0.6), length=40, beam_size=4
    )
    assert result.iterations == 17
    assert result.finished[:, 0].tolist() == [True, True, True, False]


def some_constraints(seed: int, sentences: int) -> Constraints:
    """Draw one value of everything."""
    random = np.random.default_rng(seed)
    return Constraints(
        min_lengths=jnp.asarray(random.integers(0, 5, sentences), jnp.int32),
        banned_tokens=jnp.asarray(random.random(VOCABULARY) < 0.2).at[EOS].set(False),
        banned_phrases=jnp.asarray(random.integers(3, VOCABULARY, (2, 2)), jnp.int32),
        no_repeat_ngram=jnp.int32(random.integers(1, 4)),
        repetition_penalty=jnp.float32(random.uniform(0.5, 2)),
        required=jnp.asarray(
            random.integers(3, VOCABULARY, (sentences, 2, 2)), jnp.int32
        )
        .at[1]
        .set(-1),
        prefixes=jnp.asarray(random.integers(-1, 0, (sentences, 2, 3)), jnp.int32)
        .at[0, 0, 0]
        .set(4),
    )


def test_no_value_recompiles_a_search():
    """One trace serves all limits, strengths of penalties, constraints,
    temperatures, truncations and keys.
    """
    traces = []
    table = jnp.asarray(random_tables(62, 1, VOCABULARY, VOCABULARY, -3.0)[0])
    attention = jnp.asarray(random_attention(62, 1, VOCABULARY, 3)[0])

    def step(tokens, cache):
        traces.append("step")
        return table[tokens], {"coverage": cache["coverage"] + attention[tokens]}

    def cache(rows):
        return {"coverage": jnp.zeros((rows, 3))}

    def common(max_lengths, alpha, beta, constraints):
        given = {
            "max_lengths": max_lengths,
            "alpha": alpha,
            "constraints": constraints,
            "length": 6,
        }
        return {**given, "coverage": lost, "beta": beta, **IDS}

    @jax.jit
    def beam(diversity, *values):
        return beam_search(
            step,
            cache(8),
            SearchRules(beam_size=4, groups=2, diversity=diversity, **common(*values)),
        )

    @jax.jit
    def greedy(*values):
        return greedy_search(step, cache(2), SearchRules(**common(*values)))

    @jax.jit
    def sample(keys, sampling, *values):
        return sample_search(
            step,
            cache(4),
            SearchRules(beam_size=2, n_best=2, sampling=sampling, **common(*values)),
            keys,
        )

    counts, found = [], []
    for seed in range(4):
        constraints = some_constraints(seed, 2)
        values = (limits(6 - seed, 3), jnp.float32(seed - 1), jnp.float32(seed / 3))
        alone = (*values, constraints._replace(required=None))
        sampling = Sampling(
            *(jnp.float32(1 + seed), jnp.int32(2 + seed)),
            *(jnp.float32(x / (1 + seed)) for x in (0.9, 0.2, 0.1)),
        )
        keys = jax.random.split(jax.random.key(seed), 2)
        beams = beam(jnp.float32(seed), *values, constraints)
        found.append([beams, greedy(*alone), sample(keys, sampling, *alone)])
        counts.append(len(traces))
    assert len(set(counts)) == 1, counts
    assert all(
        len({str(results[kind].tokens.tolist()) for results in found}) > 1
        for kind in range(3)
    )


def test_no_value_recompiles_a_step():
    """The rules are a pytree: a step that takes them as an argument is traced once
    for every value.
    """
    traces = []
    tables = jnp.asarray(random_tables(63, 2, 97, VOCABULARY, -2.0))
    attention = jnp.asarray(random_attention(63, 2, 97, 3))

    @jax.jit
    def advance(rules, state):
        traces.append("step")
        return search.beam_step(rules, table_step(tables, 3, attention), state)

    for seed in range(3):
        rules = SearchRules(
            max_lengths=limits(5, 1 + seed),
            alpha=jnp.float32(seed),
            constraints=some_constraints(seed, 2),
            beta=jnp.float32(seed),
            diversity=jnp.float32(seed),
            length=6,
            beam_size=3,
            groups=3,
            coverage=lost,
            **IDS,
        )
        state = search.beam_init(rules, empty_cache(6, attention))
        while not state.done.all():
            state = advance(rules, state)
    assert len(traces) == 1
    longer = dataclasses.replace(rules, length=7)
    advance(longer, search.beam_init(longer, empty_cache(6, attention)))
    assert len(traces) == 2


@pytest.mark.parametrize("kind", ["beam", "greedy", "sampling"])
@pytest.mark.parametrize("constrained", [False, True])
def test_steps_in_a_loop_of_ones_own(kind, constrained):
    """Steps driven from Python give the result of the compiled loop, and each step
    can be looked at.
    """
    tables = jnp.asarray(random_tables(64, 3, STATES, VOCABULARY, -1.0))
    constraints = some_constraints(2, 3) if constrained else FREE
    if kind != "beam":
        constraints = constraints._replace(required=None)
    arguments = (tables, limits(8, 5, 8), jnp.float32(0.6))
    width = 1 if kind == "greedy" else 3
    rules = SearchRules(
        max_lengths=arguments[1],
        alpha=arguments[2],
        constraints=constraints,
        length=8,
        beam_size=width,
        n_best=width,
        **IDS,
    )
    step, cache = table_step(tables, width), empty_cache(3 * width)
    keys, sampling = (
        jax.random.split(jax.random.key(9), 3),
        Sampling(jnp.float32(0.8), jnp.int32(4)),
    )
    if kind == "beam":
        expected = search_tables(
            *arguments, length=8, beam_size=3, n_best=3, constraints=constraints
        )
        state, finish = search.beam_init(rules, cache), search.beam_finish
        advance = jax.jit(lambda state: search.beam_step(rules, step, state))
    else:
        choose = rows.most_probable if kind == "greedy" else draw(sampling, keys, 3)
        if kind == "greedy":
            expected = greedy_tables(*arguments, length=8, constraints=constraints)
        else:
            expected = sample_tables(
                *arguments[:2],
                keys,
                sampling,
                length=8,
                samples=3,
                constraints=constraints,
            )
        state, finish = rows.row_init(rules, cache), rows.row_finish
        advance = jax.jit(lambda state: rows.row_step(rules, step, choose, state))
    seen = 0
    while not state.done.all():
        state = advance(state)
        seen += 1
        assert state.position == seen
    for name, one, other in zip(
        expected._fields, finish(rules, state), expected, strict=True
    ):
        exact = name not in ("scores", "log_probabilities", "token_log_probabilities")
        np.testing.assert_allclose(one, other, rtol=0 if exact else 1e-6, err_msg=name)
    assert seen == expected.iterations > 1
