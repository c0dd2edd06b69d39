"""Windows over long texts: rows of equal length, cut from texts that follow one
another, and parts of a text after a question.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxformer.data.frame import Frame
from jaxformer.data.store import CutSentences, Encoded, Sentences
from jaxformer.data.vocabulary import Vocabulary
from jaxformer.errors import InputError

# Separates this generator from those of the order of pairs and of their choice.
_STREAM = 2


@dataclass(frozen=True, eq=False)
class Windows(CutSentences):
    """Windows over texts, which stay where they are.

    Texts of one data set are a circle: what follows the last is the first. So windows
    may begin anywhere and hold every token once.
    """

    starts: NDArray[np.int64]
    """Where each window begins in ``tokens``, int64 [N]."""
    sizes: NDArray[np.int32]
    """Tokens of each, int32 [N]."""
    circles: NDArray[np.int64]
    """Where the circle of each begins, and how many tokens it has, int64 [N, 2]."""

    def __len__(self) -> int:
        return len(self.starts)

    @functools.cached_property
    def lengths(self) -> NDArray[np.int32]:
        """Tokens in each window, int32 [N]."""
        return self.sizes

    def take(self, indices: NDArray[np.integer]) -> Sentences:
        """Return the windows at these indices, in this order, in memory."""
        sizes = self.sizes[indices]
        offsets = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(sizes, out=offsets[1:])
        begins, counts = (np.repeat(x, sizes) for x in self.circles[indices].T)
        places = np.arange(offsets[-1])
        places += np.repeat(self.starts[indices] - offsets[:-1], sizes) - begins
        return Sentences(self.tokens[begins + places % counts], offsets, self.pad_id)


def cut_windows(
    texts: Encoded,
    sizes: Sequence[int],
    window: int,
    shifts: Sequence[int] | NDArray[np.integer] | None = None,
) -> tuple[Encoded, list[int]]:
    """Divide texts of one side, one after another, into windows; each token is in one.

    Args:
        texts: of one side.
        sizes: how many of them each data set has; no window has text of two.
        window: tokens of each; the last of a data set has what is left.
        shifts: where in its circle the first window of each data set begins; None: at
            its first token.

    Returns:
        The windows, and how many each data set has: as many for all shifts.
    """
    side = texts.target
    edges = side.offsets[np.concatenate([[0], np.cumsum(sizes)]).astype(int)]
    starts, lengths, circles = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], []
    for number, (begin, end) in enumerate(itertools.pairwise(edges)):
        within = np.arange(0, end - begin, window)
        starts.append(begin + within + (0 if shifts is None else int(shifts[number])))
        lengths.append(np.minimum(window, end - begin - within))
        circles.append(np.full((len(within), 2), (begin, end - begin), np.int64))
    found = Windows(
        side.tokens,
        side.offsets,
        side.pad_id,
        np.concatenate(starts),
        np.concatenate(lengths).astype(np.int32),
        np.concatenate([np.zeros((0, 2), np.int64), *circles]),
    )
    return Encoded(found, found, texts.hash), [len(part) for part in circles]


def cut_epoch(
    texts: Encoded, sizes: Sequence[int], window: int, seed: int, epoch: int
) -> Encoded:
    """Divide texts as :func:`cut_windows` does, at places drawn for an epoch."""
    generator = np.random.default_rng([seed, epoch, _STREAM])
    shifts = generator.integers(window, size=len(sizes))
    return cut_windows(texts, sizes, window, shifts)[0]


def cut_with_stride(
    texts: Encoded, window: int, stride: int
) -> tuple[Encoded, NDArray[np.int32]]:
    """Return windows over texts that overlap, to score each token once, with more
    before it.

    Args:
        texts: of one side.
        window: tokens of each, fewer of the last.
        stride: from the beginning of a window to that of the next; ``window`` or less.

    Returns:
        The windows, and how many tokens at the beginning of each are only read, since
        the window before has scored them: int32 [N].
    """
    side = texts.target
    total = len(side.tokens)
    starts = np.arange(0, max(total - window, 0) + stride, stride, dtype=np.int64)
    read = np.full(len(starts), window - stride, np.int32)
    read[:1] = 0
    sizes = np.minimum(window, total - starts).astype(np.int32)
    kept = sizes > read
    circles = np.tile(np.array([0, total], np.int64), (int(kept.sum()), 1))
    found = Windows(
        *(side.tokens, side.offsets, side.pad_id),
        *(starts[kept], sizes[kept], circles),
    )
    return Encoded(found, found, texts.hash), read[kept]


class Window(NamedTuple):
    """A question and a part of its text.

    Attributes:
        tokens: in their frame.
        first: position of the first token of the text in it.
        start: number of that token in the whole text.
        places: the characters of each token of the text: where its first is, and the
            first after it.
        central: whether each token of the text has more text around it here than in
            any other window.
    """

    tokens: list[int]
    first: int
    start: int
    places: list[tuple[int, int]]
    central: list[bool]

    def at(self, token: int) -> int:
        """Return the position of a token of the whole text."""
        return self.first + token - self.start


def question_windows(
    question: Sequence[int],
    text: str,
    vocabulary: Vocabulary,
    frame: Frame,
    max_length: int,
    stride: int | None = None,
) -> list[Window]:
    """Put a question and its text into windows of at most ``max_length`` tokens.

    A question takes at most half of a window.

    Args:
        question: its tokens.
        text: the text that may have the answer.
        vocabulary: of the text.
        frame: the tokens around them.
        max_length: most tokens of a window.
        stride: tokens from a window to the next; None: half of the room for the text.

    Raises:
        InputError: the frame has no place for a second text.
    """
    free = max_length - frame.added_to_two
    asked = question[: free // 2]
    room = free - len(asked)
    if room < 1:
        raise InputError(
            f"data.max_length={max_length} has no room for a question and its text:"
            " raise it"
        )
    step = min(stride or max(room // 2, 1), room)
    ids, places = vocabulary.encode_with_places(text)
    places = [_trim(place, text) for place in places]
    first = len(frame.source_before) + len(asked) + len(frame.between)
    parts = [
        slice(start, min(start + room, len(ids)))
        for start in range(0, max(len(ids) - room, 0) + step, step)
        if start < len(ids)
    ]
    central = _most_central(parts, len(ids))
    return [
        Window(
            frame.row(asked, ids[part]),
            first,
            part.start,
            places[part],
            [owner == number for owner in central[part]],
        )
        for number, part in enumerate(parts)
    ]


def _most_central(windows: Sequence[slice], tokens: int) -> list[int]:
    """Return the number of the window in which each token has the most text on its
    poorer side, then the longest such window, then the first (Devlin et al. 2019,
    ``run_squad.py``).
    """
    best = np.full(tokens, -1.0)
    found = np.zeros(tokens, int)
    for number, part in enumerate(windows):
        size = part.stop - part.start
        place = np.arange(size)
        around = np.minimum(place, place[::-1]) + 0.01 * size
        better = around > best[part]
        found[part] = np.where(better, number, found[part])
        best[part] = np.maximum(around, best[part])
    return found.tolist()


def _trim(place: tuple[int, int], text: str) -> tuple[int, int]:
    """Leave out blanks at the beginning of a token."""
    begin, end = place
    while begin < end and text[begin].isspace():
        begin += 1
    return begin, end
