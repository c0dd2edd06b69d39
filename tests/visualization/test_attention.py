"""Attention figures show every layer and head, with any tokens."""

import dataclasses
import re
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from jaxformer.errors import InputError
from jaxformer.visualization.attention import AttentionMaps, draw


def weights(rng, *shape):
    """Draw rows that sum to one."""
    values = rng.exponential(size=shape)
    return values / values.sum(axis=-1, keepdims=True)


def make_maps(source, target, layers=2, heads=3, seed=0):
    rng = np.random.default_rng(seed)
    s, t = len(source), len(target)
    return AttentionMaps(
        source_tokens=source,
        target_tokens=target,
        read_tokens=["<s>", *target[:-1]],
        encoder=weights(rng, layers, heads, s, s),
        decoder=weights(rng, layers, heads, t, t),
        cross=weights(rng, layers + 1, heads, t, s),
    )


def pixels(picture):
    """Read a PNG as red, green and blue from 0 to 255: ``[height, width, 3]``."""
    with Image.open(picture, formats=["PNG"]) as image:
        return np.asarray(image.convert("RGB")).astype(int)


@pytest.fixture
def maps():
    """Maps of a short sentence pair."""
    return make_maps(
        ["▁Insert", "▁a", "▁new", "▁table", ".", "</s>"],
        ["▁Eine", "▁neue", "▁Tabelle", ".", "</s>"],
    )


def test_one_figure_for_each_kind(maps, tmp_path):
    """Three PNG files appear, in a directory that need not exist, wider with more
    heads and higher with more layers.
    """
    paths = draw(maps, tmp_path / "new" / "attention")
    assert [path.name for path in paths] == ["encoder.png", "decoder.png", "cross.png"]
    sizes = [pixels(path).shape[:2] for path in paths]
    assert sizes[2][0] > sizes[0][0] * 1.2  # three layers against two
    wider = draw(make_maps(maps.source_tokens, maps.target_tokens, heads=6), tmp_path)[
        0
    ]
    assert pixels(wider).shape[1] > sizes[0][1] * 1.5


def test_figure_shows_the_weights(tmp_path):
    """One weight of 1 in a map of zeros paints one cell dark, where it stands, and
    moves with it.
    """
    tokens = ["a", "b", "c", "d"]
    base = make_maps(tokens, tokens, layers=1, heads=1)
    places = []
    for row, column in ((0, 3), (2, 1)):
        one = np.zeros((1, 1, 4, 4))
        one[0, 0, row, column] = 1
        picture = draw(dataclasses.replace(base, encoder=one), tmp_path)[0]
        # The scale of colours at the right holds the same dark blue, in a narrow strip.
        dark = np.abs(pixels(picture) - [0x0B, 0x2A, 0x5B]).sum(axis=-1) < 12
        columns = np.flatnonzero(dark.sum(axis=0) > 15)
        cell = columns[: np.argmax(np.append(np.diff(columns), 99) > 1) + 1]
        rows = np.flatnonzero(dark[:, cell].all(axis=1))
        assert 15 < len(cell) < 60
        assert 15 < len(rows) < 60
        places.append((rows.mean(), cell.mean()))
    assert places[0][0] < places[1][0]
    assert places[0][1] > places[1][1]


def test_figures_of_one_token(tmp_path):
    """The smallest sentence has a picture, too."""
    paths = draw(make_maps(["."], ["</s>"], layers=1, heads=1), tmp_path)
    assert all(min(pixels(path).shape[:2]) > 80 for path in paths)


def test_figures_of_any_token(tmp_path):
    """Formulas, markup, letters without a font and very long tokens are drawn as
    they are, without a warning.
    """
    tokens = [
        "</script>",
        "&lt;",
        "\\",
        "\u2028",
        "\ud800",
        "$x^$",
        "$\\frac{",
        "漢字",
        "عربي",
        "😀",
        "\x07",
        "",
        " ",
        "Donaudampfschifffahrt" * 5,
    ]
    for path in draw(make_maps(tokens, tokens[::-1], layers=1, heads=1), tmp_path):
        assert path.stat().st_size > 1000


def test_figures_leave_pyplot_alone(tmp_path):
    """Drawing neither loads pyplot nor looks for a display."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from test_attention import"
        " make_maps, draw;draw(make_maps(['a'], ['b'], 1, 1), sys.argv[2]);"
        " sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    environment = {"PATH": "", "MPLCONFIGDIR": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", code, __file__.rpartition("/")[0], str(tmp_path)]
    subprocess.run(command, check=True, env=environment, capture_output=True)


def test_shapes_are_checked(maps):
    """Weights that do not fit their tokens are refused with both shapes."""
    with pytest.raises(
        InputError,
        match=re.escape("cross attention must have the shape (layers, heads, 5, 6)"),
    ):
        dataclasses.replace(maps, cross=maps.cross.swapaxes(2, 3))
    with pytest.raises(InputError, match=re.escape("but has (2, 3, 6, 6)")):
        dataclasses.replace(maps, decoder=maps.encoder)
    with pytest.raises(InputError, match="encoder attention must have the shape"):
        dataclasses.replace(maps, encoder=maps.encoder[0])
    with pytest.raises(InputError, match="encoder attention must have the shape"):
        dataclasses.replace(maps, encoder=maps.encoder[:0])


@pytest.mark.parametrize("value", [np.nan, -0.5, 3.0, np.inf])
def test_weights_are_checked(maps, value):
    """Scores before the softmax, and numbers that are none, are refused."""
    encoder = maps.encoder.copy()
    encoder[1, 2, 3, 4] = value
    with pytest.raises(
        InputError, match="encoder attention must be weights between 0 and 1"
    ):
        dataclasses.replace(maps, encoder=encoder)
