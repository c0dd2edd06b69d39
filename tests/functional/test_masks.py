"""Masks are pictures of 0 and 1."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional as F


def picture(mask):
    return "\n".join(" ".join(map(str, row)) for row in np.asarray(mask, int).tolist())


def test_picture_of_the_padding_mask():
    """The unknown token, id 1, is no padding."""
    mask = F.padding_mask(jnp.array([[5, 6, 0], [1, 0, 0]]), 0)
    assert mask.shape == (2, 1, 1, 3)
    assert mask.dtype == bool
    assert [picture(row[0]) for row in mask] == ["1 1 0", "1 0 0"]


def test_picture_of_the_causal_mask():
    mask = F.causal_mask(3)
    assert mask.shape == (1, 1, 3, 3)
    assert mask.dtype == bool
    assert picture(mask[0, 0]) == "1 0 0\n1 1 0\n1 1 1"


def test_picture_of_the_segment_mask():
    segments = jnp.array([[1, 1, 2]])
    mask = F.segment_mask(segments, segments)
    assert mask.shape == (1, 1, 3, 3)
    assert picture(mask[0, 0]) == "1 1 0\n1 1 0\n0 0 1"
    across = F.segment_mask(segments, jnp.array([[1, 2, 2, 2]]))
    assert picture(across[0, 0]) == "1 0 0 0\n1 0 0 0\n0 1 1 1"


def test_picture_of_causal_and_padding():
    """Masks combine by AND in any order; None allows everything."""
    padding = F.padding_mask(jnp.array([[5, 6, 0, 0], [5, 6, 7, 8]]), 0)
    causal = F.causal_mask(4)
    for mask in (F.combine(causal, padding), F.combine(None, padding, None, causal)):
        assert mask is not None
        assert mask.shape == (2, 1, 4, 4)
        assert picture(mask[0, 0]) == "1 0 0 0\n1 1 0 0\n1 1 0 0\n1 1 0 0"
        assert picture(mask[1, 0]) == "1 0 0 0\n1 1 0 0\n1 1 1 0\n1 1 1 1"
    assert F.combine(None, None) is None
    assert F.combine(None, causal) is causal


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [1, 3, 9])
def test_a_window_is_near_positions(window, causal):
    """On both sides, or before; inside a segment; as an array and in a SegmentMask."""
    segments = jnp.array([[1, 1, 1, 1, 2, 2, 2, 0]])
    mask = F.SegmentMask(segments, segments, causal=causal, window=window).dense(8)
    for t, s in np.ndindex(8, 8):
        alone = abs(t - s) < window
        assert bool(F.window_mask(8, window)[0, 0, t, s]) == alone
        own = segments[0, t] == segments[0, s] != 0
        assert bool(mask[0, 0, t, s]) == (alone and own and (s <= t or not causal))
    tall = F.SegmentMask(jnp.ones((1, 3), int), window=2).dense(5)
    np.testing.assert_array_equal(tall[0, 0], F.window_mask(5, 2)[0, 0, :, :3])
