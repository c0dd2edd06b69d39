"""The histogram of lengths counts every sentence within its axis, and marks the
limit.
"""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.errors import InputError
from jaxformer.visualization import lengths


def size(picture):
    """Read width and height in pixels from the head of a PNG."""
    head = picture.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", head[16:24])


@given(
    sentences=st.lists(st.integers(0, 90), min_size=1, max_size=40),
    end=st.integers(1, 70),
    width=st.integers(1, 9),
)
def test_bars_count_every_length_once(sentences, end, width):
    """A bar is the number of sentences whose length lies over it."""
    heights = lengths.bars(np.bincount(sentences), end, width)
    assert len(heights) == -(-end // width)
    for index, height in enumerate(heights):
        assert height == sum(
            index * width < length <= (index + 1) * width for length in sentences
        )


@pytest.mark.parametrize(
    ("longest", "max_length", "end"),
    [
        (50, 256, 50),  # a limit far away does not squeeze the sentences
        (200, 256, 256),  # one near them is seen
        (260, 256, 260),
        (5000, 256, 288),  # nor does one endless line squeeze the others
        (3, 256, 20),
        (9, 8, 20),
        (5000, 1, 20),
    ],
)
def test_the_axis_shows_what_matters(longest, max_length, end):
    sides = [np.bincount([2, 3]), np.bincount([2, longest])]
    assert (
        lengths.axis_end(sides, max_length)
        == lengths.axis_end(sides[::-1], max_length)
        == end
    )


@pytest.mark.parametrize("max_length", [1, 30, 100, 10**6])
def test_picture_is_900_pixels_wide(tmp_path, max_length):
    """The picture is a PNG fit for a page of text, in a directory that need not
    exist; lists and arrays serve.
    """
    draw = np.random.default_rng(max_length)
    source, target = (np.bincount(draw.poisson(mean, 2000)) for mean in (20, 25))
    picture = lengths.draw(
        source,
        target.tolist(),
        tmp_path / "deep" / "lengths.png",
        max_length=max_length,
    )
    assert picture == tmp_path / "deep" / "lengths.png"
    width, height = size(picture)
    assert width == 900
    assert 250 < height < 600


def test_one_sentence_is_enough(tmp_path):
    assert (
        size(lengths.draw([0, 1], [0, 0, 1], tmp_path / "one.png", max_length=5))[0]
        == 900
    )
    assert (
        size(
            lengths.draw(
                [1], [1], tmp_path / "empty.png", max_length=5, names=("en", "de")
            )
        )[0]
        == 900
    )


@pytest.mark.parametrize(
    ("source", "target"), [([], []), ([0, 0], [0, 1]), ([0, 1], [])]
)
def test_no_sentence(tmp_path, source, target):
    """Nothing to draw is an error, and leaves no picture."""
    with pytest.raises(
        InputError, match=r"needs sentences, but there is none for .*none\.png"
    ) as caught:
        lengths.draw(source, target, tmp_path / "none.png", max_length=5)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("sentences", "limit", "text"),
    [
        ([3] * 9 + [50], 20, "de, median 3, 10.00 % too long"),
        ([1, 2, 9], 9, "de, median 2"),
        ([5] * 20_000 + [21], 20, "de, median 5, <0.01 % too long"),
    ],
)
def test_the_legend_says_what_is_lost(sentences, limit, text):
    """The share beyond the limit is of all sentences, also of those beyond the axis."""
    assert lengths.describe(np.bincount(sentences), "de", limit) == text
