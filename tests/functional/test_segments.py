"""Segments of packed rows: positions that restart, and numbers that fit the tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import InputError
from jaxformer import functional as F
from jaxformer.functional.checks import check_segments


def test_positions_restart_in_each_segment():
    """Each segment counts from 0, and so does the padding behind them."""
    segments = jnp.array([[1, 1, 1, 2, 2, 0], [1, 2, 3, 3, 3, 3], [0, 0, 0, 0, 0, 0]])
    assert F.segment_positions(segments).tolist() == [
        [0, 1, 2, 0, 1, 0],
        [0, 0, 0, 1, 2, 3],
        [0, 1, 2, 3, 4, 5],
    ]
    assert F.segment_positions(segments).dtype == jnp.int32
    assert F.segment_positions(jnp.zeros((2, 0), jnp.int32)).shape == (2, 0)
    assert F.segment_positions(jnp.array([[4]])).tolist() == [[0]]


def test_positions_of_any_segments():
    """They count the equal neighbours before, one by one; compiled or not."""
    rng = np.random.default_rng(0)
    segments = np.sort(rng.integers(1, 9, (50, 17)).astype(np.int32), axis=1)
    wanted = np.zeros_like(segments)
    for row, column in np.ndindex(50, 17):
        if column and segments[row, column] == segments[row, column - 1]:
            wanted[row, column] = wanted[row, column - 1] + 1
    np.testing.assert_array_equal(jax.jit(F.segment_positions)(segments), wanted)


def test_segments_must_fit_the_tokens():
    """Padding is segment 0 and nothing else is; numbers grow along a row, and may
    leave some out.
    """
    tokens = jnp.array([[5, 6, 7, 8], [5, 6, 9, 9]])
    for row in ([1, 1, 2, 2], [1, 2, 3, 4], [1, 3, 3, 7]):
        check_segments(jnp.array([row, [1, 1, 0, 0]]), tokens, pad_id=9, max_length=4)
    for row in ([1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0], [2, 1, 0, 0], [-1, 1, 0, 0]):
        with pytest.raises(
            InputError,
            match=(
                r"number the segments of a row from 1 upwards, .* \(id 9\) as 0: row 1 "
            ),
        ):
            check_segments(
                jnp.array([[1, 1, 1, 1], row]), tokens, pad_id=9, max_length=4
            )
    check_segments(
        jnp.zeros((2, 0), jnp.int32),
        jnp.zeros((2, 0), jnp.int32),
        pad_id=9,
        max_length=4,
    )


def test_segments_have_the_shape_of_the_tokens():
    """Another shape is refused, inside jit too."""
    tokens, segments = jnp.ones((2, 4), jnp.int32), jnp.ones((2, 3), jnp.int32)
    with pytest.raises(
        InputError, match=r"the shape of the tokens, \(2, 4\), not \(2, 3\)"
    ):
        check_segments(segments, tokens, pad_id=0, max_length=4)
    with pytest.raises(InputError, match=r"\(2, 4\), not \(2, 3\)"):
        jax.jit(lambda s: check_segments(s, tokens, pad_id=0, max_length=4))(segments)


def test_segments_are_no_longer_than_the_model_s_positions():
    """The longest sequence counts, wherever it stands, and padding does not."""
    tokens = jnp.array([[5, 5, 5, 5, 5, 5], [5, 5, 0, 0, 0, 0]])
    segments = jnp.array([[1, 2, 2, 2, 3, 3], [1, 1, 0, 0, 0, 0]])
    check_segments(segments, tokens, pad_id=0, max_length=3)
    with pytest.raises(
        InputError,
        match="a packed sequence of 3 tokens is longer than the model's 2 positions",
    ):
        check_segments(segments, tokens, pad_id=0, max_length=2)
