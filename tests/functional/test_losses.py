"""Losses against float64, optax, finite differences and golden values."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from functional.logits import draw

from jaxformer import InputError
from jaxformer import functional as F
from jaxformer.functional.losses import symmetric_divergence, z_loss

cross_entropy = jax.jit(F.cross_entropy, static_argnames=("smoothing", "convention"))
CONVENTIONS = ("others", "all")


def brute_force(logits, targets, weights, smoothing, convention):
    """Cross-entropy with a target distribution that is written out, token by token,
    in float64.
    """
    logits = np.asarray(logits, np.float64)
    size = logits.shape[-1]
    total = 0.0
    for place in np.ndindex(*np.asarray(targets).shape):
        true = np.asarray(targets)[place]
        wanted = np.full(
            size, smoothing / (size - 1 if convention == "others" else size)
        )
        wanted[true] = (
            1 - smoothing
            if convention == "others"
            else 1 - smoothing + smoothing / size
        )
        z = logits[place]
        log_probabilities = z - z.max() - math.log(np.exp(z - z.max()).sum())
        total -= float(np.asarray(weights)[place]) * (wanted * log_probabilities).sum()
    return total


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
def test_equals_the_cross_entropy_with_a_written_out_distribution(
    convention, smoothing
):
    """Losses are those of the smoothed distribution of each token, the count that of
    real tokens.
    """
    logits, targets, real = draw(0)
    total, count = cross_entropy(
        logits, targets, real, smoothing=smoothing, convention=convention
    )
    assert total.dtype == count.dtype == jnp.float32
    np.testing.assert_allclose(
        total, brute_force(logits, targets, real, smoothing, convention), rtol=1e-5
    )
    assert float(count) == np.asarray(real).sum()


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_without_smoothing_it_is_the_plain_cross_entropy(convention):
    """Epsilon 0 is the integer cross-entropy of optax in both conventions, value and
    gradient.
    """
    logits, targets, real = draw(1)

    def plain(logits):
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
        return (losses * real.astype(jnp.float32)).sum()

    def ours(logits):
        return cross_entropy(
            logits, targets, real, smoothing=0.0, convention=convention
        )[0]

    for actual, expected in zip(
        jax.value_and_grad(ours)(logits), jax.value_and_grad(plain)(logits), strict=True
    ):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_the_convention_all_is_optax_s():
    """Over V: as optax.smooth_labels, .925 and .025 for V = 4; loss and gradient
    agree.
    """
    assert F.smoothed_probabilities(4, 0.1, "all") == pytest.approx((0.925, 0.025))
    logits, targets, real = draw(2)

    def theirs(logits):
        losses = optax.softmax_cross_entropy(
            logits, optax.smooth_labels(jax.nn.one_hot(targets, 7), 0.1)
        )
        return (losses * real.astype(jnp.float32)).sum()

    def ours(logits):
        return cross_entropy(logits, targets, real, smoothing=0.1, convention="all")[0]

    for actual, expected in zip(
        jax.value_and_grad(ours)(logits),
        jax.value_and_grad(theirs)(logits),
        strict=True,
    ):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_the_convention_others_is_tensor2tensor_s():
    """Over V - 1: .9 and .1 / 3 for V = 4; probabilities sum to 1 in both
    conventions.
    """
    assert F.smoothed_probabilities(4, 0.1, "others") == pytest.approx((0.9, 0.1 / 3))
    for convention in CONVENTIONS:
        on, off = F.smoothed_probabilities(37_000, 0.1, convention)
        assert on + 36_999 * off == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("size", "others", "everything"),
    [
        (8, 0.519674, 0.466982),
        (32_000, 1.362429, 1.362390),
        (37_000, 1.376948, 1.376913),
    ],
)
def test_golden_floors(size, others, everything):
    """The entropy of the smoothed distribution at epsilon .1, also inside jit."""
    assert F.smoothing_floor(size, 0.1) == pytest.approx(others, abs=1e-6)
    assert F.smoothing_floor(size, 0.1, "all") == pytest.approx(everything, abs=1e-6)
    assert F.smoothing_floor(size, 0.0) == 0.0
    assert float(
        jax.jit(lambda: jnp.float32(F.smoothing_floor(size, 0.1)))()
    ) == pytest.approx(others, abs=1e-6)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_the_floor_is_the_lowest_loss(convention):
    """The log of the smoothed distribution reaches the floor with gradient 0; others
    lie above.
    """
    on, off = F.smoothed_probabilities(8, 0.1, convention)
    best = jnp.log(jnp.full((1, 8), off).at[0, 3].set(on))
    target, weight = jnp.array([3]), jnp.array([True])

    def loss(logits):
        return cross_entropy(
            logits, target, weight, smoothing=0.1, convention=convention
        )[0]

    value, gradient = jax.value_and_grad(loss)(best)
    assert float(value) == pytest.approx(
        F.smoothing_floor(8, 0.1, convention), abs=1e-6
    )
    np.testing.assert_allclose(gradient, np.zeros((1, 8)), atol=1e-6)
    rng = np.random.default_rng(3)
    for _ in range(5):
        assert float(
            loss(best + jnp.asarray(rng.normal(size=(1, 8)).astype(np.float32)))
        ) > float(value)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_gradient_equals_finite_differences(convention):
    """The gradient of the smoothed loss is that of central differences of the
    float64 sum.
    """
    logits, targets, real = draw(4, batch=2, length=3, size=5)
    gradient = jax.grad(
        lambda logits: cross_entropy(
            logits, targets, real, smoothing=0.1, convention=convention
        )[0]
    )(logits)
    wide = np.asarray(logits, np.float64)
    for place in np.ndindex(wide.shape):
        step = np.zeros_like(wide)
        step[place] = 1e-5
        ahead, behind = (
            brute_force(wide + s * step, targets, real, 0.1, convention)
            for s in (1, -1)
        )
        np.testing.assert_allclose(
            gradient[place], (ahead - behind) / 2e-5, rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_derivatives_of_all_kinds_are_those_of_the_definition(convention):
    """Forward, reverse and second derivatives, by logits and by weights, are those
    of -sum q log softmax.
    """
    logits, targets, real = draw(21)
    weights = jax.random.uniform(jax.random.key(3), targets.shape) * real.astype(
        jnp.float32
    )

    def ours(logits, weights):
        return F.cross_entropy(
            logits, targets, weights, smoothing=0.2, convention=convention
        )[0]

    def definition(logits, weights):
        size = logits.shape[-1]
        rest = 0.2 / (size - 1 if convention == "others" else size)
        true = 0.8 if convention == "others" else 0.8 + rest
        wanted = jnp.where(jax.nn.one_hot(targets, size, dtype=bool), true, rest)
        return -(weights * (wanted * jax.nn.log_softmax(logits)).sum(axis=-1)).sum()

    # Where there is no target, weights stay 0: a derivative there is a question of
    # definition.
    there = real.astype(jnp.float32)
    change = (
        jax.random.normal(jax.random.key(4), logits.shape),
        there * jax.random.normal(jax.random.key(5), real.shape),
    )

    def along(function):  # a second derivative in one direction, forward over reverse
        return jax.jvp(jax.grad(function, argnums=(0, 1)), (logits, weights), change)[1]

    with jax.numpy_dtype_promotion("standard"):
        for derive in (
            lambda function: jax.jvp(function, (logits, weights), change)[1],
            lambda function: jax.grad(function, argnums=(0, 1))(logits, weights),
            along,
        ):
            found, expected = (
                jax.jit(functools.partial(derive, function))()
                for function in (ours, definition)
            )
            if isinstance(found, tuple):
                found, expected = (
                    (logit, there * weight) for logit, weight in (found, expected)
                )
            jax.tree.map(
                lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
                found,
                expected,
            )


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("content", [1e30, np.inf, -np.inf, np.nan])
def test_padded_targets_contribute_exactly_zero(convention, content):
    """Whatever a padded position holds, inf and NaN too, loss is unchanged and its
    gradient is 0.
    """
    logits, targets, real = draw(5)
    assert not np.asarray(real).all()
    dirty = jnp.where(real[..., None], logits, content)

    def loss(logits, targets):
        return cross_entropy(
            logits, targets, real, smoothing=0.1, convention=convention
        )[0]

    clean, clean_gradient = jax.value_and_grad(loss)(logits, targets)
    for padding in (0, 6):
        value, gradient = jax.value_and_grad(loss)(
            dirty, jnp.where(real, targets, padding)
        )
        assert float(value) == float(clean)
        np.testing.assert_array_equal(gradient, clean_gradient)
        assert (np.asarray(gradient)[~np.asarray(real)] == 0.0).all()


def test_padding_columns_change_nothing():
    """Three more columns of padding leave loss, count and gradient the same."""
    logits, targets, real = draw(6)
    extra = ((0, 0), (0, 3))
    wide_logits = jnp.pad(logits, (*extra, (0, 0)), constant_values=9.0)
    wide_targets, wide_real = jnp.pad(targets, extra), jnp.pad(real, extra)

    def mean(logits, targets, real):
        total, count = cross_entropy(logits, targets, real, smoothing=0.1)
        return total / count

    narrow = jax.value_and_grad(mean)(logits, targets, real)
    wide = jax.value_and_grad(mean)(wide_logits, wide_targets, wide_real)
    np.testing.assert_allclose(wide[0], narrow[0], rtol=1e-6)
    np.testing.assert_allclose(wide[1][:, :5], narrow[1], rtol=1e-5, atol=1e-7)
    assert (np.asarray(wide[1])[:, 5:] == 0.0).all()


def test_a_batch_without_targets_has_loss_zero():
    """No real token: loss 0, count 0, gradient 0, nothing divided."""
    logits, targets, real = draw(7)
    none = jnp.zeros_like(real)
    total, count = cross_entropy(logits, targets, none, smoothing=0.1)
    gradient = jax.grad(
        lambda logits: cross_entropy(logits, targets, none, smoothing=0.1)[0]
    )(logits)
    assert float(total) == float(count) == 0.0
    assert (np.asarray(gradient) == 0.0).all()


def test_sums_and_counts_add_up_over_parts():
    """Parts with unequal counts add up to the whole: losses {4} and {1, 1, 1, 1}
    have the mean 1.6, not 2.5.
    """
    logits, targets, real = draw(8, batch=4)
    whole = cross_entropy(logits, targets, real, smoothing=0.1)
    parts = [
        cross_entropy(
            *(jnp.asarray(np.asarray(x)[i : i + 1]) for x in (logits, targets, real)),
            smoothing=0.1,
        )
        for i in range(4)
    ]
    for index in (0, 1):
        np.testing.assert_allclose(
            sum(float(part[index]) for part in parts), whole[index], rtol=1e-5
        )
    # a token's loss is x when its only rival has the logit log(e^x - 1)
    toy = jnp.log(jnp.expm1(jnp.array([4.0, 1.0, 1.0, 1.0, 1.0])))
    total, count = cross_entropy(
        jnp.stack([jnp.zeros(5), toy], -1), jnp.zeros(5, jnp.int32), jnp.ones(5, bool)
    )
    assert float(total / count) == pytest.approx(1.6, abs=1e-6)


def test_weights_may_be_fractions():
    """A float weight multiplies its token's loss and counts as much."""
    logits, targets, _ = draw(9)
    weights = jnp.asarray(np.random.default_rng(10).random((3, 5)).astype(np.float32))
    total, count = cross_entropy(logits, targets, weights, smoothing=0.1)
    np.testing.assert_allclose(
        total, brute_force(logits, targets, weights, 0.1, "others"), rtol=1e-5
    )
    np.testing.assert_allclose(count, np.asarray(weights, np.float64).sum(), rtol=1e-6)


