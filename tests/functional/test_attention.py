"""Multi-head attention, dropout of its weights, and what it refuses."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import InputError
from jaxformer import functional as F

attention = jax.jit(F.dot_product_attention, static_argnames="drop")


def draw(seed, *, batch=3, queries=4, keys=5, heads=2, widths=(8, 6)):
    rng = np.random.default_rng(seed)
    query = rng.normal(size=(batch, queries, heads, widths[0]))
    key = rng.normal(size=(batch, keys, heads, widths[0]))
    value = rng.normal(size=(batch, keys, heads, widths[1]))
    return [x.astype(np.float32) for x in (query, key, value)]


def same(actual, expected, tolerance=1e-5):
    actual = np.asarray(actual, np.float64)
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


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
    scores = np.exp(np.einsum("bthk,bshk->bhts", normal("query"), normal("key")) / 2)
    weights = scores / scores.sum(-1, keepdims=True)
    heads = np.einsum("bhts,bshk->bthk", weights, values)
    expected = np.einsum("bthk,hkd->btd", heads, params["output"]["kernel"])
    turn = lambda heads: heads + 1  # noqa: E731
    run = jax.jit(lambda params, x: F.multi_head_attention(params, x, x, rotate=turn))
    found, _ = run(params, x)
    same(found, expected, 2e-5)


def test_dropout_acts_on_the_weights_used_not_on_those_returned():
    """It drops (query, key) pairs and scales the rest."""
    query, key, _ = draw(16, batch=1, queries=40, keys=50)
    # The output is then the weights used.
    value = np.repeat(np.eye(50, dtype=np.float32)[None, :, None], 2, axis=2)
    clean, weights = attention(query, key, value)
    drop = functools.partial(F.dropout, rate=0.25, key=jax.random.key(0))
    output, returned = attention(query, key, value, drop=drop)
    np.testing.assert_array_equal(returned, weights)
    kept = np.asarray(output) != 0.0
    assert abs(kept.mean() - 0.75) < 5 * np.sqrt(0.25 * 0.75 / kept.size)
    same(np.asarray(output)[kept], np.asarray(clean)[kept] / 0.75)


X, ALLOWED = jnp.zeros((4, 5, 4, 8)), jnp.tri(5, dtype=bool)
INNER = {"kernel": jnp.zeros((16, 2, 8)), "bias": jnp.zeros((2, 8))}
NUMBERS = r"takes mask: Bool\[.*\], not float32\[1, 1, 5, 5\], for query: Float"
NARROW = r"\['kernel'\]: Float\[D H K\], not float32\[16, 2, 8\], for x: .* 12\]"


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("function", "inputs", "line"),
    [
        (F.dot_product_attention, (X, X, X, jnp.tri(5)[None, None]), NUMBERS),
        (F.masked_softmax, (X[0, 0], jnp.tri(4)), "mask: Bool.*, not float32"),
        (
            F.dot_product_attention,
            (X, X, X, ALLOWED),
            r"\[#B #H #T #S\], not bool\[5, 5\]",
        ),
        (
            functools.partial(F.dot_product_attention, bias=ALLOWED[None, None]),
            (X, X, X),
            "takes bias: Float.*, not bool",
        ),
        (
            F.attend_by_scores,
            (X[0], X[0].mT, ALLOWED),
            r"\[#B #T S\], not bool\[5, 5\]",
        ),
        (F.dot_product_attention, (X, *[X[:, :, :3]] * 2), "4 heads of queries cannot"),
        (
            F.dot_product_attention,
            (X, X, X.astype(int)),
            r"value: Float\[B S G K2\], not int32",
        ),
        (
            F.multi_head_attention,
            (
                {"query": INNER, "key": INNER, "value": INNER},
                *[jnp.zeros((2, 3, 12))] * 2,
            ),
            NARROW,
        ),
        (
            F.multi_head_attention,
            ({"query": INNER}, *[jnp.zeros((2, 3, 16))] * 2),
            "has no 'key'",
        ),
    ],
)
def test_what_does_not_fit_is_refused(function, inputs, line):
    with pytest.raises(InputError, match=line):
        function(*inputs)


def test_axes_without_a_known_size_are_compared(unchecked):
    """As in an exported program: equal ones fit, others do not."""
    rows, other = jax.export.symbolic_shape("rows, other")
    head = lambda size: jax.ShapeDtypeStruct((size, 3, 2, 4), jnp.float32)  # noqa: E731
    mask = jax.ShapeDtypeStruct((rows, 1, 1, 3), bool)
    attend = functools.partial(jax.eval_shape, F.dot_product_attention)
    output, _ = attend(head(rows), head(rows), head(rows), mask)
    assert output.shape == (rows, 3, 2, 4)
    with pytest.raises(InputError, match="takes key"):
        attend(head(rows), head(other), head(rows), mask)
