"""One position at a time from a store gives what attention over the whole sequence
gives.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.functional import attend, causal_mask, project_keys_values
from jaxformer.functional.attention import KeysValues
from jaxformer.functional.cache import (
    NO_ANCESTOR,
    KeyValueStore,
    attend_to_spans,
    attend_to_store,
    empty_spans,
    extend,
    project_to_store,
    readable,
    store,
)

D, H, K, K2 = 12, 3, 5, 4


read = jax.jit(attend_to_spans)
write = jax.jit(extend)


def draw(rng, *shape):
    return jnp.asarray(rng.standard_normal(shape), jnp.float32)


def make_params(rng):
    kernels = {
        "query": (D, H, K),
        "key": (D, H, K),
        "value": (D, H, K2),
        "output": (H, K2, D),
    }
    return {
        name: {
            "kernel": draw(rng, *shape),
            "bias": draw(rng, *(shape[-1:] if name == "output" else shape[1:])),
        }
        for name, shape in kernels.items()
    }


def test_a_memory_answers_as_it_does_without_a_store():
    """W hypotheses that ask a stored memory get what they would get as positions of
    one query.
    """
    rng = np.random.default_rng(1)
    params, x, memory = make_params(rng), draw(rng, 2, 4, D), draw(rng, 2, 7, D)
    mask = jnp.asarray(np.arange(7) < np.array([[7], [3]]))[:, None, None, :]
    expected = attend(params, x, project_keys_values(params, memory), mask)
    found = attend_to_store(params, x, project_to_store(params, memory), mask)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def spans_of(keys, values, width):
    """Cut keys and values as a cache of their length is cut."""
    sentences, heads, places, d_v = values.shape
    empty = empty_spans(
        sentences,
        heads,
        keys.shape[2],
        d_v,
        width=width,
        length=places // width,
        dtype=jnp.dtype("float32"),
    )
    ends = np.cumsum([span.values.shape[2] for span in empty])
    assert ends[-1] == places
    pairs = zip(
        np.split(keys, ends[:-1], axis=3),
        np.split(values, ends[:-1], axis=2),
        strict=True,
    )
    return tuple(
        KeyValueStore(jnp.asarray(some), jnp.asarray(others)) for some, others in pairs
    )


def joined(spans):
    """Return one store of all positions."""
    return KeyValueStore(
        jnp.concatenate([span.keys for span in spans], axis=3),
        jnp.concatenate([span.values for span in spans], axis=2),
    )


@pytest.mark.parametrize("seed", range(4))
def test_hypotheses_read_their_ancestors_alone(seed):
    """Hypotheses that take each other's place at random see their own past: each gets
    what causal self-attention over its own sequence of inputs gives.
    """
    rng = np.random.default_rng(seed)
    sentences, width, length = 2, 3, 26
    params = make_params(rng)
    kept = empty_spans(
        sentences, H, K, K2, width=width, length=length, dtype=jnp.dtype("float32")
    )
    assert len(kept) == 2
    ancestors = jnp.full((sentences, width, length), NO_ANCESTOR)
    pasts = jnp.zeros((sentences, width, length, D))
    for position in range(length):
        x = draw(rng, sentences, width, D)
        kept = write(kept, project_keys_values(params, x), jnp.int32(position))
        ancestors = ancestors.at[:, :, position].set(jnp.arange(width)[None, :])
        found = read(params, x, kept, readable(ancestors), jnp.int32(position))
        pasts = pasts.at[:, :, position].set(x)
        own = pasts.reshape(-1, length, D)  # nothing behind the position is seen by it
        expected, _ = attend(
            params, own, project_keys_values(params, own), causal_mask(length)
        )
        np.testing.assert_allclose(
            found, expected[:, position].reshape(found.shape), rtol=2e-5, atol=2e-5
        )
        parents = rng.integers(width, size=(sentences, width))
        ancestors = jnp.take_along_axis(
            ancestors, jnp.asarray(parents)[:, :, None], axis=1
        )
        pasts = jnp.take_along_axis(
            pasts, jnp.asarray(parents)[:, :, None, None], axis=1
        )


@pytest.mark.parametrize("position", [0, 12, 23, 24, 50, 95, 96, 299, 383, 384, 399])
def test_spans_are_read_as_one_store_of_all_positions(position):
    """On both sides of the begin of each span, whatever stands in those behind it,
    which are not read at all.
    """
    rng = np.random.default_rng(position)
    sentences, width, length = 2, 3, 400
    params, x = make_params(rng), draw(rng, sentences, width, D)
    keys, values = (
        draw(rng, sentences, H, K, length * width),
        draw(rng, sentences, H, length * width, K2),
    )
    mask = rng.random((sentences, 1, width, length * width)) < 0.7
    mask[..., width * (position + 1) :] = False
    mask[..., width * position] = True
    expected, _ = attend_to_store(
        params, x, KeyValueStore(keys, values), jnp.asarray(mask)
    )
    spans = spans_of(keys, values, width)
    found = read(params, x, spans, mask, position)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    begun = [begin <= position for begin in (0, 24, 96, 384)]
    behind = tuple(
        span if seen else KeyValueStore(span.keys * jnp.nan, span.values * jnp.nan)
        for span, seen in zip(spans, begun, strict=True)
    )
    np.testing.assert_array_equal(read(params, x, behind, mask, position), found)


@pytest.mark.parametrize("position", [0, 3, 23, 24, 25, 95, 96, 383, 384, 398])
def test_places_of_a_position_lie_together(position):
    """The W places of position t are those from t W on, and nothing else is written."""
    rng = np.random.default_rng(5)
    new = KeysValues(draw(rng, 1, 2, H, K), draw(rng, 1, 2, H, K2))
    before = KeyValueStore(draw(rng, 1, H, K, 798), draw(rng, 1, H, 798, K2))
    kept = joined(
        write(spans_of(before.keys, before.values, 2), new, jnp.int32(position))
    )
    places = slice(2 * position, 2 * position + 2)
    expected = KeyValueStore(
        before.keys.at[..., places].set(store(new).keys),
        before.values.at[:, :, places].set(store(new).values),
    )
    jax.tree.map(np.testing.assert_array_equal, kept, expected)


def test_a_loop_copies_no_span():
    """A step that writes into spans and reads them leaves them where they lie."""
    rng = np.random.default_rng(6)
    sentences, width, length = 2, 3, 100
    params, x = make_params(rng), draw(rng, sentences, width, D)
    empty = empty_spans(
        sentences, H, K, K2, width=width, length=length, dtype=jnp.dtype("float32")
    )

    def body(carry):
        position, x, spans = carry
        spans = extend(spans, project_keys_values(params, x), position)
        seen = jnp.where(jnp.arange(length) <= position, 0, NO_ANCESTOR)
        mask = readable(jnp.broadcast_to(seen, (sentences, width, length)))
        return position + 1, attend_to_spans(params, x, spans, mask, position), spans

    def loop(x, spans):
        return jax.lax.while_loop(
            lambda carry: carry[0] < length, body, (jnp.int32(0), x, spans)
        )

    lines = (
        jax.jit(loop, donate_argnums=1).lower(x, empty).compile().as_text().splitlines()
    )
    for array in jax.tree.leaves(empty):
        shape = "f32[" + ",".join(map(str, array.shape)) + "]"
        assert any(shape in line for line in lines)
        assert not [line for line in lines if f"= {shape}" in line and " copy(" in line]
