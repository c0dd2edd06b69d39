"""A batch that shrinks gives what a batch that stays whole gives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from search.search_oracle import IDS, next_state, random_tables

from jaxformer.search.beam import beam_search
from jaxformer.search.constraints import FREE, Constraints
from jaxformer.search.rules import SearchRules, take_sentences
from jaxformer.search.scoring import coverage_penalty
from jaxformer.search.single import greedy_search

VOCABULARY, STATES, LENGTH = 7, 40, 12


def step(tokens, cache):
    """Read each sentence's table from the cache: nothing is known of sentences
    beside it.
    """
    sentences = cache["tables"].shape[0]
    state = next_state(cache["state"], tokens, VOCABULARY, STATES)
    own = state.reshape(sentences, -1)
    logits = jax.vmap(lambda table, rows: table[rows])(cache["tables"], own).reshape(
        tokens.shape[0], -1
    )
    seen = cache["seen"] + jax.nn.one_hot(tokens % 3, 3)
    return logits, {**cache, "state": state, "calls": cache["calls"] + 1, "seen": seen}


@functools.partial(
    jax.jit, static_argnames=("beam_size", "n_best", "groups", "halvings", "covered")
)
def run(
    tables,
    max_lengths,
    constraints=FREE,
    *,
    beam_size,
    n_best=1,
    groups=1,
    halvings=0,
    covered=False,
):
    rows = tables.shape[0] * beam_size
    cache = {
        "tables": tables,
        "state": jnp.zeros(rows, jnp.int32),
        "calls": jnp.zeros((), jnp.int32),
        "seen": jnp.zeros((rows, 3)),
    }
    shared = {
        "max_lengths": max_lengths,
        "length": LENGTH,
        "alpha": 0.6,
        "constraints": constraints,
        "coverage": (lambda cache: coverage_penalty(cache["seen"]))
        if covered
        else None,
        "beta": 0.3,
        **IDS,
    }
    if beam_size == 1:
        return greedy_search(step, cache, SearchRules(**shared), halvings=halvings)
    rules = SearchRules(
        beam_size=beam_size, n_best=n_best, groups=groups, diversity=0.4, **shared
    )
    return beam_search(step, cache, rules, halvings=halvings)


def draw(seed, sentences):
    rng = np.random.default_rng(seed)
    # Some end at once and some late.
    tables = random_tables(seed, sentences, STATES, VOCABULARY) + np.zeros(
        VOCABULARY, np.float32
    )
    tables[:, :, 1] += rng.uniform(-4, 4, sentences)[:, None].astype(np.float32)
    return (
        jnp.asarray(tables),
        jnp.asarray(rng.integers(0, LENGTH + 1, sentences), jnp.int32),
        rng,
    )


@pytest.mark.parametrize("settings", [
    {"beam_size": 1},
    {"beam_size": 3, "n_best": 3},
    {"beam_size": 4, "n_best": 2, "groups": 2},
    {"beam_size": 3, "covered": True},
], ids=str)  # fmt: skip
@pytest.mark.parametrize(("sentences", "halvings"), [(11, 2), (6, 9)])
def test_results_do_not_depend_on_halvings(settings, sentences, halvings):
    """Whatever is asked for: the same hypotheses to the last bit, in input order."""
    for seed in range(2):
        tables, limits, _ = draw(100 * sentences + seed, sentences)
        whole = run(tables, limits, **settings)
        jax.tree.map(
            np.testing.assert_array_equal,
            run(tables, limits, halvings=halvings, **settings),
            whole,
        )


@pytest.mark.parametrize("beam_size", [1, 3])
def test_constraints_follow_their_sentences(beam_size):
    """Least lengths, prefixes and required phrases stay those of their sentences
    when others leave.
    """
    tables, limits, rng = draw(7, 12)
    constraints = Constraints(
        min_lengths=jnp.asarray(rng.integers(0, 9, 12)),
        banned_tokens=jnp.arange(VOCABULARY) == 4,
        prefixes=jnp.asarray(rng.integers(3, VOCABULARY, (12, 2, 2))),
        required=jnp.asarray(rng.integers(3, VOCABULARY, (12, 1, 2)))
        if beam_size > 1
        else None,
    )
    whole = run(tables, limits, constraints, beam_size=beam_size)
    assert (np.asarray(whole.lengths) > 0).any()
    jax.tree.map(
        np.testing.assert_array_equal,
        run(tables, limits, constraints, beam_size=beam_size, halvings=3),
        whole,
    )


def test_the_batch_does_shrink():
    """Once half of 8 sentences are done, the step sees 4 of them, then 2, then 1."""
    widths = []

    def watched(tokens, cache):
        jax.debug.callback(lambda rows: widths.append(rows), tokens.shape[0])
        logits = jnp.zeros((tokens.shape[0], VOCABULARY)).at[:, 3].set(5.0)
        return logits, cache

    limits = jnp.asarray([1, 2, 3, 4, 5, 6, 7, 12])
    result = jax.jit(
        lambda: greedy_search(
            watched,
            None,
            SearchRules(max_lengths=limits, length=LENGTH, alpha=0.0, **IDS),
            halvings=3,
        )
    )()
    jax.block_until_ready(result)
    jax.effects_barrier()
    assert sorted(widths, reverse=True) == [8] * 4 + [4] * 2 + [2] + [1] * 5
    assert result.lengths[:, 0].tolist() == limits.tolist()
    assert int(result.iterations) == 12


def test_each_leaf_gives_as_many_rows_as_it_has_for_a_sentence():
    """Of 3 sentences, the third and the first: one row, two rows and none of a
    scalar.
    """
    tree = (jnp.arange(3), jnp.arange(6), jnp.array(9), None)
    one, two, scalar, _ = take_sentences(tree, jnp.array([2, 0]), 3)
    assert one.tolist() == [2, 0]
    assert two.tolist() == [4, 5, 0, 1]
    assert int(scalar) == 9
