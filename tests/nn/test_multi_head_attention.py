"""The attention module owns parameters; the functions do the work."""

# Linen types what apply returns as a union with a tuple of variables.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax.nnx import bridge

from jaxformer import InputError
from jaxformer import functional as F
from jaxformer.nn import MultiHeadAttention


def draw(seed, *shape):
    return jnp.asarray(
        np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    )


X, MEMORY = draw(0, 2, 3, 8), draw(1, 2, 5, 8)
MASK = jnp.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)[:, None, None]


@pytest.mark.parametrize(("d_k", "d_v"), [(None, None), (3, None), (None, 6), (5, 2)])
def test_module_equals_function_on_its_parameters(d_k, d_v):
    """The module is the pure function on its own parameter tree, with d_k and d_v of
    their own.
    """
    module = MultiHeadAttention(8, 2, d_k, d_v)
    params = module.init(jax.random.key(0), X, MEMORY)["params"]
    d_k, d_v = d_k or 4, d_v or 4
    assert jax.tree.map(jnp.shape, params) == {
        "query": {"kernel": (8, 2, d_k), "bias": (2, d_k)},
        "key": {"kernel": (8, 2, d_k), "bias": (2, d_k)},
        "value": {"kernel": (8, 2, d_v), "bias": (2, d_v)},
        "output": {"kernel": (2, d_v, 8), "bias": (8,)},
    }
    assert (
        sum(x.size for x in jax.tree.leaves(params))
        == 2 * 8 * 2 * (d_k + d_v) + 2 * 2 * d_k + 2 * d_v + 8
    )
    output, weights = module.apply({"params": params}, X, MEMORY, MASK)
    expected, expected_weights = F.multi_head_attention(params, X, MEMORY, MASK)
    np.testing.assert_array_equal(output, expected)
    np.testing.assert_array_equal(weights, expected_weights)


def test_projected_memory_serves_many_calls():
    """Keys and values that are projected once give what a whole call gives."""
    module = MultiHeadAttention(8, 2)
    variables = module.init(jax.random.key(1), X, MEMORY)
    projected = module.apply(variables, MEMORY, method="keys_values")
    output, _ = module.apply(variables, X, projected, MASK, method="attend")
    np.testing.assert_array_equal(output, module.apply(variables, X, MEMORY, MASK)[0])


def test_nnx_users_get_the_same_module():
    """Bridged to NNX, the module holds the same parameters and gives the same
    output, also by nnx.jit.
    """
    module = MultiHeadAttention(8, 2)
    bridged = bridge.ToNNX(module, rngs=nnx.Rngs(0)).lazy_init(X, MEMORY, MASK)
    params = nnx.to_pure_dict(nnx.state(bridged, nnx.Param))
    assert set(params) == {"query", "key", "value", "output"}
    expected, expected_weights = module.apply({"params": params}, X, MEMORY, MASK)
    for output, weights in (
        bridged(X, MEMORY, MASK),
        nnx.jit(lambda attention, *inputs: attention(*inputs))(
            bridged, X, MEMORY, MASK
        ),
    ):
        np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(weights, expected_weights, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_parameters_stay_float32(dtype):
    """A half-precision input is computed in its type with float32 parameters,
    gradients and weights.
    """
    module = MultiHeadAttention(8, 2)
    params = module.init(jax.random.key(2), X.astype(dtype), MEMORY.astype(dtype))[
        "params"
    ]

    def loss(params):
        output, weights = module.apply(
            {"params": params}, X.astype(dtype), MEMORY.astype(dtype), MASK
        )
        return jnp.square(output.astype(jnp.float32)).sum(), (output, weights)

    gradients, (output, weights) = jax.jit(jax.grad(loss, has_aux=True))(params)
    assert {x.dtype for x in jax.tree.leaves((params, gradients))} == {
        jnp.dtype("float32")
    }
    assert (output.dtype, weights.dtype) == (dtype, jnp.float32)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradients))


def test_dropout_is_active_in_training_alone():
    """The rate acts under train=True with the stream dropout; without it the module
    needs no key.
    """
    module = MultiHeadAttention(8, 2, dropout_rate=0.5)
    variables = module.init(jax.random.key(3), X, MEMORY)
    clean, _ = module.apply(variables, X, MEMORY)
    np.testing.assert_array_equal(
        clean, MultiHeadAttention(8, 2).apply(variables, X, MEMORY)[0]
    )
    one, two, again = (
        module.apply(
            variables, X, MEMORY, train=True, rngs={"dropout": jax.random.key(k)}
        )[0]
        for k in (4, 5, 4)
    )
    np.testing.assert_array_equal(one, again)
    assert (one != two).any()
    assert (one != clean).any()


@pytest.mark.parametrize(
    ("heads", "line"),
    [
        (4, "d_model 30 is not divisible by num_heads 4"),
        (0, "num_heads must be at least 1, not 0"),
    ],
)
def test_heads_that_do_not_divide_the_width(heads, line):
    """They would be narrower than asked for, without a word."""
    x = jnp.ones((1, 2, 30))
    with pytest.raises(InputError, match=line):
        MultiHeadAttention(30, heads).init(jax.random.key(0), x, x)
    MultiHeadAttention(30, 4, d_k=8, d_v=8).init(jax.random.key(0), x, x)
