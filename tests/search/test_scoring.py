import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.errors import InputError
from jaxformer.search.config import LENGTH_PENALTIES, DecodingConfig
from jaxformer.search.scoring import coverage_penalty, length_penalty, log_probabilities

LENGTHS = (1, 2, 7, 10, 25, 50, 55, 100)


@pytest.mark.parametrize(
    ("alpha", "golden"),
    [
        (
            0.6,
            (1, 1.096903, 1.515717, 1.732862, 2.626528, 3.778565, 3.981072, 5.569585),
        ),
        (
            0.3,
            (1, 1.047331, 1.231144, 1.316382, 1.620657, 1.943853, 1.995262, 2.359997),
        ),
        (1.0, (1, 1.166667, 2, 2.5, 5, 9.166667, 10, 17.5)),
    ],
)
def test_length_penalty_has_the_golden_values(alpha, golden):
    """The penalty is ((5 + n) / 6)^alpha."""
    np.testing.assert_allclose(
        length_penalty(jnp.array(LENGTHS), alpha), golden, rtol=1e-6
    )


def test_length_penalty_at_the_ends():
    """No penalty for alpha 0, the inverse for the opposite alpha, and float32
    throughout, from traced values too.
    """
    lengths = jnp.arange(200)
    assert jnp.all(length_penalty(lengths, 0.0) == 1)
    traced = jax.jit(length_penalty)(lengths, jnp.float32(-1.3))
    assert traced.dtype == jnp.float32
    np.testing.assert_allclose(
        traced * length_penalty(lengths, 1.3), np.ones(200), rtol=1e-5
    )
    assert length_penalty(7, 1.0).shape == ()


@pytest.mark.parametrize("alpha", [-1.5, 0.0, 0.6, 1.0, 2.0])
def test_length_penalties_by_name(alpha):
    """`average` is n^alpha, so that alpha 1 gives the log-probability a token, and
    `none` is 1.
    """
    lengths = jnp.array(LENGTHS)
    np.testing.assert_allclose(
        length_penalty(lengths, alpha, "average"),
        [n**alpha for n in LENGTHS],
        rtol=2e-6,
    )
    np.testing.assert_array_equal(
        length_penalty(lengths, alpha, "none"), np.ones(len(LENGTHS))
    )
    np.testing.assert_array_equal(
        length_penalty(lengths, alpha, "gnmt"), length_penalty(lengths, alpha)
    )


@pytest.mark.parametrize("name", LENGTH_PENALTIES)
@pytest.mark.parametrize("alpha", [-2.0, 0.0, 0.6, 3.0])
def test_length_penalties_are_above_zero_and_go_one_way(name, alpha):
    """What the proof of the stop rule takes for granted, the empty hypothesis
    included.
    """
    penalties = np.asarray(length_penalty(jnp.arange(300), alpha, name))
    assert penalties.dtype == np.float32
    assert (penalties > 0).all()
    assert (np.diff(penalties) * np.sign(alpha) >= 0).all()


def test_an_unknown_length_penalty():
    with pytest.raises(ValueError, match="one of gnmt, average, none, not 'wu'"):
        length_penalty(3, 1.0, "wu")  # type: ignore[arg-type]


def test_coverage_penalty_has_the_golden_values():
    """The sum of log(min(attention, 1)), where what has more than 1 loses nothing;
    finite where there is none.
    """
    attention = jnp.array(
        [[0.5, 1.0, 3.0], [0.25, 0.1, 0.9], [1.0, 1.0, 1.0], [0.0, 2.0, 2.0]]
    )
    found = coverage_penalty(attention)
    np.testing.assert_allclose(found[:3], [-0.693147, -3.794240, 0.0], rtol=1e-6)
    assert -100 < found[3] < -80
    assert coverage_penalty(attention.astype(jnp.bfloat16)).dtype == jnp.float32


