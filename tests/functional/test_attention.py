"""Attention against a brute force in float64, and what masks promise."""

# Arguments are unpacked from iterables of unknown length.
# pyright: reportCallIssue=false

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer import InputError
from jaxformer import functional as F

attention = jax.jit(F.dot_product_attention, static_argnames="dropout_rate")


def brute_force(query, key, value, mask=None):
    """Equation 1 of the paper, written with loops over allowed keys alone, in
    float64.
    """
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    batch, length, heads, width = query.shape
    output = np.zeros((batch, length, heads, value.shape[-1]))
    weights = np.zeros((batch, heads, length, key.shape[1]))
    if mask is not None:
        mask = np.broadcast_to(mask, weights.shape)
    for b, t, h in np.ndindex(batch, length, heads):
        allowed = [s for s in range(key.shape[1]) if mask is None or mask[b, h, t, s]]
        if not allowed:
            continue
        scores = np.array(
            [query[b, t, h] @ key[b, s, h] / np.sqrt(width) for s in allowed]
        )
        exponentials = np.exp(scores - scores.max())
        weights[b, h, t, allowed] = exponentials / exponentials.sum()
        output[b, t, h] = sum(weights[b, h, t, s] * value[b, s, h] for s in allowed)
    return output, weights


def draw(
    seed,
    *,
    batch=3,
    queries=4,
    keys=5,
    heads=2,
    width=8,
    value_width=6,
    dtype=np.float32,
):
    rng = np.random.default_rng(seed)
    query = rng.normal(size=(batch, queries, heads, width)).astype(dtype)
    key = rng.normal(size=(batch, keys, heads, width)).astype(dtype)
    value = rng.normal(size=(batch, keys, heads, value_width)).astype(dtype)
    return jnp.asarray(query), jnp.asarray(key), jnp.asarray(value)


def same(actual, expected, tolerance=1e-5):
    np.testing.assert_allclose(
        np.asarray(actual, np.float64), expected, rtol=tolerance, atol=tolerance
    )


@settings(deadline=None, max_examples=8, derandomize=True, database=None)
@given(
    seed=st.integers(0, 2**31),
    batch=st.integers(1, 3),
    queries=st.integers(1, 4),
    keys=st.integers(1, 5),
    heads=st.integers(1, 3),
    widths=st.tuples(st.integers(1, 8), st.integers(1, 8)),
    masked=st.booleans(),
)
def test_equals_brute_force(seed, batch, queries, keys, heads, widths, masked):
    """For any shape, any mask and d_k unlike d_v, output and weights are those of
    equation 1.
    """
    inputs = draw(
        seed,
        batch=batch,
        queries=queries,
        keys=keys,
        heads=heads,
        width=widths[0],
        value_width=widths[1],
    )
    mask = (
        np.random.default_rng(seed + 1).random((batch, heads, queries, keys)) < 0.6
        if masked
        else None
    )
    output, weights = attention(*inputs, None if mask is None else jnp.asarray(mask))
    expected_output, expected_weights = brute_force(*inputs, mask)
    same(output, expected_output)
    same(weights, expected_weights)


@pytest.mark.parametrize(
    "shape", [(3, 1, 1, 5), (1, 1, 4, 5), (3, 1, 4, 1), (1, 2, 1, 5), (1, 1, 1, 1)]
)
def test_mask_axes_of_size_one_broadcast(shape):
    """A mask of size 1 along an axis is the same mask along all of it."""
    inputs = draw(1)
    mask = np.random.default_rng(2).random(shape) < 0.7
    output, weights = attention(*inputs, jnp.asarray(mask))
    expected_output, expected_weights = brute_force(*inputs, mask)
    same(output, expected_output)
    same(weights, expected_weights)


@pytest.mark.parametrize(("queries", "keys"), [(4, 7), (7, 4)])
def test_weights_sum_to_one_over_keys(queries, keys):
    """Weights add up to 1 along the keys, never along the queries."""
    inputs = draw(3, queries=queries, keys=keys)
    mask = np.random.default_rng(4).random((3, 1, queries, keys)) < 0.7
    mask[..., 0] = True
    _, weights = attention(*inputs, jnp.asarray(mask))
    assert weights.shape == (3, 2, queries, keys)
    same(weights.sum(-1), np.ones((3, 2, queries)))
    assert np.abs(np.asarray(weights.sum(-2)) - 1.0).max() > 0.1
    assert (np.asarray(weights)[~np.broadcast_to(mask, weights.shape)] == 0.0).all()