def test_perplexity_is_the_exponential_of_the_unsmoothed_mean():
    """A uniform model over V tokens has perplexity V; smoothing is another number."""
    _, targets, real = draw(11)
    total, count = cross_entropy(jnp.zeros((3, 5, 7)), targets, real)
    assert math.exp(float(total / count)) == pytest.approx(7.0, rel=1e-5)
    logits, targets, real = draw(12)
    log_probabilities = np.log(np.exp(np.asarray(logits, np.float64)))
    log_probabilities -= np.log(np.exp(log_probabilities).sum(-1, keepdims=True))
    of_targets = np.take_along_axis(
        log_probabilities, np.asarray(targets)[..., None], -1
    )[..., 0]
    total, count = cross_entropy(logits, targets, real)
    perplexity = math.exp(-of_targets[np.asarray(real)].mean())
    assert math.exp(float(total / count)) == pytest.approx(perplexity, rel=1e-5)
    # of a model that is right and sure: perplexity 1
    confident = 20.0 * jax.nn.one_hot(targets, 7)
    assert math.exp(
        float(cross_entropy(confident, targets, real)[0] / count)
    ) == pytest.approx(1.0, rel=1e-5)
    assert (
        math.exp(
            float(cross_entropy(confident, targets, real, smoothing=0.1)[0] / count)
        )
        > 7.0
    )


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_logits_are_added_up_in_float32(dtype):
    """Over 30,000 tokens of a vocabulary, the loss of bfloat16 logits is float32 and
    exact.
    """
    logits, targets, real = draw(13, batch=1, length=4, size=30_000)
    logits = logits.astype(dtype)
    total, count = cross_entropy(logits, targets, real, smoothing=0.1)
    assert total.dtype == count.dtype == jnp.float32
    np.testing.assert_allclose(
        total, brute_force(logits, targets, real, 0.1, "others"), rtol=1e-5
    )
    gradient = jax.grad(
        lambda logits: cross_entropy(logits, targets, real, smoothing=0.1)[0]
    )(logits)
    assert gradient.dtype == dtype


