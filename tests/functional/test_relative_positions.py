"""Rotary positions and biases by distance, against float64 and published values."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import InputError
from jaxformer import functional as F
from jaxformer.functional.relative_positions import alibi_slopes

RANDOM = np.random.default_rng(0)


def test_rotary_positions_turn_pairs_of_features():
    """As complex numbers: times exp(i p / base^(2i/K)); one list of positions for all
    rows, or one for each.
    """
    x = RANDOM.normal(size=(2, 5, 3, 6)).astype(np.float32)
    each = RANDOM.integers(0, 300, (2, 5))
    rotate = jax.jit(functools.partial(F.rotary, base=100.0))
    frequencies = 100.0 ** (-np.arange(3) / 3)
    for places in (each, each[1]):
        angles = np.broadcast_to(places, (2, 5))[..., None, None] * frequencies
        turned = (x[..., :3] + 1j * np.float64(x[..., 3:])) * np.exp(1j * angles)
        expected = np.concatenate([turned.real, turned.imag], axis=-1)
        # An angle up to 300 is rounded to float32.
        np.testing.assert_allclose(rotate(x, places), expected, atol=1e-4)
    with jax.enable_x64(True):
        found = F.rotary(jnp.asarray(x, jnp.float64), jnp.asarray(each[1]), base=100.0)
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_scores_of_rotated_heads_depend_on_differences_only():
    """Of positions; and they depend on these. Position 0 changes nothing."""
    query, key = jnp.asarray(RANDOM.normal(size=(2, 1, 1, 1, 8)), jnp.float32)

    def score(t, s):
        turned = F.rotary(query, jnp.array([t])), F.rotary(key, jnp.array([s]))
        return float((turned[0] * turned[1]).sum())

    for t, s in ((0, 0), (3, 1), (7, 20)):
        assert score(t, s) == pytest.approx(score(t + 50, s + 50), abs=1e-4)
    assert abs(score(3, 1) - score(1, 3)) > 1e-2
    assert abs(score(3, 1) - score(4, 1)) > 1e-2
    np.testing.assert_array_equal(F.rotary(query, jnp.array([0])), query)
    with pytest.raises(InputError, match="heads of an even width, not 7"):
        F.rotary(query[..., :7], jnp.array([0]))


BUCKETS = {
    False: "-128:15 -100:15 -64:14 -32:12 -16:10 -9:8 -8:8 -7:7 -1:1 0:0 1:17 7:23"
    " 8:24 16:26 32:28 64:30 127:31",
    True: "-130:31 -128:31 -100:30 -64:26 -32:21 -16:16 -9:9 -8:8 -1:1 0:0 1:0 99:0",
}


@pytest.mark.parametrize("causal", BUCKETS)
def test_buckets_are_those_of_t5(causal):
    """Published values, and the formula with logarithms where these are far from whole
    numbers.
    """
    pairs = [each.split(":") for each in BUCKETS[causal].split()]
    distances, expected = np.array(pairs, int).T
    number = jax.jit(functools.partial(F.relative_buckets, causal=causal))
    np.testing.assert_array_equal(number(distances), expected)
    every = np.arange(-300, 300)
    found, half = np.asarray(number(every)), 16 if causal else 8
    ranges = 32 - 16 if causal else 16 - 8
    for distance, bucket in zip(every, found, strict=True):
        away = max(-distance, 0) if causal else abs(distance)
        first = 16 * (distance > 0) * (not causal)
        if away < half:
            assert bucket == first + away
            continue
        steps = math.log(away / half) / math.log(128 / half) * ranges
        if abs(steps - round(steps)) > 1e-6:
            assert bucket == first + half + min(int(steps), ranges - 1)


def test_a_relative_bias_is_looked_up_by_bucket():
    """Of each head, for positions in any order; only rows in use have a gradient."""
    table = jnp.asarray(RANDOM.normal(size=(32, 3)), jnp.float32)
    queries, keys = jnp.array([5, 9, 2]), jnp.array([0, 3, 9, 40])
    bias = F.relative_bias(table, queries, keys, causal=False)
    assert bias.shape == (1, 3, 3, 4)
    for h, t, s in np.ndindex(3, 3, 4):
        row = F.relative_buckets(keys[s] - queries[t], causal=False)
        assert bias[0, h, t, s] == table[row, h]
    slope = jax.grad(lambda x: F.relative_bias(x, queries, keys, causal=True).sum())
    used = np.flatnonzero(np.asarray(slope(table)).any(1))
    assert used.tolist() == [0, 2, 5, 6, 9]


def test_slopes_of_alibi():
    """8 heads halve from 1/2 on; 12 have those of 8, and every other one of 16."""
    np.testing.assert_allclose(alibi_slopes(8), 0.5 ** np.arange(1, 9))
    np.testing.assert_allclose(alibi_slopes(1), [2.0**-8])
    more = [*(0.5 ** np.arange(1, 9)), *(0.5 ** np.array([0.5, 1.5, 2.5, 3.5]))]
    np.testing.assert_allclose(alibi_slopes(12), more)
    bias = F.alibi(3, jnp.array([4, 0]), jnp.array([4, 1, 6]))
    for h, slope in enumerate((2.0**-4, 2.0**-8, 2.0**-2)):
        expected = -slope * np.array([[0, 3, 2], [4, 1, 6]])
        np.testing.assert_allclose(bias[0, h], expected)
