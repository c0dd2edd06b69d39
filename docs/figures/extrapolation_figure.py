"""Train small Transformers to copy and to reverse 1 to 10 letters, test them on longer
rows, print how many are right and draw the picture of docs/the-paper.md: ``python
docs/figures/extrapolation_figure.py docs/images/extrapolation.png``.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxformer as jf
import panels
from jaxformer.visualization import style

KINDS: dict[str, dict[str, Any]] = {
    "sinusoidal": {},
    "learned": {"positions": "learned"},
    "rotary": {"positions": "rotary"},
    "sinusoidal + ALiBi": {"position_bias": "alibi"},
    "T5 relative": {"positions": "none", "position_bias": "relative"},
    "none": {"positions": "none"},
}
COLOURS = (style.BLUE, style.GREY, style.RED, style.GREEN, "#8a5ea8", style.INK)
TASKS = ("copy", "reverse")
TRAINED, LENGTHS = 10, (5, 10, 11, 12, 14, 20)
PAD, EOS, BOS, LETTERS = 0, 1, 2, 26
SEEDS, STEPS, BATCH, TESTED = 5, 1_000, 32, 200
MODEL = {"num_encoder_layers": 2, "num_decoder_layers": 2, "norm_order": "pre"}
MODEL |= {"d_model": 64, "d_ff": 256, "num_heads": 4, "dropout_rate": 0.0}
MODEL |= {"vocabulary_size": BOS + 1 + LETTERS, "max_length": LENGTHS[-1] + 1}


def draw_rows(
    key: jax.Array, lengths: jax.Array, longest: int, reverse: jax.Array | bool
) -> tuple[jax.Array, jax.Array]:
    """Draw letters, and the same or the reversed ones with the end of the text."""
    place, lengths = jnp.arange(longest + 1)[None], lengths[:, None]
    letters = jax.random.randint(
        key, (len(lengths), longest + 1), BOS + 1, BOS + 1 + LETTERS
    )
    source = jnp.where(place < lengths, letters, PAD)
    order = jnp.where(reverse & (place < lengths), lengths - 1 - place, place)
    target = jnp.take_along_axis(source, order, axis=1)
    return source[:, :longest], jnp.where(place == lengths, EOS, target)


def make_update(
    model: Any, optimizer: Any, longest: int, reverse: jax.Array | bool
) -> Callable[[Any, jax.Array], tuple[Any, None]]:
    """Return an update by a batch of rows of 1 to ``longest`` letters, for a scan."""

    def update(carry: Any, key: jax.Array) -> tuple[Any, None]:
        params, state = carry
        one, two = jax.random.split(key)
        lengths = jax.random.randint(one, (BATCH,), 1, longest + 1)
        source, target = draw_rows(two, lengths, longest, reverse)

        def loss(params: Any) -> jax.Array:
            logits = model.apply({"params": params}, source, target)
            total, count = jf.functional.cross_entropy(logits, target, target != PAD)
            return total / count

        updates, state = optimizer.update(jax.grad(loss)(params), state)
        return (optax.apply_updates(params, updates), state), None

    return update


@functools.partial(jax.jit, static_argnums=0)
def train(model: Any, key: jax.Array, reverse: jax.Array) -> Any:
    """Return the parameters after training with one seed."""
    rate = optax.warmup_cosine_decay_schedule(0.0, 3e-3, STEPS // 10, STEPS)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate))
    first, data = jax.random.split(key)
    token = jnp.ones((1, 1), jnp.int32)
    params = model.init(first, token, token)["params"]
    update = make_update(model, optimizer, TRAINED, reverse)
    keys = jax.random.split(data, STEPS)
    return jax.lax.scan(update, (params, optimizer.init(params)), keys)[0][0]


@functools.partial(jax.jit, static_argnums=(0, 2))
def count_right(
    model: Any, params: Any, lengths: tuple[int, ...], reverse: jax.Array | bool
) -> jax.Array:
    """Return the share of rows of each length of which each letter and the end are
    right. Greedy search gives just these rows: it errs first where this pass errs
    first.
    """
    rows = jnp.repeat(jnp.array(lengths), TESTED)
    source, target = draw_rows(jax.random.key(SEEDS), rows, max(lengths), reverse)
    logits = model.apply({"params": params}, source, target)
    right = (logits.argmax(-1) == target) | (target == PAD)
    return right.all(axis=1).reshape(-1, TESTED).mean(axis=1)


def measure(kind: str, task: str) -> np.ndarray:
    """Return the share of right rows of each seed at each length, [SEEDS, LENGTHS]."""
    model = jf.Transformer(jf.TransformerConfig(**MODEL | KINDS[kind]))
    reverse = jnp.array(task == "reverse")
    trained = (train(model, jax.random.key(seed), reverse) for seed in range(SEEDS))
    return np.array([count_right(model, each, LENGTHS, reverse) for each in trained])


def main() -> None:
    """Print the table and draw the picture."""
    figure = style.new_figure(9, 3.3)
    print("| positions | task |", *(f"{length} |" for length in LENGTHS))
    for axes, task in zip(figure.subplots(1, 2, sharey=True), TASKS, strict=True):
        for kind, colour in zip(KINDS, COLOURS, strict=True):
            found = 100 * measure(kind, task)
            mean = found.mean(axis=0)
            print(f"| {kind} | {task} |", *(f"{n:.0f} |" for n in mean), flush=True)
            looks: dict[str, Any] = {"color": colour, "marker": "o", "markersize": 4}
            # It is where the sinusoidal one is.
            looks["linestyle"] = "--" if "ALiBi" in kind else "-"
            axes.plot(LENGTHS, mean, label=kind, **looks)
            axes.vlines(LENGTHS, found.min(axis=0), found.max(axis=0), color=colour)
        axes.axvline(TRAINED, color=style.LINE, linewidth=1, zorder=0)
        across = f"letters of the row; trained on 1 to {TRAINED}"
        panels.style_lines(axes, f"{task}: rows without an error, %", across)
    print(style.save(figure, Path(sys.argv[1])))


if __name__ == "__main__":
    main()