def test_large_logits_stay_finite():
    """Logits of +-1e4 give the loss of the true gap, not inf."""
    logits = jnp.array([[1e4, -1e4, 0.0]])
    total, _ = cross_entropy(logits, jnp.array([1]), jnp.array([True]))
    assert float(total) == pytest.approx(2e4)


def test_accuracy_ignores_padding_and_counts_the_end():
    """Hits among real targets, end of sentence included, over their number."""
    end = 1
    targets = jnp.array([[4, 5, end, 0, 0], [6, end, 0, 0, 0]])
    predicted = jnp.array([[4, 3, end, 0, 0], [6, 2, 0, 0, 5]])
    logits = jax.nn.one_hot(predicted, 7)
    hits, count = F.correct(logits, targets, targets != 0)
    # hits: 4, the end of the first sentence, 6
    assert (float(hits), float(count)) == (3.0, 5.0)
    hits, count = F.correct(logits.at[0, 2].set(jnp.eye(7)[5]), targets, targets != 0)
    assert (float(hits), float(count)) == (2.0, 5.0)
    assert [float(n) for n in F.correct(logits, targets, jnp.zeros((2, 5), bool))] == [
        0.0,
        0.0,
    ]


def test_bad_settings_are_refused():
    """An epsilon out of range, an unknown convention and too small a vocabulary get
    one line with rule and value.
    """
    for epsilon in (-0.1, 1.0, math.nan):
        with pytest.raises(InputError, match=rf"at least 0 and below 1, not {epsilon}"):
            F.smoothed_probabilities(8, epsilon, "all")
    for size, convention in ((1, "others"), (1, "all"), (0, "all")):
        with pytest.raises(InputError, match=rf"at least 2 tokens, not {size}"):
            F.smoothed_probabilities(size, 0.0, convention)
    with pytest.raises(InputError, match=r"one of others, all, not 'some'"):
        cross_entropy(
            jnp.zeros((1, 4)), jnp.array([1]), jnp.array([True]), convention="some"
        )


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("shape", [(), (3,), (4, 1), (4, 3, 1)])
def test_weights_of_another_shape_are_refused(shape):
    """Broadcasting would count them several times, and the mean would be wrong."""
    logits, targets, ones = (
        jnp.zeros((4, 3, 7)),
        jnp.zeros((4, 3), int),
        jnp.ones((4, 3)),
    )
    wrong, said = (
        jnp.ones(shape),
        re.escape(f"logits of shape (4, 3, 7) the shape (4, 3), not {shape}"),
    )
    for call in (
        lambda: F.cross_entropy(logits, targets, wrong),
        lambda: F.cross_entropy(logits, wrong.astype(int), ones),
        lambda: z_loss(logits, wrong),
        lambda: symmetric_divergence(logits, logits, wrong),
        lambda: symmetric_divergence(logits, jnp.zeros((*shape, 7)), ones),
        lambda: F.correct(logits, targets, wrong),
    ):
        with pytest.raises(InputError, match=said):
            call()


