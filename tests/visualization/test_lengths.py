"""The histogram of lengths has an axis that shows what matters, and marks the limit."""

import numpy as np
import pytest
from visualization.made import pixels

from jaxformer.errors import InputError
from jaxformer.visualization import lengths


@pytest.mark.parametrize(
    ("longest", "max_length", "end"),
    [
        (50, 256, 50),  # a limit far away does not squeeze the sentences
        (200, 256, 256),  # one near them is seen
        (5000, 256, 288),  # nor does one endless line squeeze the others
        (5000, 1, 20),
    ],
)
def test_the_axis_shows_what_matters(longest, max_length, end):
    sides = [np.bincount([2, 3]), np.bincount([2, longest])]
    assert lengths.axis_end(sides, max_length) == end
    assert lengths.axis_end(sides[::-1], max_length) == end


@pytest.mark.parametrize("counts", [[1], [0, 1, 0, 7] + 90 * [5]])
def test_picture_is_900_pixels_wide(counts, tmp_path):
    """Lists and arrays serve, and the directory need not exist; nothing to draw is an
    error, and leaves no picture.
    """
    path = tmp_path / "deep" / "lengths.png"
    picture = lengths.draw(counts, np.array([1, 1]), path, max_length=30)
    assert picture == path
    assert pixels(picture).shape[:2] == (340, 900)
    with pytest.raises(InputError, match=r"but there is none for .*none\.png"):
        lengths.draw(counts, [], tmp_path / "none.png", max_length=5)
    assert not (tmp_path / "none.png").exists()


@pytest.mark.parametrize(
    ("sentences", "limit", "text"),
    [
        ([3] * 9 + [50], 20, "de, median 3, 10.00 % too long"),
        ([1, 2, 9], 9, "de, median 2"),
        ([5] * 20_000 + [21], 20, "de, median 5, <0.01 % too long"),
    ],
)
def test_the_legend_has_the_share_beyond_the_limit(sentences, limit, text):
    assert lengths.describe(np.bincount(sentences), "de", limit) == text
