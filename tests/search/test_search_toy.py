"""A toy whose winners are known: four tokens, and the next depends on the last
alone.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.search.beam import beam_search
from jaxformer.search.rules import SearchRules
from jaxformer.search.single import greedy_search

ALPHAS = (-1.0, 0.0, 0.6, 2.0)

# The toy model: 0 is bos and pad, 1 is eos; P(next | previous).
TOY = np.array(
    [[0, 0.05, 0.5, 0.45], [0, 0, 0, 1], [0, 0.4, 0.3, 0.3], [0, 0.05, 0.9, 0.05]]
)
TOY_IDS = {"bos_id": 0, "eos_id": 1, "pad_id": 0}


@jax.jit
def toy_greedy(alpha):
    with np.errstate(divide="ignore"):
        logits = jnp.asarray(np.log(TOY), jnp.float32)
    return greedy_search(
        lambda tokens, cache: (logits[tokens], cache),
        None,
        SearchRules(max_lengths=jnp.array([8]), length=8, alpha=alpha, **TOY_IDS),
    )


def toy_beam(alpha, beam_size, n_best=1):
    with np.errstate(divide="ignore"):
        logits = jnp.asarray(np.log(TOY), jnp.float32)
    return beam_search(
        lambda tokens, cache: (logits[tokens], cache),
        None,
        SearchRules(
            max_lengths=jnp.array([8]),
            length=8,
            beam_size=beam_size,
            n_best=n_best,
            alpha=alpha,
            **TOY_IDS,
        ),
    )


@pytest.mark.parametrize("beam_size", [1, 2, 4])
def test_toy_beam_picks_the_known_winners(beam_size):
    """The golden toy: alpha decides the winner, and the best finished hypotheses are
    kept.
    """
    golden = {
        0.0: ([2, 1], -1.609438),
        0.6: ([2, 1], -1.467257),
        1.0: ([3, 2, 1], -1.365119),
        2.0: ([3, 2, 1], -1.023839),
    }
    compiled = jax.jit(lambda alpha: toy_beam(alpha, beam_size))
    for alpha, (tokens, best) in golden.items():
        result = compiled(jnp.float32(alpha))
        length = int(result.lengths[0, 0])
        found = result.tokens[0, 0, :length].tolist()
        if beam_size == 1:
            assert found == [2, 1]
        else:
            assert found == tokens
            np.testing.assert_allclose(result.scores[0, 0], best, rtol=1e-6)
            np.testing.assert_allclose(
                result.log_probabilities[0, 0],
                {2: -1.609438, 3: -1.820159}[length],
                rtol=1e-6,
            )
        assert result.finished[0, 0]
        assert jnp.all(result.tokens[0, 0, length:] == 0)


def test_toy_greedy_takes_the_most_probable_token():
    """Greedy search finds [2, 1], whose score is normalised like any other."""
    result = toy_greedy(0.6)
    assert result.tokens[0, 0].tolist() == [2, 1, 0, 0, 0, 0, 0, 0]
    np.testing.assert_allclose(result.log_probabilities[0, 0], -1.609438, rtol=1e-6)
    np.testing.assert_allclose(result.scores[0, 0], -1.467257, rtol=1e-6)
    assert result.lengths[0, 0] == 2
    assert result.iterations == 2


def test_a_larger_beam_is_never_worse_on_the_toy():
    """A wider beam with a complete finish rule returns no lower score, up to
    rounding.
    """
    widths = (1, 2, 4)
    compiled = [
        jax.jit(lambda alpha, width=width: toy_beam(alpha, width).scores[0, 0])
        for width in widths
    ]
    for alpha in ALPHAS:
        scores = np.array([run(jnp.float32(alpha)) for run in compiled])
        assert np.all(np.diff(scores) >= -1e-6)
