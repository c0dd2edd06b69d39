"""What losses refuse, golden values, and the distance that R-Drop measures."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import InputError
from jaxformer import functional as F
from jaxformer.functional.losses import symmetric_divergence, z_loss


def draw(seed, batch=3, length=5, size=7, scale=2.0):
    """Draw logits, targets and weights with padding on the right of each row."""
    rng = np.random.default_rng(seed)
    logits = (scale * rng.normal(size=(batch, length, size))).astype(np.float32)
    targets = rng.integers(0, size, size=(batch, length)).astype(np.int32)
    real = np.arange(length)[None] < rng.integers(1, length + 1, size=(batch, 1))
    return logits, targets, real


@functools.partial(jax.jit, static_argnums=(3, 4))
def differentiate(logits, targets, weights, smoothing=0.1, convention="others"):
    """Return loss, count and gradient."""

    def loss(logits):
        settings = {"smoothing": smoothing, "convention": convention}
        return F.cross_entropy(logits, targets, weights, **settings)

    (value, count), gradient = jax.value_and_grad(loss, has_aux=True)(logits)
    return value, count, gradient


def test_golden_distributions_and_floors():
    """.925 and .025 for V = 4 over all tokens, .9 and .1 / 3 over the others; and the
    entropy of the distribution at epsilon .1.
    """
    assert F.smoothed_probabilities(4, 0.1, "all") == pytest.approx((0.925, 0.025))
    assert F.smoothed_probabilities(4, 0.1, "others") == pytest.approx((0.9, 0.1 / 3))
    for size, others, everything in (
        (8, 0.519674, 0.466982),
        (37_000, 1.376948, 1.376913),
    ):
        assert F.smoothing_floor(size, 0.1) == pytest.approx(others, abs=1e-6)
        floor = F.smoothing_floor(size, 0.1, "all")
        assert floor == pytest.approx(everything, abs=1e-6)
        assert F.smoothing_floor(size, 0.0) == 0.0


def test_accuracy_ignores_padding_and_counts_the_end():
    """A target of weight 0 may be any number."""
    targets = jnp.array([[4, 5, 1, -100, 0], [6, 1, -1, 7, 0]])
    predicted = jnp.array([[4, 3, 1, 0, 0], [6, 2, 0, 0, 5]])
    real = jnp.array([[1, 1, 1, 0, 0], [1, 1, 0, 0, 0]])
    hits, count = F.correct(jax.nn.one_hot(predicted, 7), targets, real)
    # Hits: 4, the end of the first sentence, 6.
    assert (float(hits), float(count)) == (3.0, 5.0)
    loss, count = F.cross_entropy(jnp.zeros((2, 5, 7)), predicted)  # weights of 1
    assert (float(loss), float(count)) == (pytest.approx(10 * math.log(7)), 10.0)


def test_impossible_settings_are_refused():
    for epsilon in (-0.1, 1.0, math.nan):
        with pytest.raises(InputError, match=rf"in \[0, 1\), .* not {epsilon}"):
            F.smoothed_probabilities(8, epsilon, "all")
    with pytest.raises(InputError, match=r"at least 2 tokens: .* 1$"):
        F.smoothed_probabilities(1, 0.0, "others")
    with pytest.raises(InputError, match=r"by others or all, .* 'some'"):
        differentiate(*draw(0), 0.1, "some")


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("shape", [(), (4, 1), (4, 3, 1)])
def test_weights_of_another_shape_are_refused(shape):
    """Broadcasting would count them several times."""
    logits = jnp.zeros((4, 3, 7))
    targets, wrong = jnp.zeros((4, 3), int), jnp.ones(shape)
    line = re.escape(str(list(shape))[:-1])
    for call in (
        lambda: F.cross_entropy(logits, targets, wrong),
        lambda: F.cross_entropy(logits, wrong.astype(int)),
        lambda: symmetric_divergence(logits, jnp.zeros((*shape, 7))),
    ):
        with pytest.raises(InputError, match=line):
            call()


@pytest.mark.parametrize("wrong", [-1, 7, 2**31 - 1])
def test_a_target_out_of_range_is_nan_and_refused_where_known(wrong):
    """Under jit loss and gradient are NaN, the gradient only at that position."""
    logits, targets, real = draw(30)
    changed = targets.copy()
    changed[1, 0] = wrong
    value, _, gradient = differentiate(logits, changed, real)
    _, _, right = differentiate(logits, targets, real)
    assert math.isnan(value)
    assert np.isnan(gradient[1, 0]).all()
    others = np.ones(targets.shape, bool)
    others[1, 0] = False
    np.testing.assert_array_equal(gradient[others], right[others])
    assert math.isnan(jax.jit(F.correct)(logits, changed, real)[0])
    line = f"target {wrong} is not in 0 to 6: encode with the vocabulary of the"
    for function in (F.cross_entropy, F.correct):
        with pytest.raises(InputError, match=line):
            function(*map(jnp.asarray, (logits, changed, real)))


@pytest.mark.parametrize("least", [-1.0, -1e-30])
def test_a_weight_below_0_is_nan_and_refused_where_known(least):
    """Under jit the sum, the count and the gradient at that position are NaN, as for a
    target out of range.
    """
    logits, targets, real = map(jnp.asarray, draw(33))
    weights = real.astype(jnp.float32).at[1, 0].set(least)
    for function in (
        lambda *given: F.cross_entropy(given[0], targets, given[1]),
        lambda *given: F.correct(given[0], targets, given[1]),
        z_loss,
        lambda *given: symmetric_divergence(given[0], logits[::-1], given[1]),
    ):
        with pytest.raises(InputError, match=f"at least 0, not {least:g}"):
            function(logits, weights)
        differentiate = jax.jit(jax.value_and_grad(function, has_aux=True))
        (value, count), gradient = differentiate(logits, weights)
        assert math.isnan(value)
        assert math.isnan(count)
        assert np.isfinite(gradient[0]).all()
        assert np.isnan(gradient[1, 0]).all() or not gradient.any()  # of hits


def test_the_divergence_measures_a_distance():
    """It is 0 with gradient 0 between equals, the same both ways, and finite for
    certain models.
    """
    (logits, _, real), (others, *_) = draw(20, size=5), draw(21, size=5)
    both = jax.value_and_grad(symmetric_divergence, (0, 1), has_aux=True)
    run = jax.jit(both)
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