def test_true_means_may_attend():
    """True = may attend: one allowed key gives its value, and the inverted mask
    gives something else.
    """
    query, key, value = draw(5)
    mask = jnp.zeros((1, 1, 1, 5), bool).at[..., 2].set(True)
    output, _ = attention(query, key, value, mask)
    same(output, np.broadcast_to(np.asarray(value)[:, 2:3], output.shape))
    inverted, _ = attention(query, key, value, ~mask)
    assert np.abs(np.asarray(output - inverted)).max() > 0.1


def test_content_of_masked_keys_is_ignored():
    """Huge keys and values where the mask is False change not one bit."""
    query, key, value = draw(6)
    mask = jnp.array([1, 0, 1, 0, 1], bool)[None, None, None]
    hidden = ~mask[0, 0, 0][None, :, None, None]
    clean, clean_weights = attention(query, key, value, mask)
    for huge in (1e10, -1e10, 3e38):
        dirty, weights = attention(query, key, jnp.where(hidden, huge, value), mask)
        np.testing.assert_array_equal(dirty, clean)
        np.testing.assert_array_equal(weights, clean_weights)
    dirty, weights = attention(query, jnp.where(hidden, 1e10, key), value, mask)
    np.testing.assert_array_equal(dirty, clean)
    np.testing.assert_array_equal(weights, clean_weights)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_row_without_keys_gives_zero_and_finite_gradients(dtype):
    """An all-padding row gives zeros and gradients 0, the rest is finite."""
    query, key, value = (x.astype(dtype) for x in draw(7))
    mask = jnp.ones((3, 1, 4, 5), bool).at[1].set(False)  # sentence 1 is a filler

    def loss(query, key, value):
        output, weights = attention(query, key, value, mask)
        return jnp.square(output.astype(jnp.float32)).sum(), (output, weights)

    gradients, (output, weights) = jax.jit(
        jax.grad(loss, argnums=(0, 1, 2), has_aux=True)
    )(query, key, value)
    assert output.dtype == dtype
    for array in (output, weights, *gradients):
        assert np.isfinite(np.asarray(array, np.float32)).all()
        assert (np.asarray(array, np.float32)[1] == 0.0).all()
        assert (np.asarray(array, np.float32)[0] != 0.0).any()


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_masks_hold_in_half_precision(dtype):
    """The mask needs no constant in the type of the inputs: large scores, two masks,
    no overflow.
    """
    query, key, value = (100 * x.astype(dtype) for x in draw(8))
    padding = F.padding_mask(jnp.array([[5, 6, 7, 0, 0]] * 3), 0)
    mask = padding & jnp.tri(4, 5, dtype=bool)[None, None]
    output, weights = attention(query, key, value, mask)
    assert np.isfinite(np.asarray(output, np.float32)).all()
    assert (np.asarray(weights)[~np.broadcast_to(mask, weights.shape)] == 0.0).all()
    same(weights.sum(-1), np.ones((3, 2, 4)))


def test_softmax_is_float32_under_bfloat16():
    """Over 4,000 keys, weights of bfloat16 inputs are float32 and exact; their
    mixing is rounded.
    """
    # of width 16, so that the scale, 1/4, is exact in bfloat16
    query, key, value = (
        x.astype(jnp.bfloat16)
        for x in draw(9, batch=1, queries=1, keys=4000, heads=1, width=16)
    )
    output, weights = attention(query, key, value)
    assert weights.dtype == jnp.float32
    assert output.dtype == jnp.bfloat16
    same(weights.sum(-1), np.ones((1, 1, 1)), 1e-6)
    expected_output, expected_weights = brute_force(query, key, value)
    np.testing.assert_allclose(weights, expected_weights, rtol=1e-5)
    # bfloat16 rounds the weights and the output: 2^-9 each, of values below 4
    same(output, expected_output, 2**-7)


