"""float64 stays float64 inside: to twelve digits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models.little import make_model

from jaxformer import functional as F
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
