"""The z-loss and the divergence of R-Drop against float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from functional.logits import draw, log_softmax

from jaxformer.functional.losses import symmetric_divergence, z_loss


def squared_normalisers(logits, _, weights):
    """Sum the squared logarithm of the softmax's denominator."""
    total = np.log(np.exp(logits.astype(np.float64)).sum(-1))
    return (weights * total**2).sum()


def mean_of_both_divergences(logits, others, weights):
    """Sum (KL(p || q) + KL(q || p)) / 2."""
    p, q = log_softmax(logits), log_softmax(others)
    there, back = (np.exp(p) * (p - q)).sum(-1), (np.exp(q) * (q - p)).sum(-1)
    return (weights * (there + back) / 2).sum()


def z_of_first(logits, _, weights):
    return z_loss(logits, weights)


@functools.partial(jax.jit, static_argnums=0)
def differentiate(regulariser, *given):
    return jax.value_and_grad(regulariser, argnums=(0, 1), has_aux=True)(*given)


@pytest.mark.parametrize(
    ("regulariser", "definition"),
    [
        (z_of_first, squared_normalisers),
        (symmetric_divergence, mean_of_both_divergences),
    ],
)
def test_regularisers_equal_their_definitions(regulariser, definition):
    """Value, count and both gradients, by central differences. Padded positions add
    exactly 0, and half-precision logits add up in float32.
    """
    (logits, _, real), (others, *_) = draw(14, size=5), draw(15, size=5)
    fractions = np.random.default_rng(16).random(real.shape).astype(np.float32)
    for weights in (real.astype(np.float32), fractions):
        (value, count), found = differentiate(regulariser, logits, others, weights)
        assert value.dtype == count.dtype == jnp.float32
        np.testing.assert_allclose(
            value, definition(logits, others, weights), rtol=1e-5
        )
        np.testing.assert_allclose(count, weights.sum(dtype=np.float64), rtol=1e-6)
    wide = np.stack([logits, others]).astype(np.float64)
    for place in np.ndindex(wide.shape):
        step = np.zeros_like(wide)
        step[place] = 1e-5
        ahead = definition(*(wide + step), fractions)
        behind = definition(*(wide - step), fractions)
        slope = (ahead - behind) / 2e-5
        np.testing.assert_allclose(
            found[place[0]][place[1:]], slope, rtol=1e-4, atol=1e-5
        )

    clean = differentiate(regulariser, logits, others, real)
    for content in (1e30, np.inf, -np.inf, np.nan):
        dirty = np.where(real[..., None], [logits, others], np.float32(content))
        dirty = differentiate(regulariser, *dirty.astype(np.float32), real)
        jax.tree.map(np.testing.assert_array_equal, dirty, clean)
    assert not np.asarray(clean[1])[:, ~real].any()
    nothing = differentiate(regulariser, logits, others, np.zeros_like(real))
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(nothing))

    (logits, _, real), (others, *_) = (
        draw(seed, batch=1, length=4, size=30_000) for seed in (18, 19)
    )
    half = logits.astype(jnp.bfloat16), others.astype(jnp.bfloat16), real
    (value, count), (gradient, _) = differentiate(regulariser, *half)
    assert value.dtype == count.dtype == jnp.float32
    expected = definition(half[0].astype(np.float32), half[1].astype(np.float32), real)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    assert gradient.dtype == jnp.bfloat16


def test_the_divergence_measures_a_distance():
    """It is 0 with gradient 0 between equals, the same both ways, and finite for
    certain models.
    """
    (logits, _, real), (others, *_) = draw(20, size=5), draw(21, size=5)
    run = functools.partial(differentiate, symmetric_divergence)
    (value, _), gradients = run(logits, logits, real)
    assert float(value) == 0.0
    assert not np.asarray(gradients).any()
    (there, _), _ = run(logits, others, real)
    (back, _), _ = run(others, logits, real)
    assert float(there) == pytest.approx(float(back), rel=1e-6)
    certain = np.float32([[[1e4, 0]]]), np.float32([[[0, 1e4]]]), np.ones((1, 1), bool)
    (value, _), gradients = run(*certain)
    assert float(value) == pytest.approx(1e4)
    assert np.isfinite(gradients).all()
