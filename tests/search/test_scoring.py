"""Length and coverage penalties, log-probabilities, and the configuration."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.errors import InputError
from jaxformer.search.config import DecodingConfig
from jaxformer.search.scoring import coverage_penalty, length_penalty, log_probabilities

PENALTY = jax.jit(length_penalty, static_argnums=2)


def test_length_penalties_have_their_golden_values():
    """((5 + n) / 6)^alpha, n^alpha and 1, in float32, with traced strengths."""
    lengths = np.array([1, 2, 7, 10, 25, 50, 55, 100])
    goldens = {
        0.6: [1, 1.096903, 1.515717, 1.732862, 2.626528, 3.778565, 3.981072, 5.569585],
        1.0: [1, 1.166667, 2, 2.5, 5, 9.166667, 10, 17.5],
    }
    goldens[-1.0] = 1 / np.array(goldens[1.0])
    for alpha, golden in goldens.items():
        found = PENALTY(lengths, np.float32(alpha), "gnmt")
        assert found.dtype == jnp.float32
        np.testing.assert_allclose(found, golden, rtol=1e-6)
        average = PENALTY(lengths, np.float32(alpha), "average")
        np.testing.assert_allclose(average, lengths**alpha, rtol=2e-6)
        assert (PENALTY(lengths, np.float32(alpha), "none") == 1).all()
    with pytest.raises(ValueError, match="one of gnmt, average, none, not 'wu'"):
        length_penalty(3, 1.0, "wu")  # type: ignore[arg-type]


def test_coverage_penalty_has_the_golden_values():
    """The sum of log(min(attention, 1)), at most 0, and finite without attention."""
    attention = np.array([[0.5, 1, 3], [0.25, 0.1, 0.9], [1, 1, 1], [0, 2, 2]])
    found = coverage_penalty(attention.astype(np.float32))
    np.testing.assert_allclose(found[:3], [-0.693147, -3.794240, 0.0], rtol=1e-6)
    assert -100 < found[3] < -80
    assert coverage_penalty(attention.astype(jnp.bfloat16)).dtype == jnp.float32
    drawn = np.random.default_rng(5).uniform(0, 1.5, (500, 3)).astype(np.float32)
    assert (coverage_penalty(drawn) <= 0).all()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_log_probabilities_are_those_of_float64(dtype):
    """In float32 for logits of any type, and never above 0, even where one token has
    all. Forbidden tokens leave the others as they are.
    """
    logits = np.random.default_rng(0).normal(scale=10, size=(500, 9))
    logits = np.array(logits.astype(dtype))
    logits[:, 3] = -np.inf
    found, bound = log_probabilities(logits), log_probabilities(logits, (0, 6))
    assert found.dtype == jnp.float32
    assert jnp.max(found) <= 0
    assert jnp.max(log_probabilities(3 * logits)) <= 0
    exact = logits.astype(np.float64)
    exact -= np.log(np.exp(exact).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(found, exact, rtol=1e-6, atol=4e-6)
    exact = np.array(found)
    exact[:, [0, 6]] = -np.inf
    np.testing.assert_array_equal(bound, exact)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"beam_size": 0}, "beam_size must be at least 1"),
        ({"alpha": float("nan")}, "alpha must be at least -10"),
        ({"length_penalty": "wu"}, "length_penalty must be one of gnmt, average, none"),
        ({"min_length": 9, "max_target_length": 8}, "min_length 9 is above decoding"),
        ({"diversity_groups": 3}, "diversity_groups must divide decoding.beam_size 4"),
        ({"diversity_groups": 2, "sample": True}, "diversity_groups must be 1 where"),
    ],
)
def test_config_names_what_is_wrong(changes, line):
    with pytest.raises(InputError, match=rf"^decoding\.{line}[^\n]*$"):
        DecodingConfig(**changes)


def test_config_defaults_are_the_papers():
    """Beam 4, alpha 0.6 and 50 tokens more than the source (section 6.1)."""
    config = DecodingConfig()
    assert (config.beam_size, config.alpha, config.max_extra_length) == (4, 0.6, 50)
    DecodingConfig(beam_size=1, alpha=-1.0, max_extra_length=0, batch_size=1)
