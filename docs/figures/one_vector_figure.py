"""Draw the picture at the head of docs/attention-before.md, Sutskever's network and the
rows that it copies, next to networks that attend: ``python
docs/figures/one_vector_figure.py docs/images/one-vector.png``.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax

import panels
from extrapolation_figure import BOS, LETTERS, count_right, make_update
from jaxformer.errors import require
from jaxformer.models.config import TransformerConfig
from jaxformer.models.make import count_parameters, make_model
from jaxformer.visualization import style

LONGEST, LENGTHS = 30, (1, 5, 10, 15, 20, 25, 30)
SECONDS, PART, RATE = 40, 50, 2e-3
ONE, TWO = ({"num_encoder_layers": n, "num_decoder_layers": n} for n in (1, 2))
NETWORKS: dict[str, dict[str, Any]] = {
    "Sutskever, reversed": TWO
    | {"network": "sutskever", "reverse_source": True, "d_model": 84},
    "Bahdanau": ONE | {"network": "bahdanau", "d_model": 80},
    "Transformer": TWO
    | {"d_model": 64, "d_ff": 256, "num_heads": 4, "norm_order": "pre"},
}
COLOURS = (style.RED, style.GREEN, style.BLUE)


def measure(settings: dict[str, Any]) -> tuple[int, int, list[float]]:
    """Train to copy 1 to LONGEST letters for SECONDS of the processor, compilation not
    counted; return the numbers of parameters and updates, and the share of right rows
    by length.
    """
    config = TransformerConfig(BOS + 1 + LETTERS, dropout_rate=0.0, **settings)
    model, token = make_model(config), jnp.ones((1, 1), jnp.int32)
    params = jax.jit(model.init)(jax.random.key(0), token, token)["params"]
    rate = optax.linear_schedule(0.0, RATE, 2 * PART)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate))
    update = make_update(model, optimizer, LONGEST, False)
    carry, key = (params, optimizer.init(params)), jax.random.key(1)
    keys = jax.random.split(key, PART)
    run = jax.jit(lambda *given: jax.lax.scan(update, *given)).lower(carry, keys)
    compiled, begun, updates = run.compile(), time.process_time(), 0
    while time.process_time() - begun < SECONDS:
        key, now = jax.random.split(key)
        carry, _ = jax.block_until_ready(compiled(carry, jax.random.split(now, PART)))
        updates += PART
    right = count_right(model, carry[0], LENGTHS, False)
    return count_parameters(params), updates, right.tolist()


def draw_network(axes: Any) -> None:
    """Draw figure 1 of Sutskever et al. 2014: a box for each step of the LSTMs."""
    patches = require("matplotlib.patches", "train")
    read = ("A", "B", "C", "<EOS>", "W", "X", "Y", "Z")
    written = (None, None, None, *read[4:], "<EOS>")
    looks = {"ha": "center", "va": "center", "fontsize": 9, "color": style.INK}
    arrow: dict[str, Any] = {"arrowstyle": "-|>", "shrinkA": 0, "shrinkB": 0}
    for place, (below, above) in enumerate(zip(read, written, strict=True)):
        fill = "#e6efe9" if above is None else "#dfe8f4"
        box = patches.Rectangle(
            (place - 0.28, 0.7), 0.56, 0.6, facecolor=fill, edgecolor="#b9c1cc"
        )
        axes.add_patch(box)
        axes.text(place, 0.1, below, **looks)
        ways = [((place, 0.3), (place, 0.7), style.QUIET)]
        if above is not None:
            axes.text(place, 1.9, above, **looks)
            ways.append(((place, 1.3), (place, 1.7), style.QUIET))
        if place:
            colour = style.RED if place == 3 else style.QUIET
            ways.append(((place - 0.72, 1), (place - 0.28, 1), colour))
        for start, end, colour in ways:
            how = {
                **arrow,
                "color": colour,
                "linewidth": 2 if colour == style.RED else 1,
            }
            axes.annotate("", xy=end, xytext=start, arrowprops=how)
    axes.text(2.5, 2.35, "all that crosses", **looks | {"color": style.RED})
    axes.plot((2.5, 2.5), (1.1, 2.2), color=style.RED, linewidth=0.8, linestyle=":")
    axes.set(xlim=(-0.5, 7.5), ylim=(-0.4, 2.7))
    axes.set_axis_off()
    style.title(axes, "Sutskever et al. 2014, figure 1")


def main() -> None:
    """Train all networks, print the table, and draw."""
    figure = style.new_figure(9, 3)
    left, right = figure.subplots(1, 2, width_ratios=(5, 4))
    draw_network(left)
    # A process and a thread each.
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    with multiprocessing.get_context("spawn").Pool(len(NETWORKS)) as pool:
        results = pool.map(measure, NETWORKS.values())
    print("| network | parameters | updates |", *(f"{n} |" for n in LENGTHS))
    for name, colour, found in zip(NETWORKS, COLOURS, results, strict=True):
        parameters, updates, shares = found
        percent = [round(100 * share) for share in shares]
        print(
            f"| {name} | {parameters:,} | {updates:,} |", *(f"{n} |" for n in percent)
        )
        looks = {"color": colour, "linewidth": 1.8, "marker": "o", "markersize": 4}
        right.plot(LENGTHS, percent, label=name, **looks)
    right.set_ylim(-4, 104)
    title = f"rows copied without an error, %, after {SECONDS} s"
    panels.style_lines(right, title, "letters of the row")
    print(style.save(figure, Path(sys.argv[1])))


if __name__ == "__main__":
    main()
