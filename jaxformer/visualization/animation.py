"""The animation of a translation: the encoder computes all tokens at once, the decoder
one after the other, with the attention weights of each step.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
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
        steps.append(Step(text, [(layer, row) for row in rows], [], 0))
        for state, given in zip(steps[-1].states, weights, strict=True):
            steps[-1].threads.extend(_attend("encoder", state, layer - 1, given))
    for row, token in enumerate(maps.target_tokens):
        for layer, weights in enumerate(cross, 1):
            text = f"Decoder, layer {layer} of {depth}: reads "
            text += printable(maps.read_tokens[row])
            below, last = memory + 1 + layer, layer == depth
            states = [(below, row + 0.5), (below + 1, row + 0.5)]
            threads = _attend("cross", states[1], memory, weights[row])
            for own in decoder[layer - 1 : layer]:  # none where it is recurrent
                threads += _attend("decoder", states[1], below, own[row])
            text += f", predicts {printable(token)}" * last
            steps.append(Step(text, states[layer > 1 :], threads, row + last))
    return steps


def _attend(kind: str, state: Point, x: int, weights: np.ndarray) -> list[Thread]:
    """Return the threads from a state to those at x."""
    lower = 0.5 * (kind == "decoder")
    return [
        (kind, state, (x, row + lower), round(float(weight), 3))
        for row, weight in enumerate(weights)
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
    for number, step in enumerate(steps):
        figure.clear()
        axes = figure.subplots()
        axes.set(xticks=[], ylim=(rows, -0.5))
        tones = style.INK, style.LINE, style.QUIET  # of this step, later, earlier
        for other, (_, states, *_) in enumerate(steps):
            tone = tones[np.sign(other - number)]
            axes.scatter(*zip(*states, strict=True), s=26, color=tone, zorder=3)
        for kind, *ends, weight in step.threads:
            looks = {"color": _COLOURS[kind], "alpha": weight**0.5, "linewidth": 1.6}
            axes.plot(*zip(*ends, strict=True), **looks)
        for kind in find_kinds(maps):
            axes.plot([], [], color=_COLOURS[kind.name], label=kind.title)
        axes.legend(loc="upper left", bbox_to_anchor=(0, 0), ncols=3, **style.LEGEND)
        style.title(axes, step.text)
        right = axes.twinx()
        right.set_ylim(rows - 0.5, -1)
        for side, tokens in ((axes, maps.source_tokens), (right, maps.target_tokens)):
            write_tokens(side.yaxis, tokens, 9)
            side.tick_params(length=0)
            side.set_frame_on(False)
        for label in right.get_yticklabels()[step.words :]:
            label.set_alpha(0)
        figure.savefig(picture := io.BytesIO(), format="png")
        yield image.open(picture).convert("RGB").quantize(128)
