"""Texts as rows of an encoder-only model, and answers and entities from what it
says of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jaxformer.data.frame import Frame
from jaxformer.data.labelled import find_entities
from jaxformer.data.vocabulary import MASK, Vocabulary
from jaxformer.data.windows import Window
from jaxformer.errors import InputError
from jaxformer.typing import Float

LONGEST_ANSWER = 30
"""Most tokens of an answer."""

# A letter that no vocabulary joins to others; see _after_mask.
_LETTER = "\ua66e"


def rows_of_words(
    words: Sequence[str], vocabulary: Vocabulary, frame: Frame, longest: int
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield rows of at most ``longest`` tokens, divided between words, in their frame,
    and where the first piece of each word is.
    """
    room = longest - frame.added
    # As in training: a blank before a word is part of byte-level pieces.
    given = [*words[:1], *(f" {word}" for word in words[1:])]
    tokens: list[int] = []
    firsts: list[int] = []
    for ids in vocabulary.encode_batch(given):
        pieces = (ids or [vocabulary.unk_id])[:room]
        if len(tokens) + len(pieces) > room:
            yield frame.row(tokens), firsts
            tokens, firsts = [], []
        firsts.append(len(frame.source_before) + len(tokens))
        tokens += pieces
    if firsts:
        yield frame.row(tokens), firsts


def with_mask(text: str, vocabulary: Vocabulary, frame: Frame) -> tuple[list[int], int]:
    """Return the tokens of a text with a mask in its frame, and where the mask is.

    The blank before a mask is part of the masked word.

    Raises:
        InputError: the vocabulary has no mask.
    """
    if vocabulary.mask_id is None:
        raise InputError(
            f"the vocabulary of the run has no piece {MASK}: train with"
            " data.kind=masked, or import a model that has it"
        )
    left, _, right = text.partition(MASK)
    before, after = vocabulary.encode(left.rstrip()), _after_mask(right, vocabulary)
    place = len(frame.source_before) + len(before)
    return frame.row([*before, vocabulary.mask_id, *after]), place


def _after_mask(text: str, vocabulary: Vocabulary) -> list[int]:
    """Encode text after a word: it continues the word unless it begins with a blank."""
    if not text or text[0].isspace():
        return vocabulary.encode(text)
    ids, places = vocabulary.encode_with_places(_LETTER + text)
    if any(begin < 1 < end for begin, end in places):  # one piece of both
        return vocabulary.encode(text)
    pairs = zip(ids, places, strict=True)
    return [id_ for id_, (begin, _) in pairs if begin >= 1]


def best_span(
    logits: Float[np.ndarray, "2 S"], window: Window
) -> tuple[float, int, int] | None:
    """Find the best answer in a window: it is within the text, does not end before it
    begins, has at most :data:`LONGEST_ANSWER` tokens, and begins at a token that is
    more central here than in other windows (Devlin et al. 2019, ``run_squad.py``).

    Args:
        logits: of the first and of the last token.
        window: a question and a part of its text.

    Returns:
        The sum of both logits, the first character and the first one after it, in the
        whole text; None: the window has no such answer.
    """
    inside = slice(window.first, window.first + len(window.places))
    first, last = (side.astype(np.float64)[inside] for side in logits)
    scores = first[:, None] + last[None]
    distance = np.arange(len(first))[None] - np.arange(len(first))[:, None]
    seen = np.array([begin < end for begin, end in window.places], bool)
    allowed = (distance >= 0) & (distance < LONGEST_ANSWER)
    begins = seen & np.array(window.central, bool)
    scores[~(allowed & begins[:, None] & seen[None])] = -np.inf
    if not np.isfinite(scores).any():
        return None
    begin, end = np.unravel_index(int(scores.argmax()), scores.shape)
    return (
        float(scores[begin, end]),
        window.places[int(begin)][0],
        window.places[int(end)][1],
    )


def entities_of(words: Sequence[str], tags: Sequence[str]) -> list[dict[str, Any]]:
    """Return the entities of tags: words ``start`` to before ``end``."""
    return [
        {"label": label, "start": start, "end": end, "text": " ".join(words[start:end])}
        for label, start, end in find_entities(tags)
    ]
