"""The attention of Bahdanau and of Luong against loops in float64."""

# Linen types what apply returns as a union with a tuple of variables.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import InputError
from jaxformer import functional as F
from jaxformer.nn import EarlierAttention

RANDOM = np.random.default_rng(0)
D, E, A = 4, 6, 5
QUERY = jnp.asarray(RANDOM.normal(size=(2, 3, D)), jnp.float32)
MEMORY = jnp.asarray(RANDOM.normal(size=(2, 7, E)), jnp.float32)
SHAPES = {
    "additive": {"state": (D, A), "memory": (E, A), "energy": (A, 1)},
    "concat": {"both": (D + E, A), "energy": (A, 1)},
    "general": {"state": (D, E)},
    "dot": {},
}


def draw(kind):
    shapes = SHAPES[kind].items()
    return {
        name: {"kernel": jnp.asarray(RANDOM.normal(size=shape), jnp.float32)}
        for name, shape in shapes
    }


def score(kind, kernels, s, h):
    """Compute one score, of a state and a position."""
    if kind == "additive":
        return np.tanh(s @ kernels["state"] + h @ kernels["memory"]) @ kernels["energy"]
    if kind == "concat":
        both = np.concatenate([s, h])
        return np.tanh(both @ kernels["both"]) @ kernels["energy"]
    if kind == "general":
        return s @ kernels["state"] @ h
    return s @ h


@pytest.mark.parametrize("kind", SHAPES)
def test_scores_are_those_of_the_papers(kind):
    """Contexts and weights too, also of a memory that was projected before; masked
    positions have weight 0.
    """
    memory = MEMORY[..., :D] if kind == "dot" else MEMORY
    params = draw(kind)
    kernels = {name: np.asarray(p["kernel"], np.float64) for name, p in params.items()}
    expected = np.zeros((2, 3, 7))
    for b, t, s in np.ndindex(expected.shape):
        state, position = np.float64(QUERY[b, t]), np.float64(memory[b, s])
        expected[b, t, s] = np.squeeze(score(kind, kernels, state, position))
    given = (QUERY, memory) if kind == "dot" else (params, QUERY, memory)
    scores = jax.jit(getattr(F, f"{kind}_scores"))(*given)
    assert scores.dtype == jnp.float32
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)

    mask = jnp.arange(7)[None, None] < jnp.array([7, 4])[:, None, None]
    if kind == "concat":  # its kernel is those of the additive score
        state, position = jnp.split(params.pop("both")["kernel"], [D])
        params |= {"state": {"kernel": state}, "memory": {"kernel": position}}
    module = EarlierAttention(kind, A)
    shapes = module.init(jax.random.key(0), QUERY, memory).get("params", {})
    assert jax.tree.map(jnp.shape, shapes) == jax.tree.map(jnp.shape, params)
    found = module.apply({"params": params}, QUERY, memory, mask)
    keys = module.apply({"params": params}, memory, QUERY.shape[-1], method="project")
    assert (keys is not None) == ("memory" in params)
    again = module.apply({"params": params}, QUERY, memory, mask, keys=keys)
    jax.tree.map(np.testing.assert_array_equal, again, found)
    context, weights = found
    exponentials = np.exp(expected) * np.asarray(mask)
    exponentials /= exponentials.sum(-1, keepdims=True)
    np.testing.assert_allclose(weights, exponentials, rtol=2e-5, atol=1e-6)
    mixed = np.einsum("bts,bse->bte", exponentials, memory)
    np.testing.assert_allclose(context, mixed, rtol=2e-5, atol=1e-5)
    assert (np.asarray(weights)[1, :, 4:] == 0).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["additive", "concat"])
def test_scores_in_half_precision_reach_the_softmax_in_float32(kind, dtype):
    """They are the sums in float64 of products of numbers in half precision, and are
    not rounded to it.
    """
    params = draw(kind)
    query, memory = QUERY.astype(dtype), MEMORY.astype(dtype)
    scores = getattr(F, f"{kind}_scores")(params, query, memory)
    if kind == "concat":
        kernel = params["both"]["kernel"]
        state, keys = F.linear(query, kernel[:D]), F.linear(memory, kernel[D:])
    else:
        state = F.linear(query, **params["state"])
        keys = F.linear(memory, **params["memory"])
    hidden = jnp.tanh(state[:, :, None] + keys[:, None])
    energy = params["energy"]["kernel"].astype(dtype)
    exact = np.float64(hidden) @ np.float64(energy[:, 0])
    assert scores.dtype == jnp.float32
    np.testing.assert_allclose(scores, exact, rtol=1e-6, atol=1e-6)
    assert np.abs(scores.astype(dtype).astype(float) - exact).max() > 1e-4


def test_unknown_kinds_are_refused():
    line = "one of additive, dot, general, concat, not 'cosine'"
    with pytest.raises(InputError, match=line):
        EarlierAttention("cosine").init(jax.random.key(0), QUERY, MEMORY)
