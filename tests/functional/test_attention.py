"""Attention against a brute force in float64, and what masks promise."""

import functools

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest

from jaxformer import InputError
from jaxformer import functional as F

attention = jax.jit(F.dot_product_attention, static_argnames="dropout_rate")


def brute_force(query, key, value, mask=True, bias=0):
    """Compute equation 1 with loops over only the allowed keys, in float64."""
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    batch, length, heads, width = query.shape
    output = np.zeros((batch, length, heads, value.shape[-1]))
    weights = np.zeros((batch, heads, length, key.shape[1]))
    mask, bias = (np.broadcast_to(x, weights.shape) for x in (mask, bias))
    for b, t, h in np.ndindex(batch, length, heads):
        allowed = np.flatnonzero(mask[b, h, t])
        if len(allowed):
            scores = key[b, allowed, h] @ query[b, t, h] / np.sqrt(width)
            scores = scores + bias[b, h, t, allowed]
            exponentials = np.exp(scores - scores.max())
            weights[b, h, t, allowed] = exponentials / exponentials.sum()
            output[b, t, h] = weights[b, h, t] @ value[b, :, h]
    return output, weights


def draw(seed, *, batch=3, queries=4, keys=5, heads=2, widths=(8, 6)):
    rng = np.random.default_rng(seed)
    query = rng.normal(size=(batch, queries, heads, widths[0]))
    key = rng.normal(size=(batch, keys, heads, widths[0]))
    value = rng.normal(size=(batch, keys, heads, widths[1]))
    return [x.astype(np.float32) for x in (query, key, value)]


def same(actual, expected, tolerance=1e-5):
    actual = np.asarray(actual, np.float64)
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [
        ({}, None),
        ({"batch": 1, "queries": 7, "heads": 1, "widths": (1, 3)}, (1, 1, 7, 5)),
        ({}, (3, 2, 4, 5)),
        ({}, (3, 1, 1, 5)),
        ({}, (1, 2, 4, 1)),
    ],
)
def test_equals_brute_force(sizes, shape):
    """With d_k unlike d_v and masks whose axes of size 1 broadcast: True may attend.
    Weights and outputs of rows without keys are 0, and masked keys have weight 0.
    """
    inputs = draw(1, **sizes)
    mask = () if shape is None else (np.random.default_rng(2).random(shape) < 0.6,)
    output, weights = attention(*inputs, *mask)
    expected, expected_weights = brute_force(*inputs, *mask)
    same(output, expected)
    same(weights, expected_weights)
    assert (np.asarray(weights)[expected_weights == 0] == 0).all()


