"""A KV cache gives what attention over the whole sequence gives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.functional import (
    causal_mask,
    multi_head_attention,
)
from jaxformer.nn.cache import (
    KeyValueStore,
    attend_to_spans,
    empty_spans,
    extend,
    project_to_store,
    slot_positions,
)

D, H, K, K2 = 12, 3, 5, 4
read = jax.jit(attend_to_spans)


def draw(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def make_params(rng):
    kernels = {"query": (D, H, K), "key": (D, H, K), "value": (D, H, K2)}
    params = {
        name: {"kernel": draw(rng, *shape), "bias": draw(rng, *shape[1:])}
        for name, shape in kernels.items()
    }
    return params | {"output": {"kernel": draw(rng, H, K2, D), "bias": draw(rng, D)}}


def empty(sentences, width, length):
    sizes = {"width": width, "length": length, "dtype": jnp.dtype("float32")}
    return empty_spans(sentences, H, K, K2, **sizes)


def test_spans_are_one_store_of_all_positions():
    """On both sides of the beginning of each span. The W slots of position t are
    adjacent, and nothing else is written. Spans after the position are not read.
    """
    rng = np.random.default_rng(5)
    sentences, width, length = 2, 3, 400
    params, x = make_params(rng), draw(rng, sentences, width, D)
    added = KeyValueStore(draw(rng, 2, H, K, 3), draw(rng, 2, H, 3, K2))
    keys = draw(rng, sentences, H, K, length * width)
    values = draw(rng, sentences, H, length * width, K2)
    ends = np.cumsum([span.values.shape[2] for span in empty(2, width, length)])
    assert ends.tolist() == [3 * n for n in (24, 96, 384, 400)]
    pairs = zip(
        np.split(keys, ends[:-1], 3), np.split(values, ends[:-1], 2), strict=True
    )
    spans = tuple(KeyValueStore(*pair) for pair in pairs)
    write = jax.jit(extend)
    for position in (0, 23, 24, 50, 95, 96, 383, 384, 399):
        mask = rng.random((sentences, 1, width, length * width)) < 0.7
        mask[..., width * (position + 1) :] = False
        mask[..., width * position] = True
        expected, _ = read(params, x, (KeyValueStore(keys, values),), mask)
        found, _ = read(params, x, spans, mask, np.int32(position))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        begun = [begin <= position for begin in (0, 24, 96, 384)]
        nothing = [np.float32(1 if seen else np.nan) for seen in begun]
        dirty = tuple(
            KeyValueStore(span.keys * scale, span.values * scale)
            for span, scale in zip(spans, nothing, strict=True)
        )
        again, _ = read(params, x, dirty, mask, np.int32(position))
        np.testing.assert_array_equal(again, found)

        kept = write(spans, added, np.int32(position))
        slots = slice(width * position, width * (position + 1))
        wanted = keys.copy(), values.copy()
        wanted[0][..., slots], wanted[1][:, :, slots] = added.keys, added.values
        joined = np.concatenate([span.keys for span in kept], axis=3)
        np.testing.assert_array_equal(joined, wanted[0])
        joined = np.concatenate([span.values for span in kept], axis=2)
        np.testing.assert_array_equal(joined, wanted[1])


def test_groups_bias_and_rotation_are_those_of_the_whole_sequence():
    """Four heads of queries share two of keys; positions turn both; over two spans."""
    rng = np.random.default_rng(7)
    heads, groups, width, length = 4, 2, 2, 30
    shapes = {"query": (D, heads, K), "key": (D, groups, K), "value": (D, groups, K2)}
    params = {name: {"kernel": draw(rng, *shape)} for name, shape in shapes.items()}
    params |= {"output": {"kernel": draw(rng, heads, K2, D)}}
    params = jax.tree.map(jnp.asarray, params)
    x, bias = draw(rng, 2, length, D), draw(rng, 1, heads, length, length)
    # Any function of heads and positions does; here both differ at each position.
    turn = lambda heads, places: heads + places[None, :, None, None] / 9  # noqa: E731
    rotate = functools.partial(turn, places=jnp.arange(length))

    @jax.jit
    def whole(params, x, bias):
        how = {"bias": bias, "rotate": rotate}
        return multi_head_attention(params, x, x, causal_mask(length), **how)

    expected, _ = whole(params, x, bias)
    sizes = {"width": width, "length": length, "dtype": jnp.dtype("float32")}
    kept = empty_spans(2, groups, K, K2, **sizes)
    assert len(kept) == 2
    place = slot_positions(length * width, width)

    @jax.jit
    def step(x, kept, position):
        rotate = functools.partial(turn, places=position[None])
        kept = extend(kept, project_to_store(params, x, rotate), position)
        own = jnp.tile(jnp.eye(width, dtype=bool), length)
        mask = (own & (place <= position)[None])[None, None]
        row = jnp.asarray(bias)[:, :, position][:, :, None, place]
        return kept, attend_to_spans(
            params, x, kept, mask, position, bias=row, rotate=rotate
        )[0]

    for position in range(length):
        # Two hypotheses with the same input.
        same = np.repeat(x[:, position : position + 1], width, axis=1)
        kept, found = step(same, kept, np.int32(position))
        wanted = np.repeat(expected[:, position : position + 1], width, axis=1)
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)
