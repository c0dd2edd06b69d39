"""float64 stays float64 inside: every function against NumPy in float64, to twelve
digits.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional as F
from jaxformer.functional.cache import attend_to_store, project_to_store
from jaxformer.functional.layers import ACTIVATIONS
from jaxformer.models import Transformer, TransformerConfig, empty_cache, empty_coverage

D, H, K, V = 6, 2, 3, 11


@pytest.fixture(autouse=True)
def _wide():
    with jax.enable_x64(True):
        yield


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


def same(actual, expected):
    assert actual.dtype == jnp.float64
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


def softmax(x):
    exponentials = np.exp(x - x.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def test_attention_with_a_mask():
    """Output and weights, also from stored keys and values; rows without an allowed
    key are 0.
    """
    query, key, value = draw(0, 3, 2, 5, H, K)
    mask = np.random.default_rng(1).random((2, 1, 5, 5)) < 0.7
    mask[0, 0, 2] = False
    scores = np.where(
        mask, np.einsum("bthk,bshk->bhts", query, key) / math.sqrt(K), -1e30
    )
    expected = np.where(mask, softmax(scores), 0.0)
    output, weights = F.dot_product_attention(
        *map(jnp.asarray, (query, key, value, mask))
    )
    same(weights, expected)
    same(output, np.einsum("bhts,bshk->bthk", expected, value))
    same(F.masked_softmax(jnp.asarray(scores), jnp.asarray(mask)), expected)

    names = {
        "query": (D, H, K),
        "key": (D, H, K),
        "value": (D, H, K),
        "output": (H, K, D),
    }
    params = {
        name: {
            "kernel": jnp.asarray(draw(2, *shape)),
            "bias": jnp.asarray(draw(3, *shape[2 if name == "output" else 1 :])),
        }
        for name, shape in names.items()
    }
    x, memory = jnp.asarray(draw(4, 2, 5, D)), jnp.asarray(draw(5, 2, 5, D))
    whole = F.multi_head_attention(params, x, memory, jnp.asarray(mask))
    stored = attend_to_store(
        params, x, project_to_store(params, memory), jnp.asarray(mask)
    )
    for ours, theirs in zip(stored, whole, strict=True):
        same(ours, theirs)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_layers(activation):
    """Linear maps, norms and feed-forward layers."""
    x, inner, outer, scale, bias = (
        draw(6, 4, D),
        draw(7, D, 8),
        draw(8, 8, D),
        draw(9, D),
        draw(10, D),
    )
    same(F.linear(jnp.asarray(x), jnp.asarray(inner)), x @ inner)
    centred = x - x.mean(-1, keepdims=True)
    normal = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
    same(
        F.layer_norm(jnp.asarray(x), jnp.asarray(scale), jnp.asarray(bias)),
        normal * scale + bias,
    )
    z = x @ inner
    by_hand = {
        "relu": np.maximum(z, 0),
        "gelu": 0.5 * z * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))),
        "gelu_exact": 0.5 * z * (1 + np.vectorize(math.erf)(z / math.sqrt(2))),
        "silu": z / (1 + np.exp(-z)),
    }
    params = {
        name: {"kernel": jnp.asarray(w), "bias": jnp.zeros(w.shape[1])}
        for name, w in [("inner", inner), ("outer", outer)]
    }
    found = F.feed_forward(params, jnp.asarray(x)[None], activation=activation)
    same(found[0], by_hand[activation] @ outer)


def test_embedding_logits_dropout_and_positions():
    """Rows, products with them, the scale of what dropout keeps, and the waves of
    float64 positions.
    """
    table, x, tokens = draw(11, V, D), draw(12, 4, D), np.array([[3, 0, 10]])
    same(F.embed(jnp.asarray(table), jnp.asarray(tokens)), table[tokens] * math.sqrt(D))
    same(F.project_to_vocabulary(jnp.asarray(table), jnp.asarray(x)), x @ table.T)
    dropped = F.dropout(jnp.asarray(x), 0.3, jax.random.key(0))
    same(dropped, np.where(np.asarray(dropped) == 0, 0.0, x / 0.7))
    place = np.arange(200.0)
    angles = place[:, None] * 10_000.0 ** (-np.arange(D // 2) / (D // 2))
    waves = np.stack([np.sin(angles), np.cos(angles)], -1).reshape(200, D)
    same(F.sinusoidal(jnp.asarray(place), D), waves)


def test_losses():
    """Every loss and count, and the gradient of the smoothed cross-entropy."""
    logits, others, weights = draw(13, 3, V), draw(14, 3, V), np.array([1.0, 0.25, 0.0])
    targets = np.array([4, 0, -100])
    p, q = softmax(logits), softmax(others)
    wanted = 0.9 * np.eye(V)[targets * (weights > 0)] + 0.1 / V
    total, count = F.cross_entropy(
        *map(jnp.asarray, (logits, targets, weights)), smoothing=0.1, convention="all"
    )
    same(total, -((wanted * np.log(p)).sum(-1) * weights).sum())
    same(count, 1.25)
    slope = jax.grad(
        lambda z: F.cross_entropy(
            z,
            jnp.asarray(targets),
            jnp.asarray(weights),
            smoothing=0.1,
            convention="all",
        )[0]
    )(jnp.asarray(logits))
    same(slope, (p - wanted) * weights[:, None])
    same(
        F.z_loss(jnp.asarray(logits), jnp.asarray(weights))[0],
        (np.log(np.exp(logits).sum(-1)) ** 2 * weights).sum(),
    )
    divergence = 0.5 * ((p - q) * (np.log(p) - np.log(q))).sum(-1)
    same(
        F.symmetric_divergence(*map(jnp.asarray, (logits, others, weights)))[0],
        (divergence * weights).sum(),
    )
    same(
        F.correct(jnp.asarray(p), jnp.asarray(targets), jnp.asarray(weights))[0],
        0.25 * (p[1].argmax() == 0) + (p[0].argmax() == 4),
    )


def test_a_whole_transformer_and_its_gradient():
    """Steps with a cache equal the whole pass, and its gradient a central
    difference, beyond the digits of float32.
    """
    config = dataclasses.replace(
        TransformerConfig.tiny(vocabulary_size=V),
        positions="learned",
        activation="gelu",
        d_model=16,
        d_ff=32,
        num_heads=2,
        num_encoder_layers=1,
        num_decoder_layers=1,
    )
    # A configuration of a run names no float64; the modules compute in it.
    object.__setattr__(config, "dtype", "float64")
    model = Transformer(config)
    source, target = (
        jnp.array([[3, 4, 5, 2], [6, 2, 0, 0]], jnp.int32),
        jnp.array([[7, 8, 2], [9, 2, 0]], jnp.int32),
    )
    params = jax.jit(model.init)(jax.random.key(0), source, target)["params"]
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), params)
    whole = jax.jit(lambda params: model.apply({"params": params}, source, target))
    expected = whole(params)

    @jax.jit
    def step(tokens, cache):
        return model.apply({"params": params}, tokens, cache, memory, method="step")

    memory: Any = jax.jit(
        lambda: model.apply({"params": params}, source, method="start")
    )()
    cache = empty_cache(config, 2, 4)
    cache = cache._replace(coverage=empty_coverage(memory, 2))
    inputs = jnp.concatenate([jnp.full((2, 1), config.bos_id, jnp.int32), target], 1)
    for t in range(3):
        logits, cache = step(inputs[:, t], cache)
        same(logits[: 2 if t < 2 else 1], expected[: 2 if t < 2 else 1, t])

    loss = jax.jit(
        lambda params: F.cross_entropy(
            whole(params), target, target != 0, smoothing=0.1
        )[0]
    )
    leaves, form = jax.tree.flatten(params)
    direction = form.unflatten(
        [jnp.asarray(draw(20 + i, *leaf.shape)) for i, leaf in enumerate(leaves)]
    )
    slope = sum(
        jnp.vdot(g, d)
        for g, d in zip(
            *map(jax.tree.leaves, (jax.grad(loss)(params), direction)), strict=True
        )
    )
    ahead, behind = (
        loss(jax.tree.map(lambda p, d, h=h: p + h * d, params, direction))
        for h in (1e-6, -1e-6)
    )
    np.testing.assert_allclose(slope, (ahead - behind) / 2e-6, rtol=1e-7)
