"""Bits of a hashed counter are even, independent and repeatable."""

import functools

import jax
import numpy as np

from jaxformer.kernels.elementwise import random_bits

COUNT = 1 << 18
KEY = jax.random.key(7)
bits_of = jax.jit(random_bits, static_argnums=1)


@functools.cache
def draw(seed):
    return np.asarray(bits_of(jax.random.key(seed), (COUNT,)))


def each_bit(words):
    """Return [32, N] of 0 and 1."""
    return (words[None] >> np.arange(32, dtype=np.uint32)[:, None]) & 1


def assert_halves(hits, of):
    """Each is half of all, within five standard deviations."""
    assert (np.abs(hits / of - 0.5) < 5 * 0.5 / np.sqrt(of)).all()


def test_bits_are_even_and_neighbours_independent():
    """Each bit is 1 as often as 0, and as often equal as not to that of a later
    element, in the same row or another.
    """
    for seed in (1, 2**31):
        assert_halves(each_bit(draw(seed)).sum(axis=1), COUNT)
    bits = each_bit(draw(0))
    for lag in (1, 2, 3, 8, 64, 192, 512, 4096):
        equal = (bits[:, lag:] == bits[:, :-lag]).sum(axis=1)
        assert_halves(equal, COUNT - lag)


def test_bits_depend_only_on_place_and_key():
    """Not on the axes; under jit and vmap; for typed keys and plain words."""
    flat = np.asarray(random_bits(KEY, (24,)))
    np.testing.assert_array_equal(bits_of(KEY, (2, 3, 4)), flat.reshape(2, 3, 4))
    np.testing.assert_array_equal(bits_of(KEY, (24,)), flat)
    np.testing.assert_array_equal(bits_of(jax.random.key_data(KEY), (24,)), flat)
    keys = jax.random.split(KEY, 3)
    mapped = jax.jit(jax.vmap(lambda key: random_bits(key, (24,))))(keys)
    np.testing.assert_array_equal(mapped, [bits_of(key, (24,)) for key in keys])
    assert bits_of(jax.random.key(0, impl="rbg"), (3,)).shape == (3,)
