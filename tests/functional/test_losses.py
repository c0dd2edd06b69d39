"""Losses against float64, optax and golden values."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from functional.logits import draw, log_softmax

from jaxformer import InputError
from jaxformer import functional as F
from jaxformer.functional.losses import symmetric_divergence, z_loss

CONVENTIONS = ("others", "all")


@functools.partial(jax.jit, static_argnums=(3, 4))
def differentiate(logits, targets, weights, smoothing=0.1, convention="others"):
    """Return loss, count and gradient."""

    def loss(logits):
        settings = {"smoothing": smoothing, "convention": convention}
        return F.cross_entropy(logits, targets, weights, **settings)

    (value, count), gradient = jax.value_and_grad(loss, has_aux=True)(logits)
    return value, count, gradient


def by_definition(logits, targets, weights, smoothing, convention):
    """Compute loss and gradient from the whole smoothed distribution in float64."""
    size = logits.shape[-1]
    rest = smoothing / (size - 1 if convention == "others" else size)
    true = 1 - smoothing + (0 if convention == "others" else rest)
    wanted = np.where(np.eye(size, dtype=bool)[targets], true, rest)
    logs, weights = log_softmax(logits), np.asarray(weights, np.float64)[..., None]
    return -(weights * wanted * logs).sum(), weights * (np.exp(logs) - wanted)


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_equals_the_cross_entropy_with_the_smoothed_distribution(convention, smoothing):
    """Value, gradient and count, for padding, fractional weights, large logits, and no
    target at all; also as optax has it where it has the convention.
    """
    logits, targets, real = draw(0)
    fractions = np.random.default_rng(10).random((3, 5)).astype(np.float32)
    none = np.zeros((3, 5), np.float32)
    for scale, weights in ((1, real), (1, fractions), (1e4, real), (1, none)):
        given = scale * logits, targets, weights.astype(np.float32)
        value, count, gradient = differentiate(*given, smoothing, convention)
        assert value.dtype == count.dtype == jnp.float32
        expected, slope = by_definition(*given, smoothing, convention)
        np.testing.assert_allclose(value, expected, rtol=1e-5)
        np.testing.assert_allclose(gradient, slope, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(count, weights.sum(dtype=np.float64), rtol=1e-6)
    assert not gradient.any()
    if smoothing and convention == "others":
        return

    @jax.jit
    @jax.value_and_grad
    def theirs(logits):
        labels = optax.smooth_labels(jax.nn.one_hot(targets, 7), smoothing)
        losses = optax.softmax_cross_entropy(logits, labels)
        return (losses * real.astype(np.float32)).sum()

    value, _, gradient = differentiate(
        logits, targets, real.astype(np.float32), smoothing, convention
    )
    for ours, other in zip((value, gradient), theirs(logits), strict=True):
        np.testing.assert_allclose(ours, other, rtol=1e-5, atol=1e-5)


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


def test_derivatives_of_all_kinds_are_those_of_the_definition():
    """Forward, reverse and second derivatives, by logits and by weights."""
    logits, targets, real = draw(21)
    labels = jnp.asarray(targets)
    rng = np.random.default_rng(3)
    there = real.astype(np.float32)
    weights = there * rng.random(real.shape).astype(np.float32)
    change = rng.normal(size=logits.shape), there * rng.normal(size=real.shape)
    change = tuple(jnp.asarray(each, jnp.float32) for each in change)

    def ours(logits, weights):
        return F.cross_entropy(logits, labels, weights, smoothing=0.2)[0]

    def definition(logits, weights):
        is_target = jax.nn.one_hot(targets, 7, dtype=bool)
        wanted = jnp.where(is_target, jnp.float32(0.8), jnp.float32(0.2 / 6))
        return -(weights * (wanted * jax.nn.log_softmax(logits)).sum(axis=-1)).sum()

    @functools.partial(jax.jit, static_argnums=0)
    def derive(function, logits, weights):
        gradient = jax.grad(function, argnums=(0, 1))
        given = (logits, weights)
        tangent = jax.jvp(function, given, change)[1]
        pairs = gradient(*given), jax.jvp(gradient, given, change)[1]
        # Without a target the derivative by a weight is a question of definition.
        return tangent, [(logit, there * weight) for logit, weight in pairs]

    found, expected = (derive(each, logits, weights) for each in (ours, definition))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        found,
        expected,
    )


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_padded_targets_contribute_exactly_zero(convention):
    """Whatever logits or targets a padded position holds."""
    logits, targets, real = draw(5)
    assert not real.all()
    clean = differentiate(logits, targets, real, 0.1, convention)
    assert not np.asarray(clean[2])[~real].any()
    for content, padding in ((1e30, 0), (np.inf, 6), (-np.inf, -100), (np.nan, 7)):
        dirty = np.where(real[..., None], logits, np.float32(content))
        changed = np.where(real, targets, np.int32(padding))
        found = differentiate(dirty, changed, real, 0.1, convention)
        jax.tree.map(np.testing.assert_array_equal, found, clean)
        arrays = map(jnp.asarray, (logits, changed.astype(np.int32), real))
        assert float(F.correct(*arrays)[1]) == real.sum()


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_logits_add_up_in_float32(dtype):
    """Also over a vocabulary of 30,000 tokens; the gradient has the type of the
    logits.
    """
    logits, targets, real = draw(13, batch=1, length=4, size=30_000)
    logits = logits.astype(dtype)
    value, count, gradient = differentiate(logits, targets, real)
    assert value.dtype == count.dtype == jnp.float32
    expected, _ = by_definition(logits, targets, real, 0.1, "others")
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    assert gradient.dtype == dtype


def test_accuracy_ignores_padding_and_counts_the_end():
    targets = jnp.array([[4, 5, 1, 0, 0], [6, 1, 0, 0, 0]])
    predicted = jnp.array([[4, 3, 1, 0, 0], [6, 2, 0, 0, 5]])
    hits, count = F.correct(jax.nn.one_hot(predicted, 7), targets, targets != 0)
    # Hits: 4, the end of the first sentence, 6.
    assert (float(hits), float(count)) == (3.0, 5.0)


def test_impossible_settings_are_refused():
    for epsilon in (-0.1, 1.0, math.nan):
        with pytest.raises(InputError, match=rf"at least 0 and below 1, not {epsilon}"):
            F.smoothed_probabilities(8, epsilon, "all")
    with pytest.raises(InputError, match=r"at least 2 tokens, not 1"):
        F.smoothed_probabilities(1, 0.0, "others")
    with pytest.raises(InputError, match=r"one of others, all, not 'some'"):
        differentiate(*draw(0), 0.1, "some")


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("shape", [(), (4, 1), (4, 3, 1)])
def test_weights_of_another_shape_are_refused(shape):
    """Broadcasting would count them several times."""
    logits, ones = jnp.zeros((4, 3, 7)), jnp.ones((4, 3))
    targets, wrong = jnp.zeros((4, 3), int), jnp.ones(shape)
    line = re.escape(f"logits of shape (4, 3, 7) the shape (4, 3), not {shape}")
    for call in (
        lambda: F.cross_entropy(logits, targets, wrong),
        lambda: F.cross_entropy(logits, wrong.astype(int), ones),
        lambda: z_loss(logits, wrong),
        lambda: symmetric_divergence(logits, logits, wrong),
        lambda: symmetric_divergence(logits, jnp.zeros((*shape, 7)), ones),
        lambda: F.correct(logits, targets, wrong),
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
    line = f"target {wrong} is not in 0 to 6; encode with the vocabulary of the"
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
        with pytest.raises(InputError, match=f"at least 0, not {least:g}: set it to 0"):
            function(logits, weights)
        differentiate = jax.jit(jax.value_and_grad(function, has_aux=True))
        (value, count), gradient = differentiate(logits, weights)
        assert math.isnan(value)
        assert math.isnan(count)
        assert np.isfinite(gradient[0]).all()
        assert np.isnan(gradient[1, 0]).all() or not gradient.any()  # of hits


def test_targets_in_few_bits_count_a_larger_vocabulary_once():
    """The gradient of int8 targets over 300 tokens is that of int32 ones."""
    logits, targets, real = draw(32, size=300)
    found, expected = (
        differentiate(logits, (targets % 100).astype(dtype), real)[2]
        for dtype in (np.int8, np.int32)
    )
    np.testing.assert_array_equal(found, expected)
