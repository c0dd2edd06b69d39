"""How long the loop of a search runs, and how often it is compiled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decoding.search_oracle import IDS, greedy_tables, limits, random_tables, search_tables

from jaxformer.decoding.search import beam_search

ALPHAS = (-1.0, 0.0, 0.6, 1.0, 2.0)
STATES, VOCABULARY = 4099, 6


@pytest.mark.parametrize("alpha", ALPHAS)
def test_an_easy_batch_stops_early(alpha):
    """The loop ends when every sentence is settled, long before the limit (statement 106)."""
    tables = random_tables(51, 3, STATES, VOCABULARY, 12.0)
    arguments = (tables, limits(40, 40, 40), jnp.float32(alpha))
    greedy = greedy_tables(*arguments, length=40)
    assert greedy.iterations == 1
    result = search_tables(*arguments, length=40, beam_size=4)
    assert result.iterations <= 2
    assert result.finished.all()


def test_a_hard_sentence_keeps_the_loop_alive():
    """One sentence that cannot end runs to its own limit and not to the width of the result (statements 99, 106)."""
    tables = np.concatenate([random_tables(52, 3, 97, VOCABULARY, 12.0), random_tables(53, 1, 97, VOCABULARY, -np.inf)])
    result = search_tables(tables, limits(40, 40, 40, 17), jnp.float32(0.6), length=40, beam_size=4)
    assert result.iterations == 17
    assert result.finished[:, 0].tolist() == [True, True, True, False]


def test_alpha_and_limits_do_not_recompile():
    """One trace serves every alpha and every limit of a shape (statement 104)."""
    traces = []
    table = jnp.asarray(random_tables(61, 1, VOCABULARY, VOCABULARY, -3.0)[0])

    @jax.jit
    def run(max_lengths, alpha):
        def step(tokens, cache):
            traces.append("step")
            return table[tokens], cache

        return beam_search(step, None, max_lengths=max_lengths, length=6, beam_size=2, alpha=alpha, **IDS)

    first = run(limits(6, 3), jnp.float32(0.6))
    after_the_first = len(traces)
    results = [run(limits(2, 6), jnp.float32(alpha)) for alpha in ALPHAS]
    assert len(traces) == after_the_first
    assert len({float(result.scores[1, 0]) for result in [first, *results]}) > 2
