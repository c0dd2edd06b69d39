"""The page about the paper: its pictures are made by the script, its claims hold;
test_snippets runs its examples.
"""

import importlib.util
import itertools
import math
import re
import struct
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention_figures
import model_figure
import position_figures
import training_figures
from jaxformer import InputError
from jaxformer import functional as F
from jaxformer.models.config import TransformerConfig
from layer_costs import layer_costs
from rotation import rotation
from softmax_jacobian import draw_weights, measure_jacobians, softmax_jacobian

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "the-paper.md"
TEXT = PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def script():
    """Load the script that draws the figures."""
    specification = importlib.util.spec_from_file_location(
        "figures", ROOT / "docs" / "figures" / "__main__.py"
    )
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_links_and_pictures_exist(script):
    """Each relative link leads to a file, each link within the page to a heading, and
    each picture of the script is shown.
    """
    links = re.findall(r"\]\(([^)\s]+)\)", TEXT)
    headings = {
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^##+ (.+)$", TEXT, flags=re.MULTILINE)
    }
    assert [
        link for link in links if link.startswith("#") and link[1:] not in headings
    ] == []
    files = [link for link in links if not link.startswith(("#", "https://"))]
    assert [link for link in files if not (PAGE.parent / link).exists()] == []
    shown = {Path(link).name for link in files if link.endswith(".png")}
    assert {name for name in shown if name.startswith("paper-")} == set(script.plan(1))


def size_of(picture):
    """Read width and height from the head of a PNG."""
    data = picture.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", data[16:24])


def test_pictures_are_small():
    """Each picture of the page is 900 pixels wide and below 80 kB."""
    for picture in (ROOT / "docs" / "images").glob("paper-*.png"):
        assert size_of(picture)[0] == 900, picture
        assert picture.stat().st_size < 80_000, picture


@pytest.mark.slow
def test_the_script_makes_every_picture(script, tmp_path, monkeypatch, capsys):
    """It writes the files that the page shows, of the sizes that they have there,
    and prints their names.
    """
    monkeypatch.setattr(
        sys, "argv", ["figures", f"--output={tmp_path / 'new'}", "--draws=4"]
    )
    assert script.main() == 0
    made = capsys.readouterr().out.splitlines()
    assert made == [str(tmp_path / "new" / name) for name in script.plan(1)]
    for name in script.plan(1):
        assert size_of(tmp_path / "new" / name) == size_of(
            ROOT / "docs" / "images" / name
        )


def test_no_draws_are_refused(script, tmp_path, monkeypatch, capsys):
    """In one line, before a picture is drawn."""
    monkeypatch.setattr(
        sys, "argv", ["figures", f"--output={tmp_path / 'new'}", "--draws=0"]
    )
    assert script.main() == 1
    assert capsys.readouterr() == (
        "",
        "figures: error: --draws must be at least 1, not 0\n",
    )
    assert not (tmp_path / "new").exists()


def test_a_shift_is_one_matrix():
    """M(k) PE(p) = PE(p + k) for the formula in float64; M is orthogonal, and shifts
    add up.
    """
    for width, offset in ((2, 1), (6, -3), (64, 17)):
        turn = rotation(offset, width)
        frequencies = 10_000.0 ** (-np.arange(0, width, 2) / width)
        angles = np.arange(5, 400)[:, None] * frequencies
        here, there = (
            np.stack([np.sin(at), np.cos(at)], -1).reshape(-1, width)
            for at in (angles, angles + offset * frequencies)
        )
        np.testing.assert_allclose(here @ turn.T, there, atol=1e-12)
        np.testing.assert_allclose(turn @ turn.T, np.eye(width), atol=1e-14)
        np.testing.assert_allclose(
            turn @ rotation(2, width), rotation(offset + 2, width), atol=1e-14
        )
    with pytest.raises(InputError, match="need an even d_model, not 5; try 6"):
        rotation(1, 5)


