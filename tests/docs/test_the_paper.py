"""The page about the paper: the script draws its pictures, and its claims hold."""

import importlib.util
import math
import re
import struct
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import alignment_figure
import by_hand_figures
import extrapolation_figure as extrapolation
import position_figures
import training_figures
from jaxformer import InputError
from jaxformer import functional as F
from layer_costs import layer_costs
from rotation import rotation
from softmax_jacobian import measure_jacobians, softmax_jacobian

ROOT = Path(__file__).resolve().parents[2]
TEXT, BY_HAND = (
    (ROOT / "docs" / name).read_text(encoding="utf-8")
    for name in ("the-paper.md", "the-paper-by-hand.md")
)


@pytest.fixture(scope="module")
def script():
    """Load the script that draws the figures."""
    path = ROOT / "docs" / "figures" / "__main__.py"
    specification = importlib.util.spec_from_file_location("figures", path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_links_and_pictures_exist(script):
    """Links within the page lead to headings; each picture of the script is shown, 900
    pixels wide and below 80 kB.
    """
    links = re.findall(r"\]\(([^)\s]+)\)", TEXT + BY_HAND)
    titles = re.findall(r"^##+ (.+)$", TEXT, flags=re.MULTILINE)
    headings = {
        re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in titles
    }
    assert {link[1:] for link in links if link.startswith("#")} <= headings
    shown = {Path(link).name for link in links if re.search(r"/paper-.*\.png", link)}
    assert shown == set(script.plan(1))
    for picture in (ROOT / "docs" / "images").glob("paper-*.png"):
        assert size_of(picture)[0] == 900, picture
        assert picture.stat().st_size < 80_000, picture


def size_of(picture):
    """Read width and height from the head of a PNG."""
    return struct.unpack(">II", picture.read_bytes()[16:24])


def draw_figures(script, monkeypatch, folder, draws):
    monkeypatch.setattr(
        sys, "argv", ["figures", f"--output={folder}", f"--draws={draws}"]
    )
    return script.main()


@pytest.mark.slow
def test_the_script_makes_every_picture(script, tmp_path, monkeypatch, capsys):
    """Of the sizes that they have on the page; it prints their names."""
    assert draw_figures(script, monkeypatch, tmp_path, draws=4) == 0
    names = list(script.plan(1))
    assert capsys.readouterr().out.splitlines() == [
        str(tmp_path / name) for name in names
    ]
    for name in names:
        assert size_of(tmp_path / name) == size_of(ROOT / "docs" / "images" / name)


@pytest.mark.slow
def test_alignments_of_earlier_attention_are_drawn(tmp_path):
    """Of the size that they have on their page."""
    name = "attention-before.png"
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        drawn = alignment_figure.draw_alignments(tmp_path / name)
    assert size_of(drawn) == size_of(ROOT / "docs" / "images" / name)


@pytest.mark.parametrize("reverse", [False, True])
def test_letters_are_copied_or_reversed(reverse):
    """Each target is its source, or that from the end, and the end token."""
    lengths, key = jnp.array([1, 3, 5]), jax.random.key(0)
    rows = extrapolation.draw_rows(key, lengths, 5, reverse)
    for length, source, target in zip(lengths.tolist(), *rows, strict=True):
        letters = source[:length][:: -1 if reverse else 1].tolist()
        end = [extrapolation.EOS, *[extrapolation.PAD] * (5 - length)]
        assert target.tolist() == [*letters, *end]
        assert min(letters) > extrapolation.BOS
        assert not source[length:].any()


def test_a_shift_is_one_matrix():
    """M(k) PE(p) = PE(p + k) for the formula in float64; M is orthogonal, and shifts
    add up. In float32 the error is that of rounding the angles.
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
        both = rotation(offset + 2, width)
        np.testing.assert_allclose(turn @ rotation(2, width), both, atol=1e-14)
    with pytest.raises(InputError, match="need an even d_model, not 5; try 6"):
        rotation(1, 5)
    errors = position_figures.rotation_errors(3, 32, 1000)
    assert errors.shape == (1000,)
    assert errors[:4].max() < 1e-6 < errors.max() < 1e-4


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_the_jacobian_is_the_derivative(scale):
    """Of softmax(s / C) by s; its rows and columns add up to 0."""
    scores = np.random.default_rng(1).normal(size=(3, 7), scale=3).astype(np.float32)

    @jax.jit
    def both(scores):
        def weights(row):
            return F.masked_softmax(row[None] / scale)[0]

        found = softmax_jacobian(jax.vmap(weights)(scores), scale)
        return found, jax.vmap(jax.jacfwd(weights))(scores)

    jacobian, expected = map(np.asarray, both(scores))
    np.testing.assert_allclose(jacobian, expected, atol=1e-6)
    np.testing.assert_allclose(jacobian.sum(axis=-1), 0, atol=1e-6)
    np.testing.assert_array_equal(jacobian, jacobian.swapaxes(-1, -2))
    with pytest.raises(InputError, match="scale must be a finite number above 0, not"):
        softmax_jacobian(np.array([0.5, 0.5]), math.inf)


def test_figure_2_is_the_traced_function():
    """The boxes of the paper, with the shapes of scores, weights and output."""
    steps = by_hand_figures.trace_attention(5, 7, heads=3, width=4)
    names, shapes = zip(*steps, strict=True)
    assert names == ("Scale", "MatMul", "Mask", "SoftMax", "MatMul")
    assert shapes == ((5, 3, 4), *[(3, 5, 7)] * 3, (5, 3, 4))


def test_sizes_by_the_products_and_by_the_input_have_opposite_orders():
    """Scaled entries are larger by the input of softmax, smaller by the products."""
    length, root = 16, 4.0
    scores = np.random.default_rng(length).normal(size=(4000, length), scale=root)
    scores = scores.astype(np.float32)
    scaled, unscaled = (jax.nn.softmax(scores / scale) for scale in (root, 1.0))
    by_products = measure_jacobians(scaled, scale=root), measure_jacobians(unscaled)
    sizes = tuple(one.size for one in by_products)
    assert sizes == pytest.approx((0.00169, 0.00323), rel=0.04, abs=5e-6)
    assert sizes[0] < sizes[1] < measure_jacobians(scaled).size
    assert by_products[0].deviation < by_products[1].deviation
    assert by_products[0].greatest < by_products[1].greatest


def steps_to_meet(sees, length):
    """Count layers until the last position knows of the first, where layer i lets
    position t read ``sees(i, t)``.
    """
    known, layer = [{t} for t in range(length)], 0
    while True:
        read = [[s for s in sees(layer, t) if 0 <= s < length] for t in range(length)]
        known = [set().union(*(known[s] for s in seen)) for seen in read]
        layer += 1
        if 0 in known[-1]:
            return layer


@pytest.mark.parametrize("length", [1, 9, 10, 28])
def test_paths_by_following_information(length):
    """Table 1: the layers until a word is known at the other end."""
    costs = {cost.kind: cost for cost in layer_costs(length, 8, kernel=3, reach=7)}
    for kind, sees in {
        "self-attention": lambda _, t: range(length),
        "restricted": lambda _, t: range(t - 3, t + 4),
        "convolutional": lambda i, t: (t, t - 3**i, t - 2 * 3**i),
    }.items():
        assert costs[kind].path == steps_to_meet(sees, length)
    assert costs["recurrent"].path == costs["recurrent"].sequential == length


def test_multiplications_by_the_compiler():
    """Those of self-attention are the matmuls of the library's traced function."""
    length, width = 12, 16
    parts = [jax.ShapeDtypeStruct((1, length, 1, width), jnp.float32)] * 3
    program = jax.make_jaxpr(lambda *qkv: F.dot_product_attention(*qkv)[0])(*parts)
    costs = layer_costs(length, width, kernel=3, reach=4)
    expected = [
        2 * length**2 * width,
        length * 2 * width**2,
        length * 3 * width**2,
        2 * 4 * length * width,
    ]
    assert [cost.multiplications for cost in costs] == expected
    assert sum(products_of(program.jaxpr)) == expected[0]
    with pytest.raises(InputError, match="kernel must be at least 2, not 1"):
        layer_costs(4, 4, kernel=1)


def products_of(jaxpr):
    """Yield the multiplications of each matmul of a program."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contract, _), _ = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            summed = math.prod(shape[axis] for axis in contract)
            yield math.prod(equation.outvars[0].aval.shape) * summed
        values = list(equation.params.values())
        for inner in jax.tree.leaves(
            values, is_leaf=lambda leaf: hasattr(leaf, "jaxpr")
        ):
            if hasattr(inner, "jaxpr"):
                yield from products_of(inner.jaxpr)


def test_the_smoothed_loss_is_least_at_its_floor():
    """At 1 - epsilon, where it is the entropy."""
    probabilities, rate = np.linspace(0.5, 0.99, 50), 0.1
    losses = training_figures.smoothed_losses(probabilities, 50, rate)
    others = np.log((1 - probabilities) / 49)
    expected = -(1 - rate) * np.log(probabilities) - rate * others
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert probabilities[losses.argmin()] == pytest.approx(1 - rate, abs=0.006)
    entropy = -(1 - rate) * math.log(1 - rate) - rate * math.log(rate / 49)
    assert F.smoothing_floor(50, rate) == pytest.approx(entropy)
    assert losses.min() == pytest.approx(entropy, abs=1e-4)
