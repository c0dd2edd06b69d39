"""Read the training text once: a sample, all lengths, and the test sentences in it."""

from __future__ import annotations

import dataclasses
import itertools
import random
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxformer.data.cleaning import Counts
from jaxformer.data.config import DataConfig
from jaxformer.data.encoding import Tokenizer
from jaxformer.data.records import Pair
from jaxformer.data.vocabulary import Vocabularies

SAMPLE, MOST = 5_000, 5_000_000
"""Pairs of the sample, and the most pairs to read."""


@dataclass(frozen=True)
class Survey:
    """Hold what was read of the training text.

    Attributes:
        whole: whether all pairs were read.
        sample: pairs drawn at random, the same in each reading.
        characters: lengths of both sides of each pair that was read, ``[pairs, 2]``.
        sources: sources of the test set that occur here.
        pairs: pairs of the test set that occur here.
    """

    whole: bool
    sample: list[Pair]
    characters: NDArray[np.int32]
    sources: frozenset[str]
    pairs: frozenset[Pair]


def survey_text(
    corpus: Iterable[Pair],
    test: Sequence[Pair],
    *,
    sample: int = SAMPLE,
    most: int = MOST,
) -> Survey:
    """Read a training text once.

    Args:
        corpus: its pairs.
        test: pairs that should not occur in it.
        sample: pairs to keep.
        most: pairs to read.
    """
    draw = random.Random(0).random
    asked, asked_pairs = {pair.source for pair in test}, set(test)
    kept: list[Pair] = []
    lengths = array("i")  # of millions of pairs
    sources: set[str] = set()
    pairs: set[Pair] = set()
    unread = iter(corpus)
    for read, pair in enumerate(itertools.islice(unread, most), start=1):
        lengths.extend(map(len, pair))
        if pair.source in asked:
            sources.add(pair.source)
            if pair in asked_pairs:
                pairs.add(pair)
        if len(kept) < sample:
            kept.append(pair)
        elif (place := int(draw() * read)) < sample:
            kept[place] = pair
    whole = next(unread, None) is None
    characters = np.array(lengths, np.int32).reshape(-1, 2)
    return Survey(whole, kept, characters, frozenset(sources), frozenset(pairs))


def count_dropped(
    sample: Sequence[Pair], data: DataConfig, vocabularies: Vocabularies
) -> Counts:
    """Clean and tokenise a sample as training does, and count what is dropped.

    Duplicates are kept, since finding them needs the whole text.

    Raises:
        InputError: see :func:`jaxformer.data.cleaning.clean`.
    """
    tokenizer = Tokenizer(
        vocabularies,
        dataclasses.replace(data, drop_duplicates=False, language_tags=False),
        data.languages,
    )
    return tokenizer(sample).counts