def test_errors_of_the_rotation():
    """In float32 it is met within the rounding of the angles: 1e-6 at first, 1e-4 up
    to 1,000.
    """
    errors = position_figures.rotation_errors(3, 32, 1000)
    assert errors.shape == (1000,)
    assert errors[:4].max() < 1e-6
    assert 1e-6 < errors.max() < 1e-4


def test_the_jacobian_is_the_derivative():
    """As the derivative that JAX finds of the library's softmax; its rows and
    columns add up to 0.
    """
    scores = jnp.asarray(np.random.default_rng(1).normal(size=(3, 7)), jnp.float32)
    jacobian = softmax_jacobian(F.masked_softmax(scores))
    expected = jax.vmap(jax.jacfwd(lambda row: F.masked_softmax(row[None])[0]))(scores)
    np.testing.assert_allclose(jacobian, expected, atol=1e-6)
    np.testing.assert_allclose(jacobian.sum(axis=-1), 0, atol=1e-6)
    np.testing.assert_array_equal(jacobian, jacobian.swapaxes(-1, -2))


def test_the_jacobian_before_the_division_has_the_factor_of_the_chain_rule():
    """With a scale C it is what ``jax.jacobian`` finds of softmax(s / C) by the
    unscaled s.
    """
    scores = jnp.asarray(np.random.default_rng(7).normal(size=9, scale=3), jnp.float32)
    for scale in (1.0, 3.0, 8.0):
        expected = jax.jacobian(lambda row, scale=scale: jax.nn.softmax(row / scale))(
            scores
        )
        found = softmax_jacobian(jax.nn.softmax(scores / scale), scale=scale)
        np.testing.assert_allclose(found, expected, atol=1e-7)


@pytest.mark.parametrize("scale", [0.0, -2.0, math.inf, math.nan])
def test_a_scale_that_is_not_a_positive_number_is_refused(scale):
    """A scale must be a finite number above 0."""
    with pytest.raises(
        InputError, match=f"scale must be a finite number above 0, not {scale}; without"
    ):
        softmax_jacobian(jnp.array([0.5, 0.5]), scale)


# Mean sizes by s of (diag p - p p^T) / C, p = softmax(s / C), s ~ N(0, n): with C = n
# ** 0.5, and with C = 1. Means of 200,000 draws in float64, where the absolute entries
# of one Jacobian add up to 2 sum p (1 - p) / C.
SIZES_BY_PRODUCTS = {
    4: (0.03800, 0.05317),
    8: (0.00848, 0.01399),
    16: (0.00169, 0.00323),
    32: (0.00032, 0.00069),
    64: (0.00006, 0.00014),
}


@pytest.mark.parametrize("length", SIZES_BY_PRODUCTS)
def test_scaled_entries_are_larger_by_the_input_of_the_softmax_and_smaller_by_the_products(
    length,
):
    """Sizes by the products are the known ones; they and deviations have the
    opposite order of sizes by the input.
    """
    scores = np.random.default_rng(length).normal(
        size=(4000, length), scale=length**0.5
    )
    root = length**0.5
    scaled, unscaled = (
        jax.nn.softmax(jnp.asarray(scores / scale, jnp.float32))
        for scale in (root, 1.0)
    )
    by_products = measure_jacobians(scaled, scale=root), measure_jacobians(unscaled)
    sizes = tuple(one.size for one in by_products)
    assert sizes == pytest.approx(SIZES_BY_PRODUCTS[length], rel=0.04, abs=5e-6)
    assert sizes[0] < sizes[1] < measure_jacobians(scaled).size
    assert by_products[0].deviation < by_products[1].deviation
    assert by_products[0].greatest < by_products[1].greatest


