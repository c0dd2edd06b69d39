"""Encode text of one side, and text with labels, numbers, tags or answers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxformer.data.config import DataConfig
from jaxformer.data.frame import Frame, make_frame
from jaxformer.data.records import Pair
from jaxformer.data.store import Encoded, Sentences
from jaxformer.data.text_pairs import draw_pairs, encode_lines, find_pairs
from jaxformer.data.vocabulary import Vocabularies
from jaxformer.data.vocabulary_labels import split_words
from jaxformer.data.windows import cut_windows, question_windows
from jaxformer.errors import InputError

# Characters of a text that an error shows.
_SHOWN = 40


class Examples(NamedTuple):
    """Encoded examples.

    Attributes:
        pairs: their token ids, and labels.
        origins: number of the pair that each was made of, int64 [N]. Long texts make
            several examples, and texts without a token none.
        cut: number of texts that lost tokens.
    """

    pairs: Encoded
    origins: NDArray[np.int64]
    cut: int = 0


class _Row(NamedTuple):
    """An example before it is put into arrays."""

    origin: int
    source: Sequence[int]
    target: Sequence[int]


def encode_examples(
    pairs: Sequence[Pair],
    vocabularies: Vocabularies,
    config: DataConfig,
    *,
    threads: int = -1,
) -> Examples:
    """Encode examples of ``config.kind``, which is not ``pairs``.

    - text: the tokens of each text, and the end; nothing is cut.
    - masked: each text in its frame; a longer one than ``max_length`` is divided.
    - documents: see :func:`jaxformer.data.text_pairs.encode_lines`.
    - labelled, scored: one text or two in their frame, cut at the end of the longer to
      ``max_length``, and the label.
    - tagged: words in their frame, cut to ``max_length``. The target of the first piece
      of a word is its tag, that of others the number of tags. A word without a piece is
      unk.
    - spans: question and text in their frame. A longer text is cut into windows, every
      ``stride`` tokens. The target is the first and the last position of the answer, or
      0 and 0, at the beginning, where the window does not have all of it.

    Args:
        pairs: as :mod:`jaxformer.data.texts` and :mod:`jaxformer.data.labelled` write
            them.
        vocabularies: of text and labels.
        config: of the data.
        threads: of the tokenizer; -1: all cores.

    Raises:
        InputError: an unknown label, or a second text that the frame has no place for.
    """
    frame = make_frame(vocabularies, ("", ""))
    if config.kind == "documents":
        return Examples(*encode_lines(pairs, vocabularies.source, threads))
    if config.kind == "text":
        return _encode_text(pairs, vocabularies, frame, threads)
    if frame.added >= config.max_length:
        raise InputError(
            f"data.max_length={config.max_length} has no room for a text: set it to"
            f" more than the {frame.added} tokens around each"
        )
    rows, cut = _make_rows(pairs, vocabularies, frame, config, threads)
    source = Sentences.from_lists(
        [row.source for row in rows], vocabularies.source.pad_id
    )
    target = source
    if config.kind != "masked":
        labels = [row.target for row in rows]
        target = Sentences.from_lists(labels, vocabularies.target.pad_id)
    origins = np.array([row.origin for row in rows], np.int64)
    return Examples(Encoded(source, target), origins, cut)


def encode_validation(
    pairs: Sequence[Pair],
    vocabularies: Vocabularies,
    config: DataConfig,
    max_length: int,
) -> Examples:
    """Encode examples of ``config.kind``, for a loss that counts each once.

    Texts with ``config.window`` are divided into windows, which begin at the first
    token, and documents into pairs, always the same; ``origins`` are then the numbers
    of windows or pairs.

    Args:
        pairs: as of :func:`encode_examples`.
        vocabularies: of text and labels.
        config: of the data.
        max_length: most tokens of a row, by the positions of the model.

    Raises:
        InputError: as :func:`encode_examples`, a text is longer than ``max_length``, or
            nothing is left.
    """
    found = encode_examples(pairs, vocabularies, config)
    if not len(found.pairs):
        raise InputError("none of its texts has a token: name other text")
    if config.window is not None:
        windows, _ = cut_windows(found.pairs, [len(found.pairs)], config.window)
        return Examples(windows, np.arange(len(windows)))
    if config.kind == "documents":
        frame, sizes = make_frame(vocabularies, ("", "")), [len(found.pairs)]
        texts = find_pairs(found.pairs, sizes, frame, config.max_length)
        return Examples(draw_pairs(texts, 0, 0), np.arange(len(texts.documents)))
    too_long = np.flatnonzero(found.pairs.source_lengths > max_length)
    if too_long.size:
        raise InputError(
            f"text {found.origins[too_long[0]] + 1} has"
            f" {found.pairs.source_lengths[too_long[0]]} tokens and the model takes"
            f" {max_length} ({too_long.size} such): set data.window to divide texts,"
            " leave it out, or train a model with a larger model.max_length"
        )
    return found


def _make_rows(
    pairs: Sequence[Pair],
    vocabularies: Vocabularies,
    frame: Frame,
    config: DataConfig,
    threads: int,
) -> tuple[list[_Row], int]:
    """Return the examples of pairs, and how many pairs lost tokens."""
    divided = [_texts(pair, config.kind) for pair in pairs]
    texts = [*itertools.chain.from_iterable(divided)]
    encoded = iter(vocabularies.source.encode_batch(texts, threads=threads))
    rows: list[_Row] = []
    cut = 0
    for origin, (pair, own) in enumerate(zip(pairs, divided, strict=True)):
        parts = [*itertools.islice(encoded, len(own))]
        try:
            made, lost = _ROWS[config.kind](pair, parts, vocabularies, frame, config)
        except InputError as error:
            raise InputError(f"{pair.source[:_SHOWN]!r}: {error}") from None
        rows += [row._replace(origin=origin) for row in made]
        cut += lost
    return rows, cut


def _encode_text(
    pairs: Sequence[Pair], vocabularies: Vocabularies, frame: Frame, threads: int
) -> Examples:
    texts = [pair.target for pair in pairs]
    ids = vocabularies.target.encode_batch(texts, threads=threads)
    origins = np.array([index for index, each in enumerate(ids) if each], np.int64)
    side = Sentences.from_lists(
        [ids[index] for index in origins],
        vocabularies.target.pad_id,
        first=frame.target_before,
        last=frame.end,
    )
    return Examples(Encoded(side, side), origins)


def _texts(pair: Pair, kind: str) -> list[str]:
    """Return what is tokenised of an example, each by itself."""
    if kind == "tagged":
        # A blank before a word is part of its first piece in byte-level vocabularies.
        first, *others = split_words(pair.source)
        return [first, *(f" {word}" for word in others)]
    if kind == "masked":
        return [pair.source]
    parts = pair.source.split("\t")
    # Of the text of an answer more than the tokens is needed.
    return parts[:1] if kind == "spans" else parts


Made = tuple[list[_Row], bool]


def _masked(
    pair: Pair,
    parts: Sequence[list[int]],
    vocabularies: Vocabularies,
    frame: Frame,
    config: DataConfig,
) -> Made:
    del pair, vocabularies
    (ids,), room = parts, config.max_length - frame.added
    pieces = [ids[start : start + room] for start in range(0, len(ids), room)]
    return [_Row(0, frame.row(piece), ()) for piece in pieces], False


def _labelled(
    pair: Pair,
    parts: Sequence[list[int]],
    vocabularies: Vocabularies,
    frame: Frame,
    config: DataConfig,
) -> Made:
    first, *others = parts
    second = others[0] if others else None
    tokens, cut = join_texts(first, second, frame, config.max_length)
    if not any(parts):
        return [], False
    label = vocabularies.target.encode(pair.target)
    return [_Row(0, tokens, label)], cut


def join_texts(
    first: Sequence[int], second: Sequence[int] | None, frame: Frame, max_length: int
) -> tuple[list[int], bool]:
    """Put one text or two into the frame of a source.

    Of more than ``max_length`` tokens the longer text loses its last ones, until both
    are equally long or all fits.

    Args:
        first: its tokens.
        second: of the second text, which may be empty; None: there is none.
        frame: the tokens around them.
        max_length: most tokens of all.

    Returns:
        The tokens, and whether some were cut.

    Raises:
        InputError: the frame has no place for a second text.
    """
    room = max_length - frame.added
    if second is None:
        return frame.row(first[:room]), len(first) > room
    room -= len(frame.between)
    kept = max(room - len(second), -(-room // 2))
    one, two = first[:kept], second[: max(room - min(len(first), kept), 0)]
    return frame.row(one, two), len(first) + len(second) > room


def _tagged(
    pair: Pair,
    parts: Sequence[list[int]],
    vocabularies: Vocabularies,
    frame: Frame,
    config: DataConfig,
) -> Made:
    labels, unk = vocabularies.target, vocabularies.source.unk_id
    tags = split_words(pair.target)
    if len(tags) != len(parts):
        raise InputError(f"{len(parts)} words and {len(tags)} tags: give each word one")
    tokens, targets = [], []
    for (tag,), ids in zip(labels.encode_batch(tags), parts, strict=True):
        tokens += ids or [unk]
        targets += [tag, *[labels.pad_id] * (len(ids) - 1)]
    room = config.max_length - frame.added
    none = [labels.pad_id]
    before, after = none * len(frame.source_before), none * len(frame.source_after)
    target = [*before, *targets[:room], *after]
    return [_Row(0, frame.row(tokens[:room]), target)], len(tokens) > room


def _spans(
    pair: Pair,
    parts: Sequence[list[int]],
    vocabularies: Vocabularies,
    frame: Frame,
    config: DataConfig,
) -> Made:
    (question,), vocabulary = parts, vocabularies.source
    _, _, text = pair.source.partition("\t")
    windows = question_windows(
        question, text, vocabulary, frame, config.max_length, config.stride
    )
    begin, end, *_ = map(int, pair.target.split())
    answer = {
        number
        for window in windows
        for number, (first, last) in enumerate(window.places, window.start)
        if first < end and last > begin
    }
    rows = []
    for window in windows:
        target = [0, 0]
        inside = range(window.start, window.start + len(window.places))
        if answer and min(answer) in inside and max(answer) in inside:
            target = [window.at(min(answer)), window.at(max(answer))]
        rows.append(_Row(0, window.tokens, target))
    whole = len(frame.source_before) + len(question) + len(frame.between)
    return rows, bool(windows) and windows[0].first < whole


_ROWS: dict[str, Callable[..., Made]] = {
    "masked": _masked,
    "labelled": _labelled,
    "scored": _labelled,
    "tagged": _tagged,
    "spans": _spans,
}
