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

RANDOM = np.random.default_rng(0)
X, MEMORY = (
    jnp.asarray(RANDOM.normal(size=(2, n, 8)).astype(np.float32)) for n in (3, 5)
)
MASK = jnp.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)[:, None, None]


def test_module_equals_function_on_its_parameters():
    """Also bridged to NNX."""
    module = MultiHeadAttention(8, 2, 5, 2)
    bridged = bridge.ToNNX(module, rngs=nnx.Rngs(0)).lazy_init(X, MEMORY, MASK)
    params = nnx.to_pure_dict(nnx.state(bridged, nnx.Param))
    assert jax.tree.map(jnp.shape, params) == {
        "query": {"kernel": (8, 2, 5), "bias": (2, 5)},
        "key": {"kernel": (8, 2, 5), "bias": (2, 5)},
        "value": {"kernel": (8, 2, 2), "bias": (2, 2)},
        "output": {"kernel": (2, 2, 8), "bias": (8,)},
    }

    @jax.jit
    def run(params):
        variables = {"params": params}
        whole = module.apply(variables, X, MEMORY, MASK)
        return whole, F.multi_head_attention(params, X, MEMORY, MASK)

    whole, expected = run(params)
    jax.tree.map(np.testing.assert_array_equal, whole, expected)
    found = nnx.jit(lambda attention, *x: attention(*x))(bridged, X, MEMORY, MASK)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_rotary_positions_and_windows_are_of_self_attention():
    """With other positions the numbers are others; another memory is refused."""
    own = {"rotary_base": 100.0, "window": 2}
    module = MultiHeadAttention(8, 2, biases=False, num_key_value_heads=1, **own)
    variables = module.init(jax.random.key(0), X, X)
    params = variables["params"]
    assert jax.tree.map(jnp.shape, params) == {
        "query": {"kernel": (8, 2, 4)},
        "key": {"kernel": (8, 1, 4)},
        "value": {"kernel": (8, 1, 4)},
        "output": {"kernel": (2, 4, 8)},
    }
    rotate = lambda heads: F.rotary(heads, jnp.arange(3), base=100.0)  # noqa: E731
    expected = F.multi_head_attention(
        params, X, X, F.causal_mask(3) & F.window_mask(3, 2), rotate=rotate
    )
    for mask in (F.causal_mask(3), F.SegmentMask(jnp.ones((2, 3), int), causal=True)):
        found = module.apply(variables, X, X, mask)
        jax.tree.map(np.testing.assert_array_equal, found, expected)
    with pytest.raises(InputError, match="are for self-attention: attend to x"):
        module.apply(variables, X, MEMORY)
