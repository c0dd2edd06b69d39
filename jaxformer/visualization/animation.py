"""The animation of a translation: the encoder computes all tokens at once, the decoder
one after the other, with the attention weights of each step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxformer.errors import require
from jaxformer.translation.results import Attention
from jaxformer.visualization import style
from jaxformer.visualization.attention import find_kinds, printable, write_tokens

_FAINTEST = 0.03
_COLOURS = {"encoder": style.BLUE, "decoder": style.GREEN, "cross": style.RED}

Point = tuple[float, float]
"""A state of the model. From the left, x counts the embeddings of the source, the
layers of the encoder, a gap, the embeddings of the target and the layers of the
decoder. y is the position; the decoder is half a position lower.
"""

Thread = tuple[str, Point, Point, float]
"""A kind of attention, the state that attends, the one that it attends to, and the
weight: a mean of the heads, at least 0.03.
"""


class Step(NamedTuple):
    """One step: the states that it computes, and what they attend to.

    Attributes:
        text: what is computed.
        states: the states that are computed.
        threads: what they attend to.
        words: the number of target tokens that are known after this step.
    """

    text: str
    states: Sequence[Point]
    threads: list[Thread]
    words: int


def find_steps(maps: Attention) -> list[Step]:
    """Return the steps: the source, each layer of the encoder, then for one target
    token after the other each layer of the decoder.
    """
    encoder, decoder, cross = (
        [heads.mean(axis=0) for heads in weights]
        for weights in (maps.encoder, maps.decoder, maps.cross)
    )
    rows, memory, depth = range(len(maps.source_tokens)), len(encoder), len(cross)
    steps = [Step("Encoder: reads the source", [(0, row) for row in rows], [], 0)]
    for layer, weights in enumerate(encoder, 1):
        text = f"Encoder, layer {layer} of {memory}: all {len(rows)} tokens at once"
        threads = _attend("encoder", layer, layer - 1, rows, weights)
        steps.append(Step(text, [(layer, row) for row in rows], threads, 0))
    for row, token in enumerate(maps.target_tokens):
        for layer, weights in enumerate(cross, 1):
            x, last = memory + 2 + layer, layer == depth
            text = f"Decoder, layer {layer} of {depth}: reads "
            text += printable(maps.read_tokens[row])
            text += f", predicts {printable(token)}" * last
            threads = _attend("cross", x, memory, [row], weights)
            for own in decoder[layer - 1 : layer]:  # none where it is recurrent
                threads += _attend("decoder", x, x - 1, [row], own)
            states = [(x - 1, row + 0.5), (x, row + 0.5)]
            steps.append(Step(text, states[layer > 1 :], threads, row + last))
    return steps


def _attend(
    kind: str, x: int, from_x: int, rows: Iterable[int], weights: np.ndarray
) -> list[Thread]:
    """Return the threads from the states at x of some rows to those at from_x."""
    lower, from_lower = 0.5 * (kind != "encoder"), 0.5 * (kind == "decoder")
    return [
        (kind, (x, row + lower), (from_x, column + from_lower), round(float(weight), 3))
        for row in rows
        for column, weight in enumerate(weights[row])
        if weight >= _FAINTEST
    ]


def write_gif(maps: Attention, steps: list[Step], path: Path) -> Path:
    """Write the steps as an animated GIF, 900 pixels wide, and return the file.

    Raises:
        InputError: matplotlib is not installed.
    """
    frames = _draw_frames(maps, steps)
    pauses = [*[700] * (len(steps) - 1), 3000]  # milliseconds
    with style.open_picture(path) as file:
        more = {"save_all": True, "append_images": frames, "duration": pauses}
        next(frames).save(file, format="gif", loop=0, **more)
    return path


def _draw_frames(maps: Attention, steps: list[Step]) -> Iterator[Any]:
    image = require("PIL.Image", "train")
    rows = max(len(maps.source_tokens), len(maps.target_tokens))
    figure = style.new_figure(9, 1.1 + 0.28 * rows)
    canvas = require("matplotlib.backends.backend_agg", "train").FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.set(xticks=[], ylim=(rows, -0.5))
    states = [
        (*state, number) for number, step in enumerate(steps) for state in step.states
    ]
    x, y, numbers = np.transpose(states)
    dots = axes.scatter(x, y, s=26, zorder=3)
    lines = require("matplotlib.collections", "train").LineCollection(
        [], linewidths=1.6
    )
    axes.add_collection(lines)
    for kind in find_kinds(maps):
        axes.plot([], [], color=_COLOURS[kind.name], label=kind.title)
    axes.legend(loc="upper left", bbox_to_anchor=(0, 0), ncols=3, **style.LEGEND)
    right = axes.twinx()
    right.set_ylim(rows - 0.5, -1)
    for side, tokens in ((axes, maps.source_tokens), (right, maps.target_tokens)):
        write_tokens(side.yaxis, tokens, 9)
        side.tick_params(length=0)
        side.set_frame_on(False)
    tones = np.array([style.INK, style.LINE, style.QUIET])  # of now, later, earlier
    for number, step in enumerate(steps):
        style.title(axes, step.text.replace("▁", "·"))
        dots.set_color(tones[np.sign(numbers - number).astype(int)])
        lines.set_segments([ends for _, *ends, _ in step.threads])
        lines.set_color([(_COLOURS[kind], w**0.5) for kind, *_, w in step.threads])
        for place, label in enumerate(right.get_yticklabels()):
            label.set_alpha(place < step.words)
        canvas.draw()
        figure.set_layout_engine("none")  # as in the first picture
        picture = image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
        yield picture.quantize(128, image.Quantize.FASTOCTREE)
