"""One position at a time from a store gives what attention over the whole sequence gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.functional import attend, cached_attention, causal_mask, project_keys_values
from jaxformer.functional.attention import KeysValues
from jaxformer.functional.cached_attention import (
    NOBODY,
    Store,
    attend_to_begin,
    attend_to_store,
    extend,
    project_to_store,
    readable,
    store,
)

D, H, K, K2 = 12, 3, 5, 4


def draw(rng, *shape):
    return jnp.asarray(rng.standard_normal(shape), jnp.float32)


def make_params(rng):
    kernels = {"query": (D, H, K), "key": (D, H, K), "value": (D, H, K2), "output": (H, K2, D)}
    return {
        name: {"kernel": draw(rng, *shape), "bias": draw(rng, *(shape[-1:] if name == "output" else shape[1:]))}
        for name, shape in kernels.items()
    }


def test_a_memory_answers_as_it_does_without_a_store():
    """W hypotheses that ask a stored memory get what they would get as positions of one query."""
    rng = np.random.default_rng(1)
    params, x, memory = make_params(rng), draw(rng, 2, 4, D), draw(rng, 2, 7, D)
    mask = jnp.asarray(np.arange(7) < np.array([[7], [3]]))[:, None, None, :]
    expected = attend(params, x, project_keys_values(params, memory), mask)
    found = attend_to_store(params, x, project_to_store(params, memory), mask)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_hypotheses_read_their_ancestors_alone(seed):
    """Hypotheses that take each other's place at random see their own past: each gets what causal self-attention over
    its own sequence of inputs gives (statement 96).
    """
    rng = np.random.default_rng(seed)
    sentences, width, length = 2, 3, 6
    params = make_params(rng)
    kept = Store(jnp.zeros((sentences, H, K, length * width)), jnp.zeros((sentences, H, length * width, K2)))
    ancestors = jnp.full((sentences, width, length), NOBODY)
    pasts = [[[] for _ in range(width)] for _ in range(sentences)]
    for position in range(length):
        x = draw(rng, sentences, width, D)
        kept = extend(kept, project_keys_values(params, x), jnp.int32(position))
        ancestors = ancestors.at[:, :, position].set(jnp.arange(width)[None, :])
        found, _ = attend_to_store(params, x, kept, readable(ancestors))
        for sentence in range(sentences):
            for place in range(width):
                pasts[sentence][place] = [*pasts[sentence][place], x[sentence, place]]
                own = jnp.stack(pasts[sentence][place])[None]
                expected, _ = attend(params, own, project_keys_values(params, own), causal_mask(position + 1))
                np.testing.assert_allclose(found[sentence, place], expected[0, -1], rtol=2e-5, atol=2e-5)
        parents = rng.integers(width, size=(sentences, width))
        ancestors = jnp.take_along_axis(ancestors, jnp.asarray(parents)[:, :, None], axis=1)
        pasts = [[pasts[b][parent] for parent in parents[b]] for b in range(sentences)]


@pytest.mark.parametrize("worth", [0, 2**18])
@pytest.mark.parametrize("position", [0, 14, 15, 16, 31, 32, 39])
def test_the_begin_of_a_store_is_read_as_the_whole_of_it(worth, position, monkeypatch):
    """On both sides of each length of which one is chosen, whatever stands behind it."""
    monkeypatch.setattr(cached_attention, "_WORTH_A_BRANCH", worth)
    rng = np.random.default_rng(position)
    sentences, width, length = 2, 3, 40
    params, x = make_params(rng), draw(rng, sentences, width, D)
    stored = Store(draw(rng, sentences, H, K, length * width), draw(rng, sentences, H, length * width, K2))
    mask = rng.random((sentences, 1, width, length * width)) < 0.7
    mask[..., width * (position + 1) :] = False
    mask[..., width * position] = True
    expected, _ = attend_to_store(params, x, stored, jnp.asarray(mask))
    begin = jax.jit(lambda position: attend_to_begin(params, x, stored, jnp.asarray(mask), position))
    np.testing.assert_allclose(begin(jnp.int32(position)), expected, rtol=1e-5, atol=1e-5)
    assert ("stablehlo.case" in begin.lower(jnp.int32(position)).as_text()) == (worth == 0)


def test_places_of_a_position_lie_together():
    """The W places of position t are those from t W on, and nothing else is written."""
    rng = np.random.default_rng(5)
    new = KeysValues(draw(rng, 1, 2, H, K), draw(rng, 1, 2, H, K2))
    kept = extend(Store(jnp.zeros((1, H, K, 8)), jnp.zeros((1, H, 8, K2))), new, jnp.int32(3))
    np.testing.assert_array_equal(kept.keys[..., 6:], store(new).keys)
    np.testing.assert_array_equal(kept.values[:, :, 6:], store(new).values)
    assert not np.asarray(kept.keys[..., :6]).any()
    assert not np.asarray(kept.values[:, :, :6]).any()