@pytest.mark.parametrize("wrong", [-1, -100, 7, 2**31 - 1])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_target_out_of_range_is_nan_in_loss_and_gradient_and_refused_where_known(
    wrong, smoothing
):
    """Under jit both are NaN, the gradient only at that position; outside jit the
    value is named.
    """
    logits, targets, real = draw(30)
    changed = targets.at[1, 0].set(wrong)
    both = jax.value_and_grad(
        lambda z, y, w: cross_entropy(z, y, w, smoothing=smoothing)[0]
    )
    loss, gradient = jax.jit(both)(logits, changed, real)
    _, right = jax.jit(both)(logits, targets, real)
    assert math.isnan(loss)
    assert np.isnan(gradient[1, 0]).all()
    others = np.ones(targets.shape, bool)
    others[1, 0] = False
    np.testing.assert_array_equal(gradient[others], right[others])
    assert math.isnan(jax.jit(F.correct)(logits, changed, real)[0])
    for function in (F.cross_entropy, F.correct):
        with pytest.raises(
            InputError,
            match=f"target {wrong} is not in 0 to 6; encode with the vocabulary of the",
        ):
            function(logits, changed, real)


@pytest.mark.parametrize("wrong", [-1, -100, 7])
def test_a_target_out_of_range_without_weight_is_nothing(wrong):
    """Loss, gradient and hits are those of any other target there, in and outside
    jit.
    """
    logits, targets, real = draw(31)
    changed = jnp.where(real, targets, wrong)
    both = jax.value_and_grad(
        lambda z, y: F.cross_entropy(z, y, real, smoothing=0.1)[0]
    )
    for run in (lambda f: f, jax.jit):
        for found, expected in zip(
            run(both)(logits, changed), run(both)(logits, targets), strict=True
        ):
            np.testing.assert_array_equal(found, expected)
        assert run(F.correct)(logits, changed, real) == run(F.correct)(
            logits, targets, real
        )


def test_targets_in_few_bits_count_a_larger_vocabulary_once():
    """The gradient of int8 targets over 300 tokens is that of int32 ones."""
    logits, targets, real = draw(32, size=300)
    targets = targets % 100
    slope = jax.grad(lambda z, y: F.cross_entropy(z, y, real)[0])
    np.testing.assert_array_equal(
        slope(logits, targets.astype(jnp.int8)), slope(logits, targets)
    )