@pytest.mark.parametrize("shape", [(3, 2, 4, 5), (1, 2, 1, 5), (1, 1, 4, 5)])
def test_a_bias_is_added_to_scaled_scores(shape):
    """Before the mask, with axes of size 1 that broadcast; it has a gradient."""
    inputs, rng = draw(3), np.random.default_rng(4)
    bias = rng.normal(size=shape).astype(np.float32)
    mask = rng.random((3, 1, 4, 5)) < 0.6
    output, weights = attention(*inputs, mask, bias=bias)
    expected, expected_weights = brute_force(*inputs, mask, bias)
    same(output, expected)
    same(weights, expected_weights)
    slope = jax.grad(lambda bias: attention(*inputs, mask, bias=bias)[0].sum())(bias)
    assert slope.shape == shape
    assert np.abs(slope).max() > 1e-3


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_heads_of_queries_share_keys_and_values(groups):
    """Query heads g H/G to (g + 1) H/G - 1 use head g of keys and values."""
    query, key, value = draw(5, heads=4)
    key, value = key[:, :, :groups], value[:, :, :groups]
    own = [0 if groups == 1 else head * groups // 4 for head in range(4)]
    expected, expected_weights = brute_force(query, key[:, :, own], value[:, :, own])
    output, weights = attention(query, key, value)
    same(output, expected)
    same(weights, expected_weights)
    three = [np.repeat(x, 3, axis=2)[:, :, :3] for x in (key, value)]
    with pytest.raises(InputError, match="4 heads of queries cannot share 3 heads"):
        attention(query, *three)


def test_queries_and_keys_are_normalized_and_rotated():
    """Each head by its root mean square, then turned; values are neither. Scores stay
    below the square root of d_k, however large the input is.
    """
    rng = np.random.default_rng(6)
    shapes = {"query": (6, 2, 4), "key": (6, 2, 4), "value": (6, 2, 3)}
    params = {name: {"kernel": rng.normal(size=s)} for name, s in shapes.items()}
    params |= {"output": {"kernel": rng.normal(size=(2, 3, 6))}}
    scales = {
        name: {"scale": rng.normal(size=4)} for name in ("query_norm", "key_norm")
    }
    params = jax.tree.map(np.float32, params | scales)
    x = rng.normal(size=(2, 5, 6)).astype(np.float32)

    def normal(name):
        heads = np.einsum("btd,dhk->bthk", np.float64(x), params[name]["kernel"])
        mean = np.sqrt((heads**2).mean(-1, keepdims=True) + 1e-6)
        return heads / mean * params[f"{name}_norm"]["scale"] + 1

    values = np.einsum("btd,dhk->bthk", x, params["value"]["kernel"])
    heads, _ = brute_force(normal("query"), normal("key"), values)
    expected = np.einsum("bthk,hkd->btd", heads, params["output"]["kernel"])
    turn = lambda heads: heads + 1  # noqa: E731
    run = jax.jit(lambda params, x: F.multi_head_attention(params, x, x, rotate=turn))
    found, _ = run(params, x)
    same(found, expected, 2e-5)


def test_content_of_masked_keys_is_ignored():
    """Huge keys and values where the mask is False change no bit."""
    query, key, value = draw(6)
    mask = np.array([1, 0, 1, 0, 1], bool)[None, None, None]
    hidden = ~mask[0, 0, 0][None, :, None, None]
    clean = attention(query, key, value, mask)
    for huge in (1e10, -1e10, 3e38):
        dirty = np.where(hidden, np.float32(huge), value)
        found = attention(query, key, dirty, mask)
        jax.tree.map(np.testing.assert_array_equal, found, clean)
    found = attention(query, np.where(hidden, np.float32(1e10), key), value, mask)
    jax.tree.map(np.testing.assert_array_equal, found, clean)


def brute_force_gradients(query, key, value, cotangent, mask):
    """Compute the gradients of equation 1 row by row, in float64."""
    _, weights = brute_force(query, key, value, mask)
    arrays = [np.asarray(x, np.float64) for x in (query, key, value)]
    cotangent = np.asarray(cotangent, np.float64)
    query, key, value = arrays
    to_query, to_key, to_value = (np.zeros_like(x) for x in arrays)
    for b, h, t in np.ndindex(weights.shape[:3]):
        row = weights[b, h, t]
        to_value[b, :, h] += np.outer(row, cotangent[b, t, h])
        jacobian = np.diag(row) - np.outer(row, row)
        to_scores = jacobian @ value[b, :, h] @ cotangent[b, t, h]
        to_scores /= np.sqrt(query.shape[-1])
        to_query[b, t, h] = to_scores @ key[b, :, h]
        to_key[b, :, h] += np.outer(to_scores, query[b, t, h])
    return to_query, to_key, to_value


@pytest.mark.usefixtures("platform")
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [("float64", 1e-12), ("float32", 1e-5), ("bfloat16", 2**-6), ("float16", 2**-9)],
)
def test_gradients_equal_brute_force(dtype, tolerance):
    """Of outputs and, in full precision, of the weights returned, in both modes. Rows
    without keys and masked keys have exactly 0.
    """
    # Of width 16, so that the scale, 1/4, is exact in half precision.
    with jax.enable_x64(True):
        inputs = [jnp.asarray(x, dtype) for x in draw(3, widths=(16, 6))]
        (cotangent,) = (jnp.asarray(x, dtype) for x in draw(4, widths=(6, 6))[:1])
        mask = np.random.default_rng(5).random((3, 1, 4, 5)) < 0.6
        mask[1], mask[0, :, :, 2] = False, False

        attend = jax.jit(lambda *x: F.dot_product_attention(*x, jnp.asarray(mask)))
        found = jax.vjp(lambda *x: attend(*x)[0], *inputs)[1](cotangent)
        exact = brute_force_gradients(*inputs, cotangent, mask)
        for near, right in zip(found, exact, strict=True):
            assert near.dtype == dtype
            error = np.abs(np.asarray(near, np.float64) - right).max()
            assert error < tolerance * np.abs(right).max()
            assert (np.asarray(near)[1] == 0).all()
        assert (np.asarray(found[1])[0, 2] == 0).all()
        if dtype == "float64":
            jax.test_util.check_grads(attend, inputs, order=2)


@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_the_backward_pass_keeps_weights_only_in_the_dtype_of_the_values(dtype):
    """Of all arrays of queries x keys, one."""
    inputs = [x.astype(dtype) for x in draw(8, queries=7)]
    mask = jnp.ones((3, 1, 1, 5), bool)
    pull = jax.eval_shape(
        lambda *x: jax.vjp(lambda *x: F.dot_product_attention(*x, mask)[0], *x)[1],
        *inputs,
    )
    kept = [leaf for leaf in jax.tree.leaves(pull) if leaf.shape[-2:] == (7, 5)]
    assert [leaf.dtype for leaf in kept] == [dtype]


