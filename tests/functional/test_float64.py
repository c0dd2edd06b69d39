"""float64 stays float64 inside: to twelve digits."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from functional.logits import log_softmax
from models.little import make_model

from jaxformer import functional as F
from jaxformer.functional.layers import ACTIVATIONS
from jaxformer.models.cache import empty_cache, empty_coverage


@pytest.fixture(autouse=True)
def _wide():
    with jax.enable_x64(True):
        yield


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


def same(actual, expected):
    assert actual.dtype == jnp.float64
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


def test_functions_outside_of_the_model():
    """Activations, dropout, sinusoidal positions, regularisers and smoothing over all
    tokens.
    """
    z = draw(6, 4, 11)
    by_hand = {
        "relu": np.maximum(z, 0),
        "gelu": 0.5 * z * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))),
        "gelu_exact": 0.5 * z * (1 + np.vectorize(math.erf)(z / math.sqrt(2))),
        "silu": z / (1 + np.exp(-z)),
    }
    for name, expected in by_hand.items():
        same(jax.jit(ACTIVATIONS[name])(z), expected)
    dropped = np.asarray(F.dropout(jnp.asarray(z), 0.3, jax.random.key(0)))
    same(dropped, np.where(dropped == 0, 0.0, z / 0.7))
    place = np.arange(200.0)
    angles = place[:, None] * 10_000.0 ** (-np.arange(3) / 3)
    waves = np.stack([np.sin(angles), np.cos(angles)], -1).reshape(200, 6)
    same(jax.jit(lambda place: F.sinusoidal(place, 6))(place), waves)

    logits, others, weights = draw(13, 3, 11), draw(14, 3, 11), np.array([1, 0.25, 0])
    targets = np.array([4, 0, -100])

    @jax.jit
    def losses(logits):
        settings = {"smoothing": 0.1, "convention": "all"}
        given = jnp.asarray(targets), jnp.asarray(weights)
        value, slope = jax.value_and_grad(
            lambda z: F.cross_entropy(z, *given, **settings)[0]
        )(logits)
        divergence = F.symmetric_divergence(logits, jnp.asarray(others), given[1])[0]
        return value, slope, F.z_loss(logits, given[1])[0], divergence

    p, q = log_softmax(logits), log_softmax(others)
    wanted = 0.9 * np.eye(11)[targets * (weights > 0)] + 0.1 / 11
    divergence = 0.5 * ((np.exp(p) - np.exp(q)) * (p - q)).sum(-1)
    for found, expected in zip(
        losses(logits),
        (
            -((wanted * p).sum(-1) * weights).sum(),
            (np.exp(p) - wanted) * weights[:, None],
            (np.log(np.exp(logits).sum(-1)) ** 2 * weights).sum(),
            (divergence * weights).sum(),
        ),
        strict=True,
    ):
        same(found, expected)


def test_a_whole_transformer_and_its_gradient():
    """Steps with a cache equal the whole pass, and the gradient a central difference,
    beyond the digits of float32.
    """
    model, params = make_model(0, positions="learned", activation="gelu")
    # A configuration of a run names no float64; the modules compute in it.
    object.__setattr__(model.config, "dtype", "float64")
    params = jax.tree.map(lambda leaf: leaf.astype(np.float64), params)
    source = jnp.array([[3, 4, 5, 2], [6, 2, 0, 0]], jnp.int32)
    target = np.array([[7, 8, 2], [9, 2, 0]], np.int32)
    wanted, real = jnp.asarray(target), jnp.asarray(target != 0)

    def loss(params):
        logits = model.apply({"params": params}, source, wanted)
        total, _ = F.cross_entropy(logits, wanted, real, smoothing=0.1)
        return total, logits

    value_and_slope = jax.jit(jax.value_and_grad(loss, has_aux=True))
    (_, expected), gradient = value_and_slope(params)

    @jax.jit
    def step(params, tokens, cache, memory):
        return model.apply({"params": params}, tokens, cache, memory, method="step")

    start = jax.jit(
        lambda params: model.apply({"params": params}, source, method="start")
    )
    memory = start(params)
    cache = empty_cache(model.config, 2, 4)
    cache = cache._replace(coverage=empty_coverage(memory, 2))
    inputs = np.pad(target, ((0, 0), (1, 0)), constant_values=model.config.bos_id)
    for t in range(3):
        logits, cache = step(params, inputs[:, t], cache, memory)
        real = target[:, t] != 0
        same(logits[real], expected[real, t])

    leaves, form = jax.tree.flatten(params)
    direction = [draw(20 + i, *leaf.shape) for i, leaf in enumerate(leaves)]
    slope = sum(
        np.vdot(g, d) for g, d in zip(jax.tree.leaves(gradient), direction, strict=True)
    )
    ahead, behind = (
        value_and_slope(
            form.unflatten([p + h * d for p, d in zip(leaves, direction, strict=True)])
        )[0][0]
        for h in (1e-6, -1e-6)
    )
    np.testing.assert_allclose(slope, (ahead - behind) / 2e-6, rtol=1e-7)