def test_scores_do_not_overflow():
    """Scores of +-1e4 and equal scores of any size are softmaxed without overflow."""
    scores = jnp.array([[[1e4, -1e4, 1e4], [3e30, 3e30, -3e30], [-1e4, -1e4, -1e4]]])
    same(F.masked_softmax(scores), [[[0.5, 0, 0.5], [0.5, 0.5, 0], [1 / 3] * 3]])
    same(
        F.masked_softmax(scores, jnp.array([[[False, True, True]]])),
        [[[0, 0, 1], [0, 1, 0], [0, 0.5, 0.5]]],
    )


def test_gradients_equal_finite_differences():
    """The gradient of masked attention is that of central differences of the float64
    brute force.
    """
    inputs = draw(10, batch=2, queries=2, keys=3, width=4, value_width=3)
    rng = np.random.default_rng(11)
    mask = np.array([[[[1, 0, 1], [0, 0, 0]]], [[[1, 1, 1], [1, 1, 0]]]], bool)
    weigh = rng.normal(size=(2, 2, 2, 3)).astype(np.float32)
    gradients = jax.grad(
        lambda q, k, v: (attention(q, k, v, jnp.asarray(mask))[0] * weigh).sum(),
        argnums=(0, 1, 2),
    )(*inputs)
    for which, gradient in enumerate(gradients):
        direction = rng.normal(size=gradient.shape)
        ahead, behind = ([np.asarray(x, np.float64) for x in inputs] for _ in range(2))
        ahead[which] = ahead[which] + 1e-5 * direction
        behind[which] = behind[which] - 1e-5 * direction
        slope = (
            (brute_force(*ahead, mask)[0] - brute_force(*behind, mask)[0]) * weigh
        ).sum() / 2e-5
        same((np.asarray(gradient, np.float64) * direction).sum(), slope)


def random_projections(seed, d_model, heads, d_k, d_v):
    rng = np.random.default_rng(seed)

    def array(*shape):
        return jnp.asarray(rng.normal(size=shape).astype(np.float32) * 0.3)

    return {
        "query": {"kernel": array(d_model, heads, d_k), "bias": array(heads, d_k)},
        "key": {"kernel": array(d_model, heads, d_k), "bias": array(heads, d_k)},
        "value": {"kernel": array(d_model, heads, d_v), "bias": array(heads, d_v)},
        "output": {"kernel": array(heads, d_v, d_model), "bias": array(d_model)},
    }


def test_multi_head_attention_equals_brute_force():
    """Concat(head_1, ..., head_h) W^O, biases everywhere, d_k unlike d_v, S unlike
    T.
    """
    params = random_projections(12, 8, 3, 5, 2)
    rng = np.random.default_rng(13)
    x, memory = (
        rng.normal(size=(2, length, 8)).astype(np.float32) for length in (3, 4)
    )
    mask = np.array([[[[1, 1, 0, 0]]], [[[1, 1, 1, 1]]]], bool)
    wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    projected = [
        np.stack(
            [
                source @ wide[name]["kernel"][:, h] + wide[name]["bias"][h]
                for h in range(3)
            ],
            axis=2,
        )  # one matrix a head
        for name, source in (("query", x), ("key", memory), ("value", memory))
    ]
    heads, expected_weights = brute_force(*projected, mask)
    concatenated = heads.reshape(2, 3, 6)
    expected = (
        concatenated @ wide["output"]["kernel"].reshape(6, 8) + wide["output"]["bias"]
    )
    output, weights = F.multi_head_attention(
        params, jnp.asarray(x), jnp.asarray(memory), jnp.asarray(mask)
    )
    same(output, expected)
    same(weights, expected_weights)
    memory_projected = F.project_keys_values(params, jnp.asarray(memory))
    again, _ = F.attend(params, jnp.asarray(x), memory_projected, jnp.asarray(mask))
    np.testing.assert_array_equal(again, output)


