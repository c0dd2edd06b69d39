"""Segments of packed rows: positions that restart, and numbers that fit the tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import InputError
from jaxformer import functional as F
from jaxformer.models.checks import check_segments


def test_positions_restart_in_each_segment():
    """They count the equal neighbours before, and are 0 at padding; compiled or not."""
    rng = np.random.default_rng(0)
    segments = np.sort(rng.integers(1, 9, (50, 17)).astype(np.int32), axis=1)
    segments[0, 12:] = 0
    expected = np.zeros_like(segments)
    for row, column in np.ndindex(50, 17):
        if column and 0 < segments[row, column] == segments[row, column - 1]:
            expected[row, column] = expected[row, column - 1] + 1
    found = jax.jit(F.segment_positions)(segments)
    assert found.dtype == jnp.int32
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(F.segment_positions(jnp.asarray(segments)), expected)
    assert F.segment_positions(jnp.zeros((2, 0), jnp.int32)).shape == (2, 0)


def check(segments, tokens, max_length=4):
    given = jnp.array(segments, jnp.int32), jnp.array(tokens, jnp.int32)
    check_segments(*given, pad_id=9, max_length=max_length)


def test_segments_must_fit_the_tokens():
    """Padding is segment 0 and nothing else is; numbers grow along a row, and may omit
    some. No segment is longer than the model.
    """
    tokens = [[5, 6, 7, 8], [5, 6, 9, 9]]
    for row in ([1, 1, 2, 2], [1, 2, 3, 4], [1, 3, 3, 7]):
        check([row, [1, 1, 0, 0]], tokens, max_length=2)
    check([[], []], [[], []])
    line = r"number the segments of a row from 1 upwards, .* \(id 9\) as 0: row 1 "
    for row in ([1, 1, 1, 0], [1, 0, 0, 0], [2, 1, 0, 0], [-1, 1, 0, 0]):
        with pytest.raises(InputError, match=line):
            check([[1, 1, 1, 1], row], tokens)
    with pytest.raises(InputError, match="of 3 tokens is longer than the model's 2"):
        check([[1, 2, 2, 2], [1, 1, 0, 0]], tokens, max_length=2)
    with pytest.raises(InputError, match=r"of the tokens, \(2, 4\), not \(2, 3\)"):
        jax.eval_shape(lambda: check([[1] * 3] * 2, tokens))