def test_weights_are_of_the_products():
    """Scaled or not, weights are the softmax of the products of the same queries and
    keys, by NumPy in float64.
    """
    key, sizes = jax.random.key(2), {"draws": 5, "length": 6, "d_k": 16}
    query, keys = (
        np.asarray(jax.random.normal(part, shape), np.float64)
        for part, shape in zip(
            jax.random.split(key), ((5, 1, 1, 16), (5, 6, 1, 16)), strict=True
        )
    )
    products = np.einsum("nk,nsk->ns", query[:, 0, 0], keys[:, :, 0])
    for scaled, scores in ((True, products / 4), (False, products)):
        expected = np.exp(scores - scores.max(axis=1, keepdims=True))
        expected /= expected.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(
            draw_weights(key, scaled=scaled, **sizes), expected, atol=1e-5
        )


def test_statistics_of_jacobians():
    """Mean, deviation, range and traces are those of the entries, written out by
    loops.
    """
    weights = np.random.default_rng(3).dirichlet(np.ones(5), size=4).astype(np.float32)
    found = measure_jacobians(jnp.asarray(weights))
    entries = [
        float(w[i]) * ((i == j) - float(w[j]))
        for w in weights
        for i, j in itertools.product(range(5), repeat=2)
    ]
    assert found.length == 5
    assert found.size == pytest.approx(sum(map(abs, entries)) / 100, rel=1e-5)
    assert found.deviation == pytest.approx(
        math.sqrt(sum(entry**2 for entry in entries) / 100), rel=1e-5
    )
    assert (found.least, found.greatest) == pytest.approx(
        (min(entries), max(entries)), rel=1e-5
    )
    np.testing.assert_allclose(
        found.traces, 1 - (weights.astype(float) ** 2).sum(axis=1), rtol=1e-5
    )


def test_scaling_keeps_gradients_whatever_the_width():
    """Scaled, mean and deviation of the traces do not depend on d_k; not scaled, the
    mean falls far below and most Jacobians are nearly 0, though none exceeds a quarter.
    """
    found = {
        (d_k, scaled): measure_jacobians(
            draw_weights(
                jax.random.key(4), draws=400, length=16, d_k=d_k, scaled=scaled
            )
        )
        for d_k, scaled in itertools.product((16, 256), (True, False))
    }
    assert found[16, True].traces.mean() == pytest.approx(
        found[256, True].traces.mean(), abs=0.03
    )
    assert found[256, True].traces.min() > 0.2
    assert (
        found[256, False].traces.mean()
        < found[16, False].traces.mean()
        < 0.7 * found[16, True].traces.mean()
    )
    assert np.median(found[256, False].traces) < 0.05
    assert found[256, False].size < 0.25 * found[256, True].size
    assert all(
        -0.25 <= one.least <= 0 <= one.greatest <= 0.25 for one in found.values()
    )


def steps_to_meet(sees, length):
    """Count layers until the last position knows of the first, where layer i lets
    position t read ``sees(i, t)``.
    """
    known, layer = [{t} for t in range(length)], 0
    while True:
        known = [
            set().union(*(known[s] for s in sees(layer, t) if 0 <= s < length))
            for t in range(length)
        ]
        layer += 1
        if 0 in known[-1]:
            return layer


@pytest.mark.parametrize("length", [1, 2, 3, 8, 9, 10, 27, 28, 40])
def test_paths_by_following_information(length):
    """The paths of Table 1 are as many layers as it takes a word to be known at the
    other end.
    """
    costs = {cost.kind: cost for cost in layer_costs(length, 8, kernel=3, reach=7)}
    assert costs["self-attention"].path == steps_to_meet(
        lambda _, t: range(length), length
    )
    assert costs["restricted"].path == steps_to_meet(
        lambda _, t: range(t - 3, t + 4), length
    )
    assert costs["convolutional"].path == steps_to_meet(
        lambda i, t: (t, t - 3**i, t - 2 * 3**i), length
    )
    assert costs["recurrent"].path == costs["recurrent"].sequential == length