def test_coverage_penalty_is_never_above_zero():
    """What the proof of the stop rule takes for granted."""
    assert (
        coverage_penalty(jax.random.uniform(jax.random.key(5), (500, 7), maxval=1.5))
        <= 0
    ).all()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_log_probabilities_are_those_of_float64(dtype):
    """Log-softmax is computed in float32 from logits of any type."""
    logits = (10 * jax.random.normal(jax.random.key(0), (7, 33))).astype(dtype)
    found = log_probabilities(logits)
    assert found.dtype == jnp.float32
    exact = np.asarray(logits.astype(jnp.float32), np.float64)
    exact -= np.log(np.exp(exact).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(found, exact, rtol=1e-6, atol=4e-6)


def test_no_log_probability_is_above_zero():
    """Rounding lifts nothing above 0, even where one token takes all: the stop rule
    needs it.
    """
    logits = 30 * jax.random.normal(jax.random.key(1), (2000, 9))
    assert jnp.max(log_probabilities(logits)) <= 0


def test_forbidden_tokens_leave_the_others_alone():
    """Forbidden tokens are impossible, and the others keep the model's
    log-probabilities.
    """
    logits = jax.random.normal(jax.random.key(2), (5, 8))
    free, bound = log_probabilities(logits), log_probabilities(logits, (0, 6))
    allowed = jnp.array([1, 2, 3, 4, 5, 7])
    assert jnp.all(jnp.isneginf(bound[:, jnp.array([0, 6])]))
    np.testing.assert_array_equal(bound[:, allowed], free[:, allowed])


def test_impossible_logits_make_no_nan():
    """Columns of minus infinity, such as those that fill up a vocabulary, stay
    impossible.
    """
    logits = jnp.array([[0.0, -jnp.inf, 1.0, -jnp.inf]])
    found = log_probabilities(logits)
    assert not jnp.any(jnp.isnan(found))
    np.testing.assert_array_equal(jnp.isneginf(found), [[False, True, False, True]])


def test_config_defaults_are_the_papers():
    """Beam 4, alpha 0.6 and 50 tokens more than the source (section 6.1 of the
    paper).
    """
    config = DecodingConfig()
    assert (config.beam_size, config.alpha, config.max_extra_length) == (4, 0.6, 50)


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("beam_size", 0, "at least 1"),
        ("max_extra_length", -1, "at least 0"),
        ("batch_size", 0, "at least 1"),
        ("max_target_length", 0, "at least 1"),
        ("max_length_ratio", 0.0, "above 0"),
        ("min_length", -1, "at least 0"),
        ("min_length_ratio", float("nan"), "at least 0"),
        ("no_repeat_ngram", -1, "at least 0"),
        ("repetition_penalty", 0.0, "above 0"),
        ("repetition_penalty", float("inf"), "at most 10,000"),
        ("length_penalty", "wu", "one of gnmt, average, none"),
        ("temperature", -0.1, "at least 0"),
        ("top_k", -1, "at least 0"),
        ("top_p", 0.0, "above 0"),
        ("top_p", 1.1, "at most 1"),
        ("min_p", -0.1, "at least 0"),
        ("epsilon", float("nan"), "at least 0"),
        ("seed", -1, "at least 0"),
        ("seed", 2**32, "below 4,294,967,296"),
        ("max_source_length", 7, "at least 8"),
        ("coverage_penalty", -0.1, "at least 0"),
        ("coverage_penalty", float("nan"), "at least 0"),
        ("diversity_strength", float("inf"), "at most 10,000"),
        ("coverage_penalty", 1e39, "at most 10,000"),  # infinite in 32 bits
        ("temperature", 1e39, "at most 10,000"),
        ("min_length_ratio", 1e308, "at most 10,000"),
        ("max_length_ratio", 1e308, "at most 10,000"),
        ("top_k", 3 * 10**9, "at most 1,000,000,000"),
        ("no_repeat_ngram", 10**11, "at most 1,000,000,000"),
        ("beam_size", 4.0, "a whole number"),
        ("seed", 1.5, "a whole number"),
        ("diversity_groups", 0, "at least 1"),
        ("alpha", float("nan"), "at least -10"),
        ("alpha", float("inf"), "at most 10"),
        ("alpha", -60, "at least -10"),
    ],
)
def test_config_names_what_is_wrong(key, value, rule):
    """An impossible value gets one line that names key, rule and value."""
    with pytest.raises(
        InputError, match=rf"decoding\.{key} must be .*{rule}.*{re.escape(str(value))}"
    ) as error:
        DecodingConfig(**{key: value})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        (
            {"beam_size": 4, "diversity_groups": 3},
            "must divide decoding.beam_size 4, and 3 does not",
        ),
        (
            {"beam_size": 1, "diversity_groups": 2},
            "must divide decoding.beam_size 1, and 2 does not",
        ),
        (
            {"diversity_groups": 2, "sample": True},
            "must be 1 where decoding.sample is True, not 2",
        ),
    ],
)
def test_config_refuses_groups_that_make_no_sense(given, rule):
    """Groups have equal parts of a beam, and samples have none."""
    with pytest.raises(
        InputError, match=rf"decoding\.diversity_groups {rule}"
    ) as error:
        DecodingConfig(**given)
    assert "\n" not in str(error.value)


def test_config_allows_the_ends():
    """Greedy search, a negative alpha and no extra tokens are all legitimate."""
    assert (
        DecodingConfig(beam_size=1, alpha=-1.0, max_extra_length=0, batch_size=1).alpha
        == -1.0
    )
