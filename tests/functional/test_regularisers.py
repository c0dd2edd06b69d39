"""The z-loss and the divergence of R-Drop against float64 and finite differences."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from functional.logits import draw

from jaxformer.functional.losses import symmetric_divergence, z_loss


def squared_normalisers(logits, _, weights):
    """Sum the squared logarithm of the softmax's denominator, position by position,
    in float64.
    """
    total = 0.0
    for place in np.ndindex(*np.asarray(weights).shape):
        z = np.asarray(logits, np.float64)[place]
        total += (
            float(np.asarray(weights)[place])
            * (z.max() + math.log(np.exp(z - z.max()).sum())) ** 2
        )
    return total


def mean_of_both_divergences(logits, others, weights):
    """Sum (KL(p || q) + KL(q || p)) / 2, each as its paper has it, position by
    position, in float64.
    """
    total = 0.0
    for place in np.ndindex(*np.asarray(weights).shape):
        logs = []
        for z in (
            np.asarray(logits, np.float64)[place],
            np.asarray(others, np.float64)[place],
        ):
            logs.append(z - z.max() - math.log(np.exp(z - z.max()).sum()))
        p, q = logs
        there, back = sum(np.exp(p) * (p - q)), sum(np.exp(q) * (q - p))
        total += float(np.asarray(weights)[place]) * (there + back) / 2
    return total


# Each regulariser as a function of two logits, the first of which is differentiated,
# and its definition.
REGULARISERS = [
    pytest.param(
        lambda logits, _, weights: z_loss(logits, weights),
        squared_normalisers,
        id="z_loss",
    ),
    pytest.param(symmetric_divergence, mean_of_both_divergences, id="divergence"),
    pytest.param(
        lambda logits, others, weights: symmetric_divergence(others, logits, weights),
        mean_of_both_divergences,
        id="divergence_turned",
    ),
]


@pytest.mark.parametrize(("regulariser", "definition"), REGULARISERS)
def test_regularisers_equal_their_definitions(regulariser, definition):
    """Sum and count are those of float64 for boolean and fractional weights, and the
    gradient its differences.
    """
    logits, _, real = draw(14, batch=2, length=4, size=5)
    others, *_ = draw(15, batch=2, length=4, size=5)
    fractions = jnp.asarray(np.random.default_rng(16).random((2, 4)).astype(np.float32))
    for weights in (real, fractions):
        total, count = jax.jit(regulariser)(logits, others, weights)
        assert total.dtype == count.dtype == jnp.float32
        np.testing.assert_allclose(
            total, definition(logits, others, weights), rtol=1e-5
        )
        np.testing.assert_allclose(
            count, np.asarray(weights, np.float64).sum(), rtol=1e-6
        )
    gradient = jax.grad(lambda logits: regulariser(logits, others, real)[0])(logits)
    wide = np.asarray(logits, np.float64)
    for place in np.ndindex(wide.shape):
        step = np.zeros_like(wide)
        step[place] = 1e-5
        ahead, behind = (definition(wide + s * step, others, real) for s in (1, -1))
        np.testing.assert_allclose(
            gradient[place], (ahead - behind) / 2e-5, rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize(("regulariser", "definition"), REGULARISERS)
@pytest.mark.parametrize("content", [1e30, np.inf, -np.inf, np.nan])
def test_regularisers_of_padded_positions_are_zero(regulariser, definition, content):
    """Whatever a padded position holds in either pass, value and gradient are those
    without it.
    """
    logits, _, real = draw(5)
    others, *_ = draw(17)
    dirty, dirty_others = (
        jnp.where(real[..., None], values, content) for values in (logits, others)
    )
    differentiate = jax.value_and_grad(
        lambda *given: regulariser(*given)[0], argnums=(0, 1)
    )
    clean, gradients = differentiate(logits, others, real)
    value, dirty_gradients = differentiate(dirty, dirty_others, real)
    assert float(value) == float(clean)
    for gradient, clean_gradient in zip(dirty_gradients, gradients, strict=True):
        np.testing.assert_array_equal(gradient, clean_gradient)
        assert (np.asarray(gradient)[~np.asarray(real)] == 0.0).all()
    assert [
        float(number)
        for number in regulariser(dirty, dirty_others, jnp.zeros_like(real))
    ] == [0.0, 0.0]


@pytest.mark.parametrize(("regulariser", "definition"), REGULARISERS)
def test_regularisers_of_half_precision_logits(regulariser, definition):
    """Over 30,000 tokens of a vocabulary, bfloat16 logits are added up in float32."""
    logits, _, real = draw(18, batch=1, length=4, size=30_000)
    others, *_ = draw(19, batch=1, length=4, size=30_000)
    logits, others = logits.astype(jnp.bfloat16), others.astype(jnp.bfloat16)
    total, count = regulariser(logits, others, real)
    assert total.dtype == count.dtype == jnp.float32
    np.testing.assert_allclose(total, definition(logits, others, real), rtol=1e-5)
    assert (
        jax.grad(lambda logits: regulariser(logits, others, real)[0])(logits).dtype
        == jnp.bfloat16
    )


def test_the_divergence_measures_a_distance():
    """It is 0 with gradient 0 between equals, the same both ways, above 0 otherwise,
    and finite for sure models.
    """
    logits, _, real = draw(20)
    others, *_ = draw(21)

    def divergence(a, b):
        return symmetric_divergence(a, b, real)[0]

    shifted = logits + 3.0  # the same distribution
    assert float(divergence(logits, logits)) == 0.0
    assert float(divergence(logits, shifted)) == pytest.approx(0.0, abs=1e-5)
    assert (np.asarray(jax.grad(divergence)(logits, logits)) == 0.0).all()
    assert float(divergence(logits, others)) == pytest.approx(
        float(divergence(others, logits)), rel=1e-6
    )
    assert float(divergence(logits, others)) > 0.1
    sure = jnp.array([[[1e4, 0.0]], [[0.0, 1e4]]])
    value, gradient = jax.value_and_grad(
        lambda a: symmetric_divergence(a, sure[1], jnp.array([True]))[0]
    )(sure[0])
    assert float(value) == pytest.approx(1e4)
    assert np.isfinite(np.asarray(gradient)).all()