def test_equals_flax_multi_head_attention():
    """With the same parameters, flax.linen.MultiHeadDotProductAttention gives the
    same output and gradients.
    """
    params = random_projections(14, 8, 2, 4, 4)
    rng = np.random.default_rng(15)
    x, memory = (
        jnp.asarray(rng.normal(size=(2, length, 8)).astype(np.float32))
        for length in (3, 5)
    )
    mask = jnp.asarray(rng.random((2, 1, 3, 5)) < 0.6).at[..., 0].set(True)
    other = flax.linen.MultiHeadDotProductAttention(num_heads=2, deterministic=True)

    def theirs(params, x, memory):
        renamed = {
            **{name: params[name] for name in ("query", "key", "value")},
            "out": params["output"],
        }
        return other.apply({"params": renamed}, x, memory, mask=mask)

    def ours(params, x, memory):
        return F.multi_head_attention(params, x, memory, mask)[0]

    def output_and_gradients(function):
        def loss(*arguments):
            output = function(*arguments)
            return jnp.square(output).sum(), output

        return jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(
            params, x, memory
        )

    with jax.numpy_rank_promotion("allow"):  # theirs adds biases by rank promotion
        expected = output_and_gradients(theirs)
    jax.tree.map(same, output_and_gradients(ours), expected)


def test_attention_dropout_acts_on_the_weights_used_not_on_those_returned():
    """Dropout drops (query, key) pairs, scales the rest, and leaves the returned
    weights alone.
    """
    query, key, _ = draw(16, batch=1, queries=40, keys=50, heads=2)
    # the output is then the weights used
    value = jnp.broadcast_to(jnp.eye(50)[None, :, None, :], (1, 50, 2, 50))
    clean, weights = attention(query, key, value)
    output, returned = attention(
        query, key, value, dropout_rate=0.25, dropout_key=jax.random.key(0)
    )
    np.testing.assert_array_equal(returned, weights)
    kept = np.asarray(output) != 0.0
    assert abs(kept.mean() - 0.75) < 5 * np.sqrt(0.25 * 0.75 / kept.size)
    same(np.asarray(output)[kept], np.asarray(clean)[kept] / 0.75)
    np.testing.assert_array_equal(
        attention(query, key, value, dropout_rate=0.25)[0], clean
    )


def test_shapes_that_do_not_fit_are_refused():
    """Types and shapes at the border are those of the signature: heads that differ
    or a numeric mask fail.
    """
    query, key, value = draw(17)
    with pytest.raises(Exception, match="dot_product_attention"):
        F.dot_product_attention(query, key[:, :, :1], value)
    with pytest.raises(Exception, match="dot_product_attention"):
        F.dot_product_attention(query, key, value, jnp.zeros((1, 1, 4, 5)))  # pyright: ignore


@pytest.mark.usefixtures("unchecked")
def test_a_mask_of_numbers_is_refused():
    """A mask that is to be added would turn into its opposite, and one of three axes
    could mean two things.
    """
    x = jax.random.normal(jax.random.key(0), (4, 5, 4, 8))
    allowed = jnp.tri(5, dtype=bool)
    for mask in (jnp.where(allowed, 0.0, -1e9), allowed.astype(jnp.int32)):
        with pytest.raises(
            InputError, match=f"a mask is boolean, True = may attend, not {mask.dtype}"
        ):
            F.dot_product_attention(x, x, x, mask[None, None])
        with pytest.raises(InputError, match="a mask is boolean"):
            F.masked_softmax(jnp.zeros((5, 5)), mask)
    for mask in (allowed, jnp.broadcast_to(allowed, (4, 5, 5))):
        with pytest.raises(
            InputError,
            match=r"a mask has the four axes \[B, H, T, S\], .* not the shape \(",
        ):
            F.dot_product_attention(x, x, x, mask)


@pytest.mark.usefixtures("unchecked")
def test_what_does_not_fit_is_refused():
    """Integers, whose results would be rounded, and another width than that of the
    parameters.
    """
    x = jnp.ones((2, 3, 4, 8))
    for place in range(3):
        inputs = [x.astype(jnp.int32) if place == i else x for i in range(3)]
        with pytest.raises(
            InputError,
            match="computes with floating-point numbers, not int32: cast the input",
        ):
            F.dot_product_attention(*inputs)
    params = {
        name: {"kernel": jnp.ones((16, 2, 8)), "bias": jnp.zeros((2, 8))}
        for name in ("query", "key", "value")
    } | {"output": {"kernel": jnp.ones((2, 8, 16)), "bias": jnp.zeros(16)}}
    narrow = jnp.ones((2, 3, 12))
    with pytest.raises(
        InputError,
        match=(
            r"shape \(2, 3, 12\) does not fit .* \(16, 2, 8\): its width, 12, must be"
            r" the 16"
        ),
    ):
        F.multi_head_attention(params, narrow, narrow)
