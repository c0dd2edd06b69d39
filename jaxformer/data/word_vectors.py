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
        InputError: the file cannot be read, has vectors of another width or no word of
            the vocabulary.
    """
    lines = (line.rstrip().split(" ") for line in open_lines([file]))
    lines, found = (line for line in lines if len(line) > 2), dict[int, list[str]]()
    while some := list(itertools.islice(lines, _LINES)):
        words = vocabulary.encode_batch([f" {word}" for word, *_ in some])
        for tokens, (_, *vector) in zip(words, some, strict=True):
            if len(tokens) == 1 and tokens[0] != vocabulary.unk_id:
                found.setdefault(tokens[0], vector)
    widths = {*map(len, found.values())}
    if widths != {width}:
        raise InputError(
            f"data.embeddings={file} has {len(found):,} words of the vocabulary, with"
            f" vectors of {sorted(widths)} numbers, and the model is {width} wide: set"
            " model.d_model, or name other vectors"
        )
    try:
        return np.array([*found]), np.array([*found.values()], np.float32)
    except ValueError as error:
        raise InputError(f"data.embeddings={file}: {error}") from None
