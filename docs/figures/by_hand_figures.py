"""Pictures of docs/the-paper-by-hand.md: the cosine in the softmax, ten Jacobians, and
figure 2 of the paper.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import panels
from jaxformer.functional import attention
from jaxformer.models.make import count_parameters
from jaxformer.nn.attention import MultiHeadAttention
from jaxformer.visualization import style
from model_figure import draw_arrow, draw_box
from softmax_jacobian import draw_weights, softmax_jacobian

LENGTHS = (4, 8, 16, 32, 64)
"""Of the softmaxes of the ten Jacobians, and widths of their queries."""

STEPS = {"mul": "Scale", "dot_general": "MatMul", "_where": "Mask", "exp": "SoftMax"}
"""Boxes of figure 2 by the operations of JAX that they are."""


def draw_cosine(picture: Path | str) -> Path:
    """Draw the cosine and its exponential by the angle, and how much of the weight a
    key at an angle keeps against a key in the direction of the query, by their lengths.
    """
    figure = style.new_figure(9, 2.8)
    left, right = figure.subplots(1, 2)
    degrees = np.linspace(-180, 180, 361)
    cosines = np.cos(np.radians(degrees))
    left.plot(degrees, cosines, color=style.GREY, label="cos θ")
    left.plot(degrees, np.exp(cosines), color=style.BLUE, label="exp(cos θ)")
    tones = style.BLUE, style.GREEN, style.RED
    for length, colour in zip((1, 4, 16), tones, strict=True):
        shares = np.exp(length * (cosines - 1))
        right.plot(degrees, shares, color=colour, label=f"|q| |k| = {length}")
    panels.style_lines(
        left, "cos θ and its exponential", "angle θ", legend="upper left"
    )
    panels.style_lines(
        right, "exp(q·k), the greatest as 1", "angle θ", legend="upper left"
    )
    for axes in (left, right):
        axes.set_xticks(range(-180, 181, 90), [f"{x}°" for x in range(-180, 181, 90)])
    return style.save(figure, picture)


def make_jacobian(length: int, *, scaled: bool, seed: int = 0) -> np.ndarray:
    """Return the Jacobian of the weights of a random query over ``length`` keys by q·k,
    float64 ``[length, length]``. Queries have as many channels as there are keys.
    """
    how = {"draws": 1, "length": length, "d_k": length, "scaled": scaled}
    weights = draw_weights(jax.random.key(seed), **how)[0]
    return np.asarray(softmax_jacobian(weights, length**0.5 if scaled else 1), float)


def draw_jacobian_grid(picture: Path | str) -> Path:
    """Draw ten Jacobians, scaled above and not scaled below, with mean, deviation and
    range of their entries.
    """
    figure = style.new_figure(9, 4.6)
    image = None
    grid = figure.subplots(2, len(LENGTHS))
    for (row, column), axes in np.ndenumerate(grid):
        length, scaled = LENGTHS[column], row == 0
        matrix = make_jacobian(length, scaled=scaled)
        image = panels.show_matrix(
            axes,
            matrix,
            title=f"d_k {length}{'' if scaled else ', not scaled'}",
            down="",
            across=describe(matrix),
            names=panels.SIGNED,
            low=-0.25,
            high=0.25,
        )
        axes.set(xticks=[], yticks=[], box_aspect=1)
    panels.add_scale(figure, image, list(grid.flat), (-0.25, 0, 0.25))
    return style.save(figure, picture)


def describe(matrix: np.ndarray) -> str:
    """Return mean, deviation and range of the entries of a matrix."""
    low, high = matrix.min(), matrix.max()
    mean = round(matrix.mean(), 4) + 0.0  # no minus before 0
    return f"mean {mean:.4f}\nSD {matrix.std():.4f}\n{low:.4f} to {high:.4f}"


def trace_attention(
    queries: int, keys: int, heads: int, width: int
) -> list[tuple[str, tuple[int, ...]]]:
    """Return the boxes of figure 2 (left) in the order of the traced function, each
    with the shape of its result.
    """
    sizes = (queries, keys, keys)
    parts = [jax.ShapeDtypeStruct((1, n, heads, width), jnp.float32) for n in sizes]
    mask = jnp.ones((1, 1, queries, keys), bool)
    program = jax.make_jaxpr(attention.dot_product_attention)(*parts, mask)
    found: list[tuple[str, tuple[int, ...]]] = []
    for equation in program.jaxpr.eqns:
        name = equation.params.get("name", equation.primitive.name)
        step = STEPS.get(str(name))
        # The second selection sets the weights that are masked to exactly 0.
        if step and (step != "Mask" or step not in dict(found)):
            found.append((step, equation.outvars[0].aval.shape[1:]))
    # Its axes are in another order until the end.
    return [*found[:-1], (found[-1][0], program.out_avals[0].shape[1:])]


def draw_heads(picture: Path | str) -> Path:
    """Draw figure 2 of the paper: the operations of the attention function on the left,
    the projections of the module on the right, with their shapes and parameters.
    """
    queries, keys, heads, width = 5, 7, 8, 64
    figure = style.new_figure(9, 4.8)
    axes = figure.subplots()
    axes.set(xlim=(0, 9), ylim=(-0.3, 5.3))
    axes.set_axis_off()
    _write(axes, 2.2, 5.15, "Scaled dot-product attention", style.INK, 10.5)
    steps = trace_attention(queries, keys, heads, width)
    for number, (name, shape) in enumerate(steps):
        low = 0.45 + 0.95 * number
        draw_arrow(axes, (2.2, low - 0.38), (2.2, low))
        draw_box(axes, 2.2, low, f"{name}\n{list(shape)}", "attention", 1.7, 0.57)
    matmuls = [i for i, (name, _) in enumerate(steps) if name == "MatMul"]
    _write(axes, 2.2, -0.1, f"Q [{queries}, {heads}, {width}]")
    inputs = ((matmuls[0], "K"), (matmuls[1], "V"))
    for number, name in (*inputs, ([one for one, _ in steps].index("Mask"), "mask")):
        middle = 0.73 + 0.95 * number
        draw_arrow(axes, (0.95, middle), (1.35, middle))
        _write(axes, 0.6, middle, name)
    _draw_module(axes, MultiHeadAttention(heads * width, heads), (queries, keys))
    return style.save(figure, picture)


def _draw_module(axes: Any, module: MultiHeadAttention, sizes: tuple[int, int]) -> None:
    """Draw figure 2 (right), from the parameters that the module makes."""
    x, memory = (jnp.ones((1, size, module.d_model)) for size in sizes)
    key = jax.random.key(0)
    params = jax.eval_shape(module.init, key, x, memory)["params"]
    total = f"Multi-head attention: {count_parameters(params):,} parameters"
    _write(axes, 6.6, 5.15, total, style.INK, 10.5)
    for middle, name in ((5.0, "value"), (6.6, "key"), (8.2, "query")):
        shape = list(params[name]["kernel"].shape)
        label = f"Linear {shape}\n{count_parameters(params[name]):,}"
        draw_box(axes, middle, 0.45, label, "embedding", 1.45, 0.57)
        draw_arrow(axes, (middle, 0.07), (middle, 0.45))
        draw_arrow(axes, (middle, 1.02), (middle, 1.55))
        _write(axes, middle, -0.1, name[0].upper())
    heads, width = params["query"]["kernel"].shape[1:]
    label = f"Scaled dot-product attention\n{heads} heads of {width}"
    for shift, text in ((0.16, ""), (0.08, ""), (0.0, label)):
        draw_box(axes, 6.52 + shift, 1.55 + shift, text, "attention", 4.5, 0.57)
    draw_box(axes, 6.6, 2.75, f"Concat\n{heads} · {width}", "output", 2.2, 0.57)
    shape = list(params["output"]["kernel"].shape)
    label = f"Linear {shape}\n{count_parameters(params['output']):,}"
    draw_box(axes, 6.6, 3.8, label, "embedding", 2.2, 0.57)
    for low, high in ((2.28, 2.75), (3.32, 3.8), (4.37, 4.85)):
        draw_arrow(axes, (6.6, low), (6.6, high))


def _write(
    axes: Any, x: float, y: float, text: str, colour: str = style.QUIET, size: float = 9
) -> None:
    axes.text(x, y, text, fontsize=size, color=colour, ha="center", va="center")
