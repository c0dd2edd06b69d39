"""Adapters of low rank against their definition in float64."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict
from models.little import make_model

from jaxformer.models import stack_layers
from jaxformer.models.lora import Adapted, draw_adapters

RANK = 2
# How many axes of each kernel are input: heads and widths of queries, keys and values
# differ.
INPUTS = {"query": 1, "key": 1, "value": 1, "output": 2, "inner": 1, "outer": 1}


@pytest.fixture(scope="module")
def params():
    sizes = {"num_heads": 3, "d_k": 5, "d_v": 2, "num_encoder_layers": 2}
    return make_model(0, **sizes)[1]


@pytest.fixture(scope="module")
def kernels(params):
    flat = flatten_dict(params)
    return unflatten_dict({path: flat[path] for path in flat if "kernel" in path})


# Compiled once for all kernels of the model, and not for each.
draw = jax.jit(draw_adapters, static_argnums=1)


@functools.partial(jax.jit, static_argnums=(2, 3))
def merge(params, drawn, scale, rate=0.0, key=None):
    return Adapted(params, drawn, scale).merge(rate, key)


def changed(adapters):
    """Give every B numbers of its own."""
    normal = np.random.default_rng(0).normal
    return jax.tree.map(
        lambda leaf: jnp.asarray(normal(size=leaf.shape), leaf.dtype), adapters
    )


def test_merged_is_unmerged(params, kernels):
    """x (W + s A B) is x W + s (x A) B for every kernel of the model, in float64 to its
    precision and in float32 to 1e-6; all other parameters stay.
    """
    drawn = changed(draw(kernels, RANK, jax.random.key(1)))
    whole, factors = flatten_dict(params), flatten_dict(drawn)
    single = flatten_dict(merge(params, drawn, 0.75))
    with jax.enable_x64(True):
        double = [
            jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), tree)
            for tree in (params, drawn)
        ]
        double = flatten_dict(merge(*double, 0.75))
    assert {path[-2] for path in flatten_dict(kernels)} == set(INPUTS)
    for path, leaf in whole.items():
        if path[-1] != "kernel":
            np.testing.assert_array_equal(single[path], leaf)
            continue
        axes = INPUTS[path[-2]]
        inputs = leaf.shape[:axes]
        x = np.random.default_rng(1).normal(size=(4, *inputs)) / math.prod(inputs)
        a, b = (np.asarray(factors[*path, f"lora_{x}"], np.float64) for x in "ab")
        assert a.shape == (*inputs, RANK)
        assert b.shape == (RANK, *leaf.shape[axes:])
        unmerged = np.tensordot(x, np.asarray(leaf, np.float64), axes)
        unmerged += 0.75 * np.tensordot(np.tensordot(x, a, axes), b, 1)
        for found, tolerance in ((double, 1e-13), (single, 1e-6)):
            merged = np.asarray(found[path], np.float64)
            np.testing.assert_allclose(
                np.tensordot(x, merged, axes), unmerged, rtol=0, atol=tolerance
            )


def test_they_begin_by_changing_nothing(params, kernels):
    """A is normal with the variance of a mean of the inputs, and no two are equal; B is
    zero, so that the merged parameters are the base bit for bit, whatever is dropped.
    """
    drawn = draw(kernels, RANK, jax.random.key(1))
    found = merge(params, drawn, 8.0, 0.5, jax.random.key(2))
    jax.tree.map(np.testing.assert_array_equal, found, params)
    downs = [
        np.asarray(leaf).ravel() * math.prod(leaf.shape[:-1]) ** 0.5
        for path, leaf in flatten_dict(drawn).items()
        if path[-1] == "lora_a"
    ]
    assert np.concatenate(downs).std() == pytest.approx(1.0, abs=0.1)
    assert len({down[0] for down in downs}) == len(downs)


def test_dropout_leaves_out_input_features(kernels):
    """A feature is left out of the whole of an adapter or not at all, independently of
    other adapters and layers; the others are scaled, so that the mean stays.
    """
    drawn = jax.tree.map(jnp.ones_like, draw(kernels, 1, jax.random.key(1)))
    zeros = jax.tree.map(jnp.zeros_like, kernels)
    for stack in (lambda tree: tree, stack_layers):
        base, ones = stack(zeros), stack(drawn)
        changes = merge(base, ones, 1.0, 0.25, jax.random.key(3))
        features = []
        for path, change in flatten_dict(changes).items():
            axes = INPUTS[path[-2]] + ("layers" in path)
            rows = np.asarray(change).reshape(math.prod(change.shape[:axes]), -1)
            assert (rows == rows[:, :1]).all()
            features.append(rows[:, 0])
        assert len({feature[:6].tobytes() for feature in features}) > 5
        every = np.concatenate(features)
        assert set(np.unique(every)) == {0.0, np.float32(1 / 0.75)}
        assert every.mean() == pytest.approx(1.0, abs=0.1)
