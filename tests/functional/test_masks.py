"""Masks are drawn as pictures of 0 and 1."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional as F

attention = jax.jit(F.dot_product_attention)


def picture(mask):
    """Draw one [T, S] mask as its docstring does."""
    return "\n".join(
        " ".join(str(int(allowed)) for allowed in row) for row in np.asarray(mask)
    )


def test_picture_of_the_padding_mask():
    """Every key that is no padding is allowed, and an unknown token, id 1, is no
    padding.
    """
    mask = F.padding_mask(jnp.array([[5, 6, 0], [1, 0, 0]]), 0)
    assert mask.shape == (2, 1, 1, 3)
    assert mask.dtype == bool
    assert picture(mask[0, 0]) == "1 1 0"
    assert picture(mask[1, 0]) == "1 0 0"
    assert picture(F.padding_mask(jnp.array([[3, 0, 1]]), 3)[0, 0]) == "0 1 1"


def test_picture_of_the_causal_mask():
    """A position sees itself and those before it."""
    mask = F.causal_mask(3)
    assert mask.shape == (1, 1, 3, 3)
    assert mask.dtype == bool
    assert picture(mask[0, 0]) == "1 0 0\n1 1 0\n1 1 1"
    assert picture(F.causal_mask(1)[0, 0]) == "1"


def test_picture_of_the_segment_mask():
    """A position sees its own segment alone, on the same side and across."""
    segments = jnp.array([[1, 1, 2]])
    mask = F.segment_mask(segments, segments)
    assert mask.shape == (1, 1, 3, 3)
    assert picture(mask[0, 0]) == "1 1 0\n1 1 0\n0 0 1"
    across = F.segment_mask(segments, jnp.array([[1, 2, 2, 2]]))
    assert picture(across[0, 0]) == "1 0 0 0\n1 0 0 0\n0 1 1 1"


def test_picture_of_causal_and_padding():
    """Masks combine by AND, in any order and number; None allows everything."""
    causal, padding = (
        F.causal_mask(4),
        F.padding_mask(jnp.array([[5, 6, 0, 0], [5, 6, 7, 8]]), 0),
    )
    for mask in (
        F.combine(causal, padding),
        F.combine(None, padding, None, causal),
        causal & padding,
    ):
        assert mask is not None
        assert mask.shape == (2, 1, 4, 4)
        assert picture(mask[0, 0]) == "1 0 0 0\n1 1 0 0\n1 1 0 0\n1 1 0 0"
        assert picture(mask[1, 0]) == "1 0 0 0\n1 1 0 0\n1 1 1 0\n1 1 1 1"
    assert F.combine() is None
    assert F.combine(None, None) is None
    assert F.combine(None, causal) is causal


def test_causal_and_segment_attention_stays_inside_a_segment():
    """Two sentences packed in a row attend as they do in rows of their own."""
    rng = np.random.default_rng(0)
    query, key, value = (
        jnp.asarray(rng.normal(size=(1, 7, 2, 4)).astype(np.float32)) for _ in range(3)
    )
    segments = jnp.array([[1, 1, 1, 1, 2, 2, 2]])
    mask = F.combine(F.causal_mask(7), F.segment_mask(segments, segments))
    packed, weights = attention(query, key, value, mask)
    for start, stop in ((0, 4), (4, 7)):
        alone, _ = attention(
            query[:, start:stop],
            key[:, start:stop],
            value[:, start:stop],
            F.causal_mask(stop - start),
        )
        np.testing.assert_allclose(packed[:, start:stop], alone, rtol=1e-5, atol=1e-5)
    assert (np.asarray(weights)[..., 4:, :4] == 0.0).all()
    assert (np.asarray(weights)[..., :4, 4:] == 0.0).all()


@pytest.mark.parametrize("drop", ["causal", "padding"])
def test_no_part_of_a_combined_mask_is_ignored(drop):
    """Leaving out either half of causal AND padding changes the output."""
    rng = np.random.default_rng(1)
    query, key, value = (
        jnp.asarray(rng.normal(size=(2, 4, 2, 4)).astype(np.float32)) for _ in range(3)
    )
    parts = {
        "causal": F.causal_mask(4),
        "padding": F.padding_mask(jnp.array([[5, 0, 0, 0], [5, 6, 7, 8]]), 0),
    }
    both, _ = attention(query, key, value, F.combine(*parts.values()))
    del parts[drop]
    one, _ = attention(query, key, value, F.combine(*parts.values()))
    assert np.abs(np.asarray(both - one)).max() > 0.1
