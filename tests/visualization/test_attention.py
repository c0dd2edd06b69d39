"""Attention figures show every layer and head, with any tokens."""

import numpy as np
from visualization.made import make_maps, pixels

from jaxformer.translation.results import Attention
from jaxformer.visualization.attention import draw, write_html

SHAPES = (2, 1), (1, 2), (3, 1)


def test_figures_of_any_token(tmp_path):
    """Formulas, markup, letters without a font and long tokens are drawn without a
    warning; figures are wider with more heads and higher with more layers.
    """
    tokens = ["</script>", "&lt;", "\\", "\u2028", "\ud800", "$x^$", "$\\frac{", "漢字"]
    tokens += ["عربي", "😀", "\x07", "", " ", "Donaudampfschifffahrt" * 5]
    paths = draw(
        make_maps(tokens, tokens[::-1], SHAPES), tmp_path / "new" / "attention"
    )
    assert [path.name for path in paths] == ["encoder.png", "decoder.png", "cross.png"]
    encoder, decoder, cross = (pixels(path).shape for path in paths)
    assert cross[0] > encoder[0] * 1.2 > decoder[0] * 1.2
    assert decoder[1] > encoder[1] * 1.2


def test_figure_shows_the_weights(tmp_path):
    """A weight of 1 among zeros is one dark cell, in its row and column."""
    tokens, places = ["a", "b", "c", "d"], []
    ones = np.zeros((2, 1, 1, 4, 4))
    ones[0, 0, 0, 0, 3] = ones[1, 0, 0, 2, 1] = 1
    maps = Attention(tokens, tokens, tokens, *ones, ones[0])
    for picture in draw(maps, tmp_path)[:2]:
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


def test_a_kind_without_layers_is_left_out(tmp_path):
    """A recurrent network attends to the source alone."""
    none = np.zeros((0, 0, 0, 0))
    weights = np.full((1, 1, 1, 2), 0.5)
    maps = Attention(["a", "b"], ["c"], ["d"], none, none, weights)
    assert [path.name for path in draw(maps, tmp_path)] == ["cross.png"]
    page = write_html(maps, tmp_path / "attention.html").read_text("utf-8")
    assert "Cross-attention" in page
    assert "Encoder self-attention" not in page
