"""Bits of a hashed counter are even, independent of their neighbours, their places
and their keys, and repeatable.
"""

import itertools
from math import comb

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.functional.kernels import random_bits

COUNT = 1 << 18


def draw(seed, shape=(COUNT,)):
    return np.asarray(random_bits(jax.random.key(seed), shape))


def each_bit(words):
    """Return [32, N] of 0 and 1."""
    return (words[None] >> np.arange(32, dtype=np.uint32)[:, None]) & 1


def deviations(hits, of):
    """How many standard deviations a share lies from one half."""
    return np.abs(hits / of - 0.5) / (0.5 / np.sqrt(of))


@pytest.mark.parametrize("seed", [0, 1, 2**31])
def test_every_bit_is_even(seed):
    """Of each of the 32, half are set, within five standard deviations."""
    bits = each_bit(draw(seed))
    assert (deviations(bits.sum(axis=1), COUNT) < 5).all()


@pytest.mark.parametrize("lag", [1, 2, 3, 8, 64, 192, 512, 4096])
def test_neighbours_are_independent(lag):
    """Of each bit and that of an element further on, in the same row or another: as
    often equal as not.
    """
    bits = each_bit(draw(3))
    equal = (bits[:, lag:] == bits[:, :-lag]).sum(axis=1)
    assert (deviations(equal, COUNT - lag) < 5).all()


@pytest.mark.parametrize(
    "other", ["the next seed", "folded in", "a word of one bit more"]
)
def test_keys_are_independent(other):
    """Masks of related keys agree no more often than chance has it, nor do shifted
    ones.
    """
    key = jax.random.key(7)
    words = jax.random.key_data(key)
    second = {
        "the next seed": jax.random.key(8),
        "folded in": jax.random.fold_in(key, 1),
        "a word of one bit more": jax.random.wrap_key_data(
            words ^ jnp.array([0, 1], jnp.uint32)
        ),
    }[other]
    ours, theirs = (
        each_bit(np.asarray(random_bits(each, (COUNT,)))) for each in (key, second)
    )
    for shift in (0, 1, 5):
        equal = (ours[:, shift:] == theirs[:, : COUNT - shift]).sum(axis=1)
        assert (deviations(equal, COUNT - shift) < 5).all()


def test_small_rates_fall_like_chance():
    """What lies below a tenth is a tenth of all, of every row and every column, and
    runs of it are as long as chance makes them (chi-squared of counts in groups of 32
    against the binomial distribution).
    """
    rows, columns = 512, 512
    dropped = draw(5, (rows, columns)) < np.uint32(round(0.1 * 2**32))
    spread = np.sqrt(0.09 / columns)
    assert (np.abs(dropped.mean(axis=0) - 0.1) < 5 * spread).all()
    assert (np.abs(dropped.mean(axis=1) - 0.1) < 5 * spread).all()
    counts = np.bincount(dropped.reshape(-1, 32).sum(axis=1), minlength=9)

    share = np.array([comb(32, k) * 0.1**k * 0.9 ** (32 - k) for k in range(8)])
    expected = np.append(share, 1 - share.sum()) * rows * columns / 32
    found = np.append(counts[:8], counts[8:].sum())
    # 8 degrees of freedom: 1 in 5,000 by chance
    assert ((found - expected) ** 2 / expected).sum() < 30


def test_a_change_of_any_place_or_key_bit_changes_half_of_the_bits():
    """The avalanche of both roundings: each of the 32 bits that come out changes half
    of the time with each bit of the key, the first word of which meets the place, and
    of the place; none shows through, and none is dead.
    """
    count = 1 << 16
    words = np.asarray(jax.random.key_data(jax.random.key(11)))
    before = draw(11)
    for word, bit in itertools.product(range(2), range(32)):
        changed = words.copy()
        changed[word] ^= np.uint32(1 << bit)
        after = np.asarray(
            random_bits(jax.random.wrap_key_data(jnp.asarray(changed)), (count,))
        )
        assert_half_flipped(
            before[:count] ^ after, f"bit {bit} of word {word} of the key"
        )
    places = np.arange(COUNT)
    for bit in range(COUNT.bit_length() - 1):
        low = places[places & (1 << bit) == 0]
        assert_half_flipped(
            before[low] ^ before[low | (1 << bit)], f"bit {bit} of the place"
        )


def assert_half_flipped(changes, cause):
    """Check that each of the 32 bits is set in half of the words, within five
    standard deviations and a hundredth.
    """
    shares = each_bit(changes).mean(axis=1)
    assert (np.abs(shares - 0.5) < 2.5 / np.sqrt(len(changes)) + 0.01).all(), (
        cause,
        shares,
    )


def test_bits_depend_on_the_place_alone():
    """Whatever axes lead to it; under jit and vmap; and for typed keys as for plain
    words.
    """
    key = jax.random.key(13)
    flat = np.asarray(random_bits(key, (24,)))
    np.testing.assert_array_equal(random_bits(key, (2, 3, 4)), flat.reshape(2, 3, 4))
    np.testing.assert_array_equal(
        jax.jit(lambda key: random_bits(key, (24,)))(key), flat
    )
    np.testing.assert_array_equal(random_bits(jax.random.key_data(key), (24,)), flat)
    keys = jax.random.split(key, 3)
    each = np.stack([random_bits(keys[i], (5,)) for i in range(3)])
    np.testing.assert_array_equal(
        jax.vmap(lambda key: random_bits(key, (5,)))(keys), each
    )
    assert random_bits(jax.random.key(0, impl="rbg"), (3,)).shape == (3,)