def test_multiplications_by_the_compiler():
    """Those of self-attention are the matrix products of the library's own function,
    as its traced program has them.
    """
    length, width = 12, 16
    parts = [jnp.ones((1, length, 1, width))] * 3
    program = jax.make_jaxpr(lambda *qkv: F.dot_product_attention(*qkv)[0])(*parts)
    found = sum(products_of(program.jaxpr))
    attention, recurrent, convolutional, restricted = layer_costs(
        length, width, kernel=3, reach=4
    )
    assert attention.multiplications == found == 2 * length**2 * width
    assert recurrent.multiplications == length * 2 * width**2
    assert convolutional.multiplications == length * 3 * width**2
    assert restricted.multiplications == 2 * 4 * length * width
    with pytest.raises(InputError, match="kernel must be at least 2, not 1"):
        layer_costs(4, 4, kernel=1)


def products_of(jaxpr):
    """Yield the multiplications of each matrix product of a program and of those in
    it.
    """
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contract, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            yield math.prod(equation.outvars[0].aval.shape) * math.prod(
                left[axis] for axis in contract
            )
        for inner in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "jaxpr")
        ):
            if hasattr(inner, "jaxpr"):
                yield from products_of(inner.jaxpr)


def test_the_smoothed_loss_is_least_at_its_floor():
    """The loss of the picture is the formula, least at 1 - epsilon, and its value
    there the entropy.
    """
    probabilities = np.linspace(0.5, 0.99, 50)
    for rate in (0.1, 0.2):
        losses = training_figures.smoothed_losses(probabilities, 50, rate)
        expected = -(1 - rate) * np.log(probabilities) - rate * np.log(
            (1 - probabilities) / 49
        )
        np.testing.assert_allclose(losses, expected, rtol=1e-5)
        assert probabilities[losses.argmin()] == pytest.approx(1 - rate, abs=0.006)
        entropy = -(1 - rate) * math.log(1 - rate) - rate * math.log(rate / 49)
        assert F.smoothing_floor(50, rate) == pytest.approx(entropy)
        assert losses.min() == pytest.approx(entropy, abs=1e-4)


def test_masks_of_the_picture():
    """They are the pictures that the page describes: 5 words of 8, what was before,
    both, and sentences of 3, 3, 2.
    """
    every = attention_figures.example_masks()
    place = np.arange(8)
    words, before, same = (
        place < 5,
        place <= place[:, None],
        (place // 3) == (place[:, None] // 3),
    )
    expected = [np.broadcast_to(words, (8, 8)), before, before & words, before & same]
    for mask, wanted in zip(every.values(), expected, strict=True):
        np.testing.assert_array_equal(mask, wanted)


def test_the_model_is_drawn_of_any_configuration(tmp_path):
    """Another depth, width and number of heads is drawn too."""
    config = TransformerConfig(
        vocabulary_size=30,
        d_model=8,
        d_ff=16,
        num_heads=2,
        num_encoder_layers=1,
        num_decoder_layers=3,
    )
    assert (
        size_of(model_figure.draw_model(tmp_path / "deep" / "model.png", config))[0]
        == 900
    )


@pytest.mark.parametrize(
    "change",
    [
        {"tied_embeddings": "target"},
        {"norm_order": "pre"},
        {"scale_embedding": False},
        {"output_bias": True},
        {"scan_layers": True},
    ],
)
def test_another_model_than_the_figure_s_is_refused(change, tmp_path):
    """The labels are those of the paper: what they would say wrongly of a model is
    not drawn.
    """
    ((key, value),) = change.items()
    config = TransformerConfig(
        **{"vocabulary_size": 30, "d_model": 8, "d_ff": 16, "num_heads": 2, **change}
    )
    with pytest.raises(
        InputError, match=rf"figure 1 is of a model with {key}=\w+, not {value}"
    ):
        model_figure.draw_model(tmp_path / "model.png", config)
    assert not (tmp_path / "model.png").exists()