def test_softmax_is_float32_under_bfloat16():
    """Over 4,000 keys the weights are exact; only their mixing is rounded."""
    # Of width 16, so that the scale, 1/4, is exact in bfloat16.
    sizes = {"batch": 1, "queries": 1, "keys": 4000, "heads": 1, "widths": (16, 6)}
    inputs = [x.astype(jnp.bfloat16) for x in draw(9, **sizes)]
    output, weights = attention(*inputs)
    assert weights.dtype == jnp.float32
    assert output.dtype == jnp.bfloat16
    expected, expected_weights = brute_force(*inputs)
    np.testing.assert_allclose(weights, expected_weights, rtol=1e-5)
    # bfloat16 rounds the weights and the output: 2^-9 each, of values below 4.
    same(output, expected, 2**-7)


def test_scores_do_not_overflow():
    """Scores of +-1e4 and equal scores of any size."""
    scores = [[[1e4, -1e4, 1e4], [3e30, 3e30, -3e30], [-1e4, -1e4, -1e4]]]
    softmax = jax.jit(F.masked_softmax)
    found = softmax(np.float32(scores), np.ones((1, 3, 3), bool))
    same(found, [[[0.5, 0, 0.5], [0.5, 0.5, 0], [1 / 3] * 3]])
    found = softmax(np.float32(scores), np.array([[[False, True, True]] * 3]))
    same(found, [[[0, 0, 1], [0, 1, 0], [0, 0.5, 0.5]]])


def test_dropout_acts_on_the_weights_used_not_on_those_returned():
    """It drops (query, key) pairs and scales the rest."""
    query, key, _ = draw(16, batch=1, queries=40, keys=50)
    # The output is then the weights used.
    value = np.repeat(np.eye(50, dtype=np.float32)[None, :, None], 2, axis=2)
    clean, weights = attention(query, key, value)
    drop = {"dropout_rate": 0.25}
    output, returned = attention(
        query, key, value, dropout_key=jax.random.key(0), **drop
    )
    np.testing.assert_array_equal(returned, weights)
    kept = np.asarray(output) != 0.0
    assert abs(kept.mean() - 0.75) < 5 * np.sqrt(0.25 * 0.75 / kept.size)
    same(np.asarray(output)[kept], np.asarray(clean)[kept] / 0.75)
    np.testing.assert_array_equal(attention(query, key, value, **drop)[0], clean)


X, ALLOWED = jnp.zeros((4, 5, 4, 8)), jnp.tri(5, dtype=bool)
INNER = {"kernel": jnp.zeros((16, 2, 8)), "bias": jnp.zeros((2, 8))}
NUMBERS = "a mask is boolean, True = may attend, not float32"
NARROW = r"shape \(2, 3, 12\) does not fit .* \(16, 2, 8\): its width, 12, must be"


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("function", "inputs", "line"),
    [
        (F.dot_product_attention, (X, X, X, jnp.tri(5)[None, None]), NUMBERS),
        (F.masked_softmax, (X[0, 0], jnp.tri(5)), NUMBERS),
        (F.dot_product_attention, (X, X, X, ALLOWED), r"the four axes \[B, H, T, S\]"),
        *(
            (
                functools.partial(
                    F.dot_product_attention, bias=ALLOWED[None, None].astype(dtype)
                ),
                (X, X, X),
                f"a bias of {dtype} would be added .* give a boolean one as the mask",
            )
            for dtype in ("bool", "int32")
        ),
        (F.dot_product_attention, (X, X, X.astype(int)), "floating-point .* not int32"),
        (
            F.multi_head_attention,
            (
                {"query": INNER, "key": INNER, "value": INNER},
                *[jnp.zeros((2, 3, 12))] * 2,
            ),
            NARROW,
        ),
    ],
)
def test_what_does_not_fit_is_refused(function, inputs, line):
    with pytest.raises(InputError, match=line):
        function(*inputs)


@pytest.mark.parametrize("backend", ["plain", "pallas", "cudnn"])
@pytest.mark.parametrize("rate", [1.0, -0.1, np.nan])
def test_an_impossible_dropout_rate_is_refused_without_a_key_too(rate, backend):
    x = jnp.zeros((1, 4, 2, 8))
    with pytest.raises(InputError, match=rf"at least 0 and below 1, not {rate}"):
        F.dot_product_attention(x, x, x, dropout_rate=rate, backend=backend)
