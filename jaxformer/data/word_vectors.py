"""Word vectors that another program trained, in the text formats of word2vec, GloVe and
fastText.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from jaxformer.data.files import open_lines
from jaxformer.data.vocabulary import Vocabulary
from jaxformer.errors import InputError

_LINES = 10_000  # that are encoded at once

Rows = tuple[NDArray[np.integer], NDArray[np.float32]]
"""Tokens, and a vector of each."""


def read_vectors(file: str, vocabulary: Vocabulary, width: int) -> Rows:
    """Read the vectors of the words that are one token of a vocabulary after a space,
    as words are within a sentence. The first vector of a token counts.

    Args:
        file: UTF-8, plain or compressed. A line is a word and its numbers, separated by
            blanks; before them there may be a line of their count and width.
        vocabulary: gives the tokens.
        width: numbers of a vector.

    Raises:
        InputError: the file cannot be read or is cut, has vectors of another width or
            without a finite number, or no word of the vocabulary.
    """
    name, lines = f"data.embeddings={file}", open_lines([file], empty=True)
    first = next(lines, "")
    numbers = first.split()
    count, given = numbers if len(numbers) == 2 else ("0", str(len(numbers) - 1))
    if given != str(width):
        raise InputError(
            f"{name} has vectors of {given} numbers, and the model is {width} wide: set"
            " model.d_model, or name other vectors"
        )
    found, read = dict[int, list[str]](), 0
    lines = lines if len(numbers) == 2 else itertools.chain([first], lines)
    while some := list(itertools.islice(lines, _LINES)):
        read += len(some)
        # A word may have blanks in it.
        entries = [x for x in (own.rsplit(None, width) for own in some) if x[width:]]
        words = vocabulary.encode_batch([f" {word}" for word, *_ in entries])
        for tokens, (_, *vector) in zip(words, entries, strict=True):
            if len(tokens) == 1 and tokens[0] != vocabulary.unk_id:
                found.setdefault(tokens[0], vector)
    if count.isdecimal() and read < int(count):
        raise InputError(f"{name} is cut: it has {read:,} of {int(count):,} vectors")
    if not found:
        raise InputError(
            f"no word of {name} is one token of the vocabulary: name other vectors, or"
            " train a larger vocabulary"
        )
    try:
        vectors = np.array([*found.values()], np.float32)
    except ValueError as error:
        raise InputError(f"{name}: {error}") from None
    if not (np.isfinite(vectors).all() and vectors.any()):
        raise InputError(f"{name} has numbers that are not finite, or only zeros")
    return np.array([*found]), vectors
